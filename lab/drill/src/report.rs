//! The results of a drill as a table for people, and what they assume. The page with plots is [`page`].

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use crate::drill::{Options, Roll};
use crate::result::{Event, RunResult, float, is_too_late};
use crate::spread::Spread;

pub mod comparison;
mod facts;
mod model;
pub mod page;
mod plot;
pub mod saved;

use saved::group;

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
pub fn table(results: &[RunResult]) -> String {
    let groups = group(results);
    let rows = || groups.iter().flat_map(|group| &group.strategies);
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(HEADER);
    for row in rows() {
        table.add_row([
            name(row.strategy),
            row.runs.len().to_string(),
            format!(
                "{} ({:.2} %)",
                spread(&row.spread(|run| float(run.failed)), 0),
                row.spread(|run| run.failed_share).mean * 100.0
            ),
            spread(&row.spread(|run| run.blackhole_seconds), 1),
            seconds(row.after_signal(&Event::Signal, &Event::OutOfRotation)),
            seconds(row.after_signal(&Event::Signal, &Event::NodeGone)),
            spread(
                &row.spread(|run| float(run.established_at_signal.unwrap_or_default())),
                0,
            ),
            spread(&row.spread(|run| float(run.established_lost)), 0),
            spread(&row.spread(|run| float(run.established_lost_before_node_gone)), 0),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{table}\n");
    for row in rows() {
        if let Some(bound) = row.bound() {
            let (attempted, _) = row.connections();
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "{}: 0 of {attempted} new connections failed: {bound}.",
                name(row.strategy)
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
    use crate::conditions::Conditions;
    use crate::drill::options_of_a_test as options;
    use crate::report::saved::tests::run;
    use crate::result::{RunIdentity, summarize};
    use crate::scenario::Scenario;
    use crate::strategy::Strategy;

    #[test]
    fn a_row_shows_means_and_ranges() {
        let mut runs = [
            run(Strategy::None, 1, 12),
            run(Strategy::AdminState, 1, 0),
            run(Strategy::KubeProxy, 1, 3),
            run(Strategy::None, 2, 6),
        ];
        runs[1].conditions = Some(Conditions {
            nodes: 4,
            ..Conditions::default()
        });
        runs[2].timeline.retain(|event| event.event != Event::OutOfRotation);
        expect![[r"
             strategy     runs    new connections failed  blackhole seconds  out of rotation after  gone after  open through the node  established connections cut  before the node was gone
             none            2  15.0 (10 to 20) (3.75 %)  9.0 (6.0 to 12.0)  14.0 (11.0 to 17.0) s       5.0 s                      4                            3                         1
             admin-state     1                0 (0.00 %)                0.0                  5.0 s       5.0 s                      4                            3                         1
             kube-proxy      1                5 (1.25 %)                3.0                  never       5.0 s                      4                            3                         1
            admin-state: 0 of 400 new connections failed: black hole at most 1.20 s a run at 95 %.
        "]].assert_eq(&table(&runs).replace(" \n", "\n"));
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
