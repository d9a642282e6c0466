//! Under which conditions the runs on a page were made: what a reader needs to repeat them.

use std::fmt::Write as _;

use super::first_answer;
use super::page::escape;
use super::saved::{SavedRun, ScenarioRuns};
use crate::conditions::Conditions;

/// The conditions of a scenario's runs: a table, or one for each kind of conditions with its strategies.
pub(super) fn section(group: &ScenarioRuns<'_>) -> String {
    let mut html = String::from("<h3>Conditions of these runs</h3>\n");
    let runs: Vec<&SavedRun> = group
        .strategies
        .iter()
        .flat_map(|strategy| strategy.runs.iter().copied())
        .collect();
    let mut kinds: Vec<(Kind<'_>, Vec<&SavedRun>)> = Vec::new();
    for run in runs {
        let kind = (run.speed, run.conditions.as_ref());
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, members)) => members.push(run),
            None => kinds.push((kind, vec![run])),
        }
    }
    let are_mixed = kinds.len() > 1;
    for ((speed, conditions), members) in kinds {
        if are_mixed {
            let mut names: Vec<_> = members.iter().map(|run| escape(&run.strategy)).collect();
            names.dedup();
            // Writing to a String does not fail.
            let _ = writeln!(html, "<p>Of {}:</p>", names.join(", "));
        }
        html.push_str("<table class=\"conditions\">\n");
        let mut facts = general(speed, &members);
        match conditions {
            Some(conditions) => facts.extend(stated(conditions)),
            None => facts.push(("other conditions", "not stated in these results".to_owned())),
        }
        for (name, value) in facts {
            let _ = writeln!(
                html,
                "<tr><th scope=\"row\">{name}</th><td>{}</td></tr>",
                escape(&value)
            );
        }
        html.push_str("</table>\n");
    }
    html
}

/// Speed and conditions.
type Kind<'a> = (f64, Option<&'a Conditions>);

