//! What `headgate check` prints.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use serde::Serialize;

use super::finding::{Finding, State};
use super::{World, find};
use crate::report::{Detail, Report};
use crate::status::{counted, format_columns};

/// Findings of one check in the narrow text.
const MAX_FINDINGS: usize = 10;

/// The findings of all checks.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckReport {
    #[serde(rename = "askedAt")]
    taken_at: Timestamp,
    /// The number of findings with the state `failure`.
    pub(crate) failures: usize,
    /// The number of findings with the state `warning`.
    pub(crate) warnings: usize,
    /// In the order of the checks.
    findings: Vec<Finding>,
}

impl CheckReport {
    /// The report about a world that was read at this time.
    pub(crate) fn new(world: &World, taken_at: Timestamp) -> Self {
        let findings = find(world);
        let count = |state| findings.iter().filter(|finding| finding.state == state).count();
        Self {
            taken_at,
            failures: count(State::Failure),
            warnings: count(State::Warning),
            findings,
        }
    }
}

impl Report for CheckReport {
    const KIND: Option<&'static str> = Some("Check");

    fn taken_at(&self) -> Timestamp {
        self.taken_at
    }

    /// A table, with what to do below each row that is not as it should be.
    fn text(&self, detail: Detail) -> String {
        let header = ["", "CHECK", "OBJECT", "FINDING"].map(str::to_owned);
        let mut rows = Vec::new();
        let mut shown: BTreeMap<&str, usize> = BTreeMap::new();
        for finding in &self.findings {
            let number = shown.entry(finding.id).or_default();
            *number += 1;
            if detail == Detail::Narrow && *number > MAX_FINDINGS {
                continue;
            }
            let object = finding.object.as_deref().unwrap_or("-");
            rows.push(
                [finding.state.mark(), finding.id, object, &finding.what]
                    .map(str::to_owned)
                    .to_vec(),
            );
            if let Some(do_) = &finding.do_ {
                rows.push(vec![String::new(), String::new(), String::new(), format!("→ {do_}")]);
            }
        }
        let mut text = format_columns(&header, &rows);
        for (id, number) in shown
            .into_iter()
            .filter(|(_, number)| detail == Detail::Narrow && *number > MAX_FINDINGS)
        {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{} more of {id} are not shown; -o wide has all.",
                number - MAX_FINDINGS
            );
        }
        let (failures, warnings) = (counted(self.failures, "failure"), counted(self.warnings, "warning"));
        let _ = writeln!(text, "{failures}, {warnings}.");
        text
    }

    /// The objects that are not as they should be.
    fn names(&self) -> Vec<String> {
        let wrong = self.findings.iter().filter(|finding| finding.state != State::Ok);
        wrong.filter_map(|finding| finding.object.clone()).collect()
    }
}
