//! The report of a run, as JSON and as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::Violation;
use super::connections::Connections;

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) seconds: u64,
    pub(crate) rounds: u64,
    /// By their names.
    pub(crate) disturbances: BTreeMap<&'static str, u64>,
    /// Those that found nothing to act on, or no API server.
    pub(crate) not_carried_out: u64,
    pub(crate) puts: u64,
    pub(crate) accepted_puts: u64,
    pub(crate) puts_of_others: u64,
    pub(crate) lease_writes: u64,
    /// Of these, writes of the Lease of the election with a time by a clock that was wrong.
    pub(crate) lease_writes_by_wrong_clocks: usize,
    pub(crate) largest_clock_jump_seconds: u64,
    pub(crate) checked_operations: usize,
    pub(crate) samples: u64,
    /// Rules in these that were matched to a `Local` Service.
    pub(crate) local_rules: u64,
    pub(crate) entries_set_down: u64,
    pub(crate) most_down_at_once: usize,
    pub(crate) late_puts: usize,
    pub(crate) puts_after_restore: usize,
    /// Entries that a restore of etcd left `Down` without a ledger entry, so that an operator has to give them back.
    pub(crate) downs_left_by_restores: u64,
    /// Known at the end.
    pub(crate) connections: Connections,
    /// The signals in calm that the times below were measured with.
    pub(crate) signals_in_calm: u64,
    /// Of these, signals during which the endpoints of a Service moved to the node and away again.
    pub(crate) moves_in_calm: u64,
    pub(crate) longest_milliseconds_to_down: u64,
    /// Of a node to which the endpoints of a Service moved while it was `Down`.
    pub(crate) longest_milliseconds_to_service: u64,
    pub(crate) longest_milliseconds_to_restore: u64,
    pub(crate) longest_seconds_to_calm: u64,
    pub(crate) violations: Vec<Violation>,
}

impl Report {
    pub(crate) fn to_markdown(&self) -> String {
        let mut text = format!(
            "# Chaos with seed {}\n\n{} s, {} rounds, {} violations.\n\n| what | count |\n|---|---|\n",
            self.seed,
            self.seconds,
            self.rounds,
            self.violations.len()
        );
        let mut row = |what: &str, count: String| {
            let _ = writeln!(text, "| {what} | {count} |");
        };
        for (name, count) in &self.disturbances {
            row(name, count.to_string());
        }
        for (what, count) in [
            ("disturbances that were not carried out", self.not_carried_out),
            ("PUTs of headgate", self.puts),
            ("of these accepted", self.accepted_puts),
            ("accepted PUTs of others", self.puts_of_others),
            ("writes of the two Leases", self.lease_writes),
            (
                "of these renewals by clocks that were wrong",
                self.lease_writes_by_wrong_clocks as u64,
            ),
            ("largest jump of a clock, in seconds", self.largest_clock_jump_seconds),
            ("requests checked for linearizability", self.checked_operations as u64),
            ("samples of the load balancers", self.samples),
            ("rules of `Local` Services in these", self.local_rules),
            ("entries that became `Down`", self.entries_set_down),
            ("`Down` at once, at most", self.most_down_at_once as u64),
            ("PUTs that arrived after their leader's hold", self.late_puts as u64),
            (
                "PUTs under a hold that a restore took back",
                self.puts_after_restore as u64,
            ),
            (
                "`Down` that a restore left without a ledger entry",
                self.downs_left_by_restores,
            ),
            ("connections opened", self.connections.opened),
            (
                "refused without a node in rotation",
                self.connections.refused_without_backend,
            ),
            ("connections of up to 2 minutes", self.connections.held),
            (
                "of these through a `Down` of their node",
                self.connections.outlived_down,
            ),
            (
                "of these cut by a machine's end or another writer",
                self.connections.cut_by_removal,
            ),
            ("signals in calm", self.signals_in_calm),
            ("of these with endpoints that moved there and away", self.moves_in_calm),
        ] {
            row(what, count.to_string());
        }
        for (what, milliseconds) in [
            ("longest time to `Down` in calm", self.longest_milliseconds_to_down),
            (
                "longest time to service for a moved endpoint in calm",
                self.longest_milliseconds_to_service,
            ),
            (
                "longest time to the restore in calm",
                self.longest_milliseconds_to_restore,
            ),
            ("longest time to calm", self.longest_seconds_to_calm * 1000),
        ] {
            row(what, format!("{}.{:03} s", milliseconds / 1000, milliseconds % 1000));
        }
        for violation in &self.violations {
            let _ = write!(text, "\n## {}\n\n{}\n\n```json\n", violation.invariant, violation.text);
            for event in &violation.context {
                let _ = writeln!(text, "{}", serde_json::to_string(event).unwrap_or_default());
            }
            text.push_str("```\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::stopped;
    use super::*;

    #[test]
    fn a_violation_is_shown_with_the_history_around_it() {
        let violation = Violation {
            invariant: "members",
            text: "one is lost".to_owned(),
            context: vec![stopped(0, 1)],
        };
        let report = Report {
            seed: 7,
            disturbances: BTreeMap::from([("leaders killed", 2)]),
            lease_writes_by_wrong_clocks: 3,
            largest_clock_jump_seconds: 1150,
            longest_milliseconds_to_down: 1234,
            violations: vec![violation],
            ..Report::default()
        };
        let text = report.to_markdown();
        for part in [
            "# Chaos with seed 7\n",
            "| leaders killed | 2 |\n",
            "| of these renewals by clocks that were wrong | 3 |\n",
            "| largest jump of a clock, in seconds | 1150 |\n",
            "| longest time to `Down` in calm | 1.234 s |\n",
            "## members\n\none is lost\n\n```json\n{\"begin\":",
            "\"apiServerStopped\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
