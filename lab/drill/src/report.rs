//! The results of a drill as a table for people, and what they assume. The page with plots is [`page`].

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use crate::drill::{Options, Roll};
use crate::result::{Row, RunResult, is_too_late};
use crate::spread::Spread;

pub mod comparison;
mod facts;
mod model;
pub mod page;
mod plot;
pub mod saved;

pub use plot::{Series, SeriesLine};

const HEADER: [&str; 9] = [
    "strategy",
    "runs",
    "new connections failed",
    "blackhole seconds",
    "out of rotation after",
    "gone after",
    "open through the node",
    "established connections cut",
    "before the node was gone",
];

const ROLL_HEADER: [&str; 6] = [
    "strategy",
    "the roll took",
    "failed meanwhile",
    "blackhole seconds",
    "expected",
    "worst case of the post",
];

/// The table: means, with the smallest and largest value of the runs.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(HEADER);
    for row in rows {
        table.add_row([
            name(&row.strategy),
            row.runs.to_string(),
            format!("{} ({:.2} %)", spread(&row.failed, 0), row.failed_share.mean * 100.0),
            spread(&row.blackhole_seconds, 1),
            seconds(row.out_of_rotation_seconds),
            seconds(row.node_gone_seconds),
            spread(&row.established_at_signal, 0),
            spread(&row.established_lost, 0),
            spread(&row.established_lost_before_node_gone, 0),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{table}\n");
    for row in rows {
        if let Some(bound) = row.blackhole_bound {
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "{}: 0 of {} new connections failed: {}.",
                name(&row.strategy),
                row.attempted,
                at_most(bound)
            );
        }
    }
    text
}

/// Rolling updates beside the budget; empty without one.
pub fn rolls(rolls: &[Roll]) -> String {
    if rolls.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(ROLL_HEADER);
    for roll in rolls {
        let share = roll.failed_share;
        let percent = Spread {
            mean: share.mean * 100.0,
            min: share.min * 100.0,
            max: share.max * 100.0,
            ..share
        };
        table.add_row([
            name(&roll.strategy),
            format!("{} s", spread(&roll.seconds, 0)),
            format!("{} %", spread(&percent, 2)),
            spread(&roll.blackhole_seconds, 1),
            format!("{:.1}", roll.expected_seconds),
            format!("{:.0} s at {:.1} %", roll.worst_seconds, roll.worst_share * 100.0),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    format!(
        "{table}\nBlackhole seconds of the whole roll: measured, then expected as headgate-lab budget computes it, and the worst case \
         of the post, which counts the drain time as lost.\n\n"
    )
}

/// What a zero says of a blackhole.
fn at_most(bound: f64) -> String {
    format!("black hole at most {bound:.2} s a run at 95 %")
}

/// When something happened to a node, since its signal.
fn seconds(after: Option<Spread>) -> String {
    after.map_or_else(|| "never".to_owned(), |after| format!("{} s", spread(&after, 1)))
}

fn spread(values: &Spread, digits: usize) -> String {
    let Spread { mean, min, max, .. } = values;
    if (max - min).abs() < 0.05 {
        format!("{mean:.digits$}")
    } else {
        format!("{mean:.1} ({min:.digits$} to {max:.digits$})")
    }
}

/// A name as the command line has it.
pub fn name(value: &impl clap::ValueEnum) -> String {
    value
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

/// A warning, if this machine was too busy for what the results say.
pub fn warning(results: &[RunResult]) -> Option<String> {
    let late: Vec<_> = results
        .iter()
        .filter(|run| is_too_late(run.longest_lag_seconds, run.speed))
        .map(|run| run.longest_lag_seconds)
        .collect();
    let longest = Spread::new(&late).max;
    (!late.is_empty()).then(|| {
        format!(
            "In {} of {} runs this machine was so busy that clients started up to {longest:.2} s late; their results are not \
             reliable. Run the drill again on an idle machine, or with a lower --speed.\n",
            late.len(),
            results.len(),
        )
    })
}

/// What the results assume, one sentence on each line.
pub fn assumptions(options: &Options) -> String {
    let probe = options.probe();
    let mut text = format!(
        "Scenario {} on {} nodes; times are of the scenario, which ran {} times faster. Headgate, the kernel and this \
         machine ran at their own speed.\n",
        name(&options.scenario),
        options.nodes,
        options.speed().factor(),
    );
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "Probes every {} s, {} failures in a row take a node out{}, {} successes let it back.",
        probe.interval.as_secs_f64(),
        probe.unhealthy_threshold,
        first_answer(&name(&probe.rule)),
        probe.healthy_threshold,
    );
    let _ = writeln!(
        text,
        "Azure publishes no time for an admin state to take effect: here {} s after its operation, which takes {} s.",
        options.propagation_delay.as_secs_f64(),
        options.operation().mean(options.nodes).as_secs_f64(),
    );
    let _ = writeln!(
        text,
        "Blackhole seconds: how long new connections to one node were lost, summed over nodes. Long-lived connections end \
         by themselves after at most {} s; those open through a node are counted at its signal.",
        options.pods().connection_lifetime.as_secs_f64(),
    );
    text
}

/// What the rule of probes adds to the number of failures.
fn first_answer(rule: &str) -> &'static str {
    if rule == "first-non-200" {
        ", of HTTP the first answer other than 200"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use expect_test::expect;

    use super::*;
    use crate::drill::options_of_a_test as options;
    use crate::result::{RunIdentity, rows, summarize};
    use crate::scenario::Scenario;
    use crate::strategy::Strategy;

    #[test]
    fn a_row_shows_means_and_ranges() {
        let row = Row {
            scenario: Scenario::ScaleDown,
            strategy: Strategy::KubeProxy,
            runs: 3,
            failed: Spread::new(&[4.0, 8.0, 6.0]),
            failed_share: Spread::new(&[0.01, 0.02, 0.015]),
            established_lost: Spread::new(&[2.0, 2.0, 2.0]),
            established_lost_before_node_gone: Spread::default(),
            established_at_signal: Spread::new(&[5.0, 5.0, 5.0]),
            blackhole_seconds: Spread::new(&[2.0, 3.0, 2.5]),
            attempted: 600,
            blackhole_bound: None,
            out_of_rotation_seconds: None,
            node_gone_seconds: Some(Spread::new(&[5.0])),
        };
        let text = table(std::slice::from_ref(&row));
        for expected in [
            "kube-proxy",
            "6.0 (4 to 8) (1.50 %)",
            "2.5 (2.0 to 3.0)",
            "never",
            "5.0 s",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert_eq!(text.lines().count(), 2);
        let zero = Row {
            attempted: 5002,
            blackhole_bound: Some(0.09),
            ..row
        };
        let text = table(&[zero]);
        assert!(
            text.contains("kube-proxy: 0 of 5002 new connections failed: black hole at most 0.09 s a run at 95 %"),
            "{text}"
        );
        assert!(rows(&[]).is_empty());
    }

    #[test]
    fn a_roll_stands_beside_the_closed_form() {
        let roll = Roll {
            strategy: Strategy::PreStopSleep,
            seconds: Spread::new(&[1980.0]),
            failed_share: Spread::new(&[0.0025]),
            blackhole_seconds: Spread::new(&[29.7]),
            expected_seconds: 0.0,
            worst_seconds: 1860.0,
            worst_share: 1.0 / 6.0,
        };
        let text = rolls(&[roll]);
        for expected in ["pre-stop-sleep", "1980 s", "0.25 %", "29.7", "0.0", "1860 s at 16.7 %"] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert_eq!(rolls(&[]), "");
    }

    #[test]
    fn what_results_assume_is_said() {
        expect![[r"
            Scenario scale-down on 3 nodes; times are of the scenario, which ran 10 times faster. Headgate, the kernel and this machine ran at their own speed.
            Probes every 5 s, 2 failures in a row take a node out, of HTTP the first answer other than 200, 2 successes let it back.
            Azure publishes no time for an admin state to take effect: here 0 s after its operation, which takes 0.1 s.
            Blackhole seconds: how long new connections to one node were lost, summed over nodes. Long-lived connections end by themselves after at most 20 s; those open through a node are counted at its signal.
        "]].assert_eq(&assumptions(&options()));
        assert_eq!((first_answer("threshold"), first_answer("")), ("", ""));
    }

    #[test]
    fn a_range_is_shown_where_the_runs_differ() {
        let shown = |values: &[f64]| spread(&Spread::new(values), 1);
        assert_eq!(shown(&[3.0, 3.04]), "3.0");
        assert_eq!(shown(&[3.0, 4.0]), "3.5 (3.0 to 4.0)");
        assert_eq!(shown(&[0.0, 0.0]), "0.0");
    }

    #[test]
    fn a_busy_machine_is_named() {
        let run = |lag: u64| {
            let identity = RunIdentity {
                scenario: Scenario::Spot,
                strategy: Strategy::None,
                seed: 1,
                speed: 1.0,
                nodes: 2,
                longest_lag: Duration::from_millis(lag),
            };
            summarize(&identity, Vec::new(), &[], Vec::new())
        };
        assert_eq!(warning(&[run(20), run(300)]), None);
        let text = warning(&[run(20), run(1500), run(400)]).unwrap();
        assert!(
            text.starts_with("In 2 of 3 runs") && text.contains("1.50 s late"),
            "{text}"
        );
    }
}
