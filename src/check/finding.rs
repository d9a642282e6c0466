//! What a check found.

use serde::Serialize;

use super::Found;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum State {
    /// As it should be.
    Ok,
    /// headgate works, but less than it could, or it is not known whether it does.
    Warning,
    /// headgate, or a part of it that the settings ask for, does not work.
    Failure,
}

impl State {
    /// The mark in the table.
    pub(super) fn mark(self) -> &'static str {
        match self {
            Self::Ok => "✓",
            Self::Warning => "!",
            Self::Failure => "✗",
        }
    }
}

/// What a check found about one object, or in general.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Finding {
    /// The name of the check.
    pub(super) id: &'static str,
    pub(super) state: State,
    /// Such as `service/default/web`.
    pub(super) object: Option<String>,
    /// A sentence without its full stop.
    pub(super) what: String,
    /// What to do about it; `None` if nothing is wrong.
    #[serde(rename = "do")]
    pub(super) do_: Option<String>,
}

impl Finding {
    fn new(state: State, what: impl Into<String>, do_: Option<String>) -> Self {
        Self {
            id: "",
            state,
            object: None,
            what: what.into(),
            do_,
        }
    }

    pub(super) fn ok(what: impl Into<String>) -> Self {
        Self::new(State::Ok, what, None)
    }

    pub(super) fn warning(what: impl Into<String>, do_: impl Into<String>) -> Self {
        Self::new(State::Warning, what, Some(do_.into()))
    }

    pub(super) fn failure(what: impl Into<String>, do_: impl Into<String>) -> Self {
        Self::new(State::Failure, what, Some(do_.into()))
    }

    /// The same, with another state.
    pub(super) fn with_state(self, state: State) -> Self {
        Self { state, ..self }
    }

    /// The same, about an object.
    pub(super) fn about(self, object: impl Into<String>) -> Self {
        Self {
            object: Some(object.into()),
            ..self
        }
    }

    /// The findings, or that all is well if there are none.
    #[expect(clippy::unnecessary_wraps, reason = "what checks end with")]
    pub(super) fn or_ok(findings: Vec<Self>, what: impl Into<String>) -> Found {
        Ok(if findings.is_empty() {
            vec![Self::ok(what)]
        } else {
            findings
        })
    }
}
