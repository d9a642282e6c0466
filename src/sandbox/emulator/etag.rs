//! Entity tags and the preconditions that name them.
//!
//! Recorded: `If-Match: invalid` is taken as `W/"invalid"`, so only the opaque part is compared.

use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use uuid::Uuid;

use super::error::ArmError;

/// The tag of one state of a top-level resource, shared by all its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Etag(pub(super) Uuid);

impl std::fmt::Display for Etag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "W/\"{}\"", self.0)
    }
}

/// Checks `If-Match` and `If-None-Match` of a write against the state there is.
///
/// # Errors
/// 412, as recorded.
pub(super) fn check(headers: &HeaderMap, current: Option<Etag>, id: &str) -> Result<(), ArmError> {
    let given = headers.get_all(IF_MATCH).iter().filter_map(|value| value.to_str().ok());
    let given: Vec<&str> = given
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|value| !value.is_empty())
        .collect();
    if let Some(first) = given.first() {
        let matches = |value: &&str| match current {
            Some(etag) => *value == "*" || opaque(value).eq_ignore_ascii_case(&etag.0.to_string()),
            // A guess: nothing matches what is not there.
            None => false,
        };
        if !given.iter().any(matches) {
            return Err(mismatch("if-match", first, current, id));
        }
    }
    if let Some(value) = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok()) {
        let same = |etag: Etag| value.trim() == "*" || opaque(value).eq_ignore_ascii_case(&etag.0.to_string());
        if current.is_some_and(same) {
            return Err(mismatch("if-none-match", value, current, id));
        }
    }
    Ok(())
}

/// `x` of `W/"x"`, `"x"` and `x`.
fn opaque(value: &str) -> &str {
    let value = value.trim();
    let value = value
        .strip_prefix("W/")
        .or_else(|| value.strip_prefix("w/"))
        .unwrap_or(value);
    value.trim_matches('"')
}

fn mismatch(header: &str, given: &str, current: Option<Etag>, id: &str) -> ArmError {
    let given = opaque(given);
    let current = current.map_or_else(|| "(none)".to_owned(), |etag| etag.to_string());
    ArmError::new(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", "Precondition failed.").detail(
        "PreconditionFailedEtagMismatch",
        format!("Etag provided in {header} header W/\"{given}\" does not match etag {current} of resource {id} in NRP data store."),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_if_match() {
        let uuid = Uuid::from_u128(7);
        let etag = Some(Etag(uuid));
        let asked = |value: &str, current| {
            let mut headers = HeaderMap::new();
            headers.insert(IF_MATCH, value.parse().unwrap());
            check(&headers, current, "/x").map_err(|error| error.status.as_u16())
        };
        for value in [
            format!("W/\"{uuid}\""),
            format!("\"{uuid}\""),
            uuid.to_string(),
            uuid.to_string().to_uppercase(),
            "*".to_owned(),
            format!("\"other\", \"{uuid}\""),
        ] {
            assert_eq!(asked(&value, etag), Ok(()), "{value}");
            assert_eq!(asked(&value, None), Err(412), "{value}");
        }
        assert_eq!(asked("invalid", etag), Err(412));
        assert_eq!(check(&HeaderMap::new(), None, "/x"), Ok(()));
        let mut headers = HeaderMap::new();
        headers.insert(IF_NONE_MATCH, "*".parse().unwrap());
        assert!(check(&headers, etag, "/x").is_err());
        assert!(check(&headers, None, "/x").is_ok());
    }
}
