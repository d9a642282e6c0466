//! The report: an answer for each assumption, as Markdown and JSON, to paste into an issue. Pure.
//!
//! Answers have codes and counts of Azure's, never its messages, which name subscriptions and principals.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use headgate_core::telemetry::words;
use jiff::Timestamp;
use serde::Serialize;

use super::assumptions::{ASSUMPTIONS, Assumption};

words! {
    /// What was found out about an assumption; the words are those of the Markdown.
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    pub(crate) enum Verdict {
        /// Azure does what is assumed.
        Holds = "holds",
        /// It does something else.
        False = "**false**",
        /// What was seen decides nothing.
        NotDecided = "not decided",
        /// The run did not come to it.
        NotAsked = "not asked",
    }
}

/// The answers so far, by the id of the assumption.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers(BTreeMap<&'static str, (Verdict, String)>);

impl Answers {
    pub(super) fn add(&mut self, id: &'static str, verdict: Verdict, seen: impl Into<String>) {
        self.0.insert(id, (verdict, seen.into()));
    }

    /// `Holds` or `False`.
    pub(super) fn decide(&mut self, id: &'static str, holds: bool, seen: impl Into<String>) {
        let verdict = if holds { Verdict::Holds } else { Verdict::False };
        self.add(id, verdict, seen);
    }

    /// `NotDecided`.
    pub(super) fn undecided(&mut self, id: &'static str, why: impl Into<String>) {
        self.add(id, Verdict::NotDecided, why);
    }

    /// Adds an answer unless there is one.
    pub(super) fn or_not_asked(&mut self, id: &'static str, why: &str) {
        self.0.entry(id).or_insert_with(|| (Verdict::NotAsked, why.to_owned()));
    }
}

/// What a report begins with.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Facts {
    /// The version of headgate.
    pub(crate) headgate: &'static str,
    /// The start of the run.
    pub(crate) started_at: Timestamp,
    /// The API version of Microsoft.Network.
    pub(crate) api_version: &'static str,
    /// The load balancer's location.
    pub(crate) location: Option<String>,
    /// `addresses` or `interfaces`.
    pub(crate) pool_of: &'static str,
    /// The number of pools of the load balancer.
    pub(crate) pools: usize,
    /// The ids of what was written, if the user wants them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) written: Vec<String>,
}

/// The row of an assumption.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AnswerRow {
    pub(crate) id: &'static str,
    assumption: &'static str,
    expected: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) seen: String,
}

/// The outcome of a run.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VerifyReport {
    #[serde(flatten)]
    facts: Facts,
    /// Why the run ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ended_early: Option<String>,
    /// The entries that are not as they were, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) not_restored: Vec<String>,
    /// One for each assumption, in the order of the table.
    pub(crate) answers: Vec<AnswerRow>,
}

impl VerifyReport {
    pub(super) fn new(facts: Facts, answers: &Answers, ended_early: Option<String>, not_restored: Vec<String>) -> Self {
        let row = |assumption: &Assumption| {
            let unasked = || (Verdict::NotAsked, "the run did not come to it".to_owned());
            let (verdict, seen) = answers.0.get(assumption.id).cloned().unwrap_or_else(unasked);
            AnswerRow {
                id: assumption.id,
                assumption: assumption.question,
                expected: assumption.expected,
                verdict,
                seen,
            }
        };
        Self {
            facts,
            ended_early,
            not_restored,
            answers: ASSUMPTIONS.iter().map(row).collect(),
        }
    }

    /// The number of assumptions that are false.
    pub(crate) fn falsified(&self) -> usize {
        let rows = self.answers.iter();
        rows.filter(|row| row.verdict == Verdict::False).count()
    }

    /// The report for an issue.
    pub(crate) fn markdown(&self) -> String {
        let Facts {
            headgate,
            started_at,
            api_version,
            location,
            pool_of,
            pools,
            written,
        } = &self.facts;
        let location = location.as_deref().unwrap_or("unknown location");
        let mut text = format!(
            "## headgate verify\n\nheadgate {headgate}, {started_at:.0}, Microsoft.Network {api_version}, {location}, pool of {pool_of}, \
             {pools} pools in the load balancer\n\n"
        );
        for id in written {
            let _ = writeln!(text, "- written: `{id}`");
        }
        if let Some(why) = &self.ended_early {
            let _ = writeln!(text, "Ended early: {why}.\n");
        }
        for entry in &self.not_restored {
            let _ = writeln!(text, "**Not restored**: {entry}\n");
        }
        text.push_str("| assumption | expected | answer | seen |\n|---|---|---|---|\n");
        for row in &self.answers {
            let verdict = row.verdict.as_str();
            let seen = row.seen.replace('|', "\\|");
            let _ = writeln!(text, "| `{}` | {} | {verdict} | {seen} |", row.id, row.expected);
        }
        text
    }
}