fn general(speed: f64, runs: &[&SavedRun]) -> Vec<(&'static str, String)> {
    let mut seeds: Vec<_> = runs.iter().map(|run| run.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    let seeds = match seeds.as_slice() {
        [first, .., last] => format!("{} seeds, {first} to {last}", seeds.len()),
        [only] => only.to_string(),
        [] => String::new(),
    };
    let lag = runs.iter().map(|run| run.longest_lag_seconds).fold(0.0, f64::max);
    vec![
        ("speed", format!("{speed} scenario seconds for each real second")),
        ("seeds", seeds),
        (
            "longest lag",
            format!("a client began a connection at most {lag:.3} real seconds late"),
        ),
    ]
}

fn stated(conditions: &Conditions) -> Vec<(&'static str, String)> {
    let version = match &conditions.commit {
        Some(commit) => format!("{}, commit {commit}", conditions.version),
        None => format!("{}, commit not stated", conditions.version),
    };
    vec![
        ("headgate", version),
        ("nodes", conditions.nodes.to_string()),
        ("new connections", format!("{} for each real second", conditions.rate)),
        (
            "long-lived connections",
            format!(
                "{} at once, each for at most {} s{}",
                conditions.long_lived,
                conditions.connection_lifetime_seconds,
                if conditions.has_mixed_lifetimes {
                    "; lifetimes are drawn from the drill's table, and some are idle"
                } else {
                    ""
                }
            ),
        ),
        (
            "probes",
            format!(
                "every {} s with a timeout of {} s; {} failures in a row take a node out{}, {} successes let it back{}",
                conditions.probe_interval_seconds,
                conditions.probe_timeout_seconds,
                conditions.probe_failures,
                first_answer(&conditions.probe_rule),
                conditions.probe_successes,
                match conditions.probers {
                    0 | 1 => String::new(),
                    probers => format!("; {probers} probers of each node"),
                }
            ),
        ),
        ("while all backends are down", conditions.no_healthy_backends.clone()),
        (
            "admin states",
            format!(
                "an operation takes {} s{}, and takes effect {} s later; Azure publishes no time{}{}{}",
                conditions.operation_seconds,
                if conditions.operation_spread > 0.0 {
                    format!(" ± {} %", conditions.operation_spread * 100.0)
                } else {
                    String::new()
                },
                conditions.propagation_seconds,
                if conditions.admin_down_resets {
                    "; Down resets established connections"
                } else {
                    ""
                },
                pool(conditions),
                [
                    ("settings of the emulator", &conditions.azure_settings),
                    ("its faults", &conditions.arm_faults),
                    ("negative control", &conditions.negative_control),
                ]
                .into_iter()
                .filter(|(_, stated)| !stated.is_empty())
                .map(|(what, stated)| format!("; {what}: {stated}"))
                .collect::<Vec<_>>()
                .concat(),
            ),
        ),
        (
            "nodes are removed by",
            format!(
                "{}; deletion or eviction {} s after the signal{}",
                conditions.autoscaler,
                conditions.delete_delay_seconds,
                if conditions.power_off == "reset" {
                    "; a machine that is switched off resets connections"
                } else {
                    ""
                }
            ),
        ),
        (
            "annotations delay a deletion",
            format!(
                "by at most {} s, in the strategy connections",
                conditions.deletion_delay_timeout_seconds
            ),
        ),
        ("notice of a spot machine", format!("{} s", conditions.notice_seconds)),
        (
            "Pods",
            format!(
                "preStop sleep {} s in strategies that have one, {} s of serving after SIGTERM in a rolling update, {} s \
                 until the next Pod is ready",
                conditions.pre_stop_seconds, conditions.shutdown_seconds, conditions.restart_seconds
            ),
        ),
    ]
}

/// What of the pool is not as usual.
fn pool(conditions: &Conditions) -> String {
    let mut text = String::new();
    if conditions.pool_members == "nic" {
        text.push_str("; the pool has network interfaces");
    }
    if conditions.deleted_machines == "leave" {
        text.push_str("; a machine that is deleted leaves the pool");
    }
    if conditions.other_writer_seconds > 0.0 {
        // Writing to a String does not fail.
        let _ = write!(
            text,
            "; another program writes it, {} s after each of its writes",
            conditions.other_writer_seconds
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::report::saved::{group, tests::runs};

    #[test]
    fn every_condition_is_said_and_the_usual_ones_are_short() {
        let unusual = Conditions {
            version: "1.2.3".to_owned(),
            nodes: 4,
            rate: 60.0,
            long_lived: 30,
            connection_lifetime_seconds: 20.0,
            has_mixed_lifetimes: true,
            probe_rule: "first-non-200".to_owned(),
            probers: 2,
            power_off: "reset".to_owned(),
            admin_down_resets: true,
            operation_spread: 0.5,
            azure_settings: "{}".to_owned(),
            negative_control: "observe".to_owned(),
            ..Conditions::default()
        };
        let text = |conditions: &Conditions| {
            let lines = stated(conditions)
                .into_iter()
                .map(|(name, value)| format!("{name}: {value}\n"));
            lines.collect::<Vec<_>>().concat()
        };
        expect![[r"
            headgate: 1.2.3, commit not stated
            nodes: 4
            new connections: 60 for each real second
            long-lived connections: 30 at once, each for at most 20 s; lifetimes are drawn from the drill's table, and some are idle
            probes: every 0 s with a timeout of 0 s; 0 failures in a row take a node out, of HTTP the first answer other than 200, 0 successes let it back; 2 probers of each node
            while all backends are down: 
            admin states: an operation takes 0 s ± 50 %, and takes effect 0 s later; Azure publishes no time; Down resets established connections; settings of the emulator: {}; negative control: observe
            nodes are removed by: ; deletion or eviction 0 s after the signal; a machine that is switched off resets connections
            annotations delay a deletion: by at most 0 s, in the strategy connections
            notice of a spot machine: 0 s
            Pods: preStop sleep 0 s in strategies that have one, 0 s of serving after SIGTERM in a rolling update, 0 s until the next Pod is ready
        "]].assert_eq(&text(&unusual));
        expect![[r"
            headgate: , commit not stated
            nodes: 0
            new connections: 0 for each real second
            long-lived connections: 0 at once, each for at most 0 s
            probes: every 0 s with a timeout of 0 s; 0 failures in a row take a node out, 0 successes let it back
            while all backends are down: 
            admin states: an operation takes 0 s, and takes effect 0 s later; Azure publishes no time
            nodes are removed by: ; deletion or eviction 0 s after the signal
            annotations delay a deletion: by at most 0 s, in the strategy connections
            notice of a spot machine: 0 s
            Pods: preStop sleep 0 s in strategies that have one, 0 s of serving after SIGTERM in a rolling update, 0 s until the next Pod is ready
        "]].assert_eq(&text(&Conditions {
            probers: 1,
            ..Conditions::default()
        }));
    }

    #[test]
    fn conditions_are_stated_once_or_for_each_kind() {
        let mut runs = runs();
        let stated = |commit: &str| {
            Some(Conditions {
                version: "1.2.3".to_owned(),
                commit: Some(commit.to_owned()),
                nodes: 6,
                ..Conditions::default()
            })
        };
        for run in &mut runs {
            run.conditions = stated("abc");
        }
        let html = section(&group(&runs)[0]);
        assert_eq!(html.matches("<table").count(), 1, "{html}");
        for expected in [
            "1.2.3, commit abc",
            "2 seeds, 1 to 2",
            "10 scenario seconds",
            "0.012 real seconds",
        ] {
            assert!(html.contains(expected), "{expected} in {html}");
        }
        runs[2].conditions = stated("def");
        let html = section(&group(&runs)[0]);
        assert_eq!(html.matches("<table").count(), 2, "{html}");
        assert!(
            html.contains("<p>Of none:</p>") && html.contains("<p>Of admin-state:</p>"),
            "{html}"
        );
        runs[2].conditions = Some(Conditions {
            pool_members: "nic".to_owned(),
            deleted_machines: "leave".to_owned(),
            other_writer_seconds: 2.0,
            ..Conditions::default()
        });
        let html = section(&group(&runs)[0]);
        let expected = "no time; the pool has network interfaces; a machine that is deleted leaves the pool; another program writes \
                        it, 2 s after each of its writes";
        assert!(html.contains(expected), "{html}");
        runs[2].conditions = None;
        assert!(section(&group(&runs)[0]).contains("not stated in these results"));
    }
}
