use std::net::IpAddr;

use headgate_kubernetes::leader::LeaderStatus;
use headgate_test_kubernetes::assert_contains;
use jiff::Timestamp;

use super::*;
use crate::agent_status::KeptServiceStatus;
use crate::status::LocalPoolRow;
use crate::status::report::{LeaderWork, LedgerRow, MarkerRow, RuleRow, SignalRow, VerdictRow};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn entry(load_balancer: &str, state: &'static str) -> EntryRow {
    EntryRow {
        load_balancer: load_balancer.to_owned(),
        pool: "kubernetes".to_owned(),
        entry: Some("10.0.0.1".to_owned()),
        admin_state: Some(state),
        ..EntryRow::default()
    }
}

fn rule(name: &str, path: Option<&str>, target: ProbeTarget) -> RuleRow {
    RuleRow {
        name: name.to_owned(),
        probe: path.map(|path| ProbeRow {
            protocol: "Http".to_owned(),
            port: 10456,
            path: Some(path.to_owned()),
        }),
        target,
    }
}

pub(crate) fn report() -> StatusReport {
    let signal = SignalRow {
        name: "drain".to_owned(),
        health: true,
        admin_state: true,
    };
    let node = |name: &str, signals: Vec<SignalRow>, code, answered, entries| NodeRow {
        name: name.to_owned(),
        address: Some(IpAddr::from([10, 0, 0, 1])),
        ready: true,
        signals,
        verdict: VerdictRow {
            healthz: Some(code),
            answered,
            ..VerdictRow::default()
        },
        entries,
        ..NodeRow::default()
    };
    let ours = EntryRow {
        owner: Some(Owner::Headgate),
        stage: Some("down"),
        since: Some(at(940)),
        ..entry("kubernetes", "Down")
    };
    let pending = EntryRow {
        pending: true,
        becomes: Some("Down"),
        ..entry("internal", "None")
    };
    let foreign = EntryRow {
        owner: Some(Owner::Foreign),
        ..entry("kubernetes", "Down")
    };
    let pool = |rules, down| PoolRow {
        name: "kubernetes".to_owned(),
        entries: 3,
        down,
        desired_down: 1,
        rules,
        ..PoolRow::default()
    };
    let load_balancer = |name: &str, pool, not_considered: &[&str]| LoadBalancerRow {
        name: name.to_owned(),
        id: format!("/{name}"),
        configured: true,
        pools: vec![pool],
        not_considered: not_considered.iter().map(ToString::to_string).collect(),
        ..LoadBalancerRow::default()
    };
    let probed = |name| rule(name, Some("/healthz"), ProbeTarget::Headgate);
    StatusReport {
        taken_at: at(1000),
        leader: Some(LeaderStatus {
            holder: Some("n3_0a".to_owned()),
            since: Some(at(400)),
            renewed: Some(at(999)),
            alive: true,
            term: 7,
            candidates: Some(3),
        }),
        mode: "Enforce",
        foreign_down: "Keep",
        minimum_in_service: "1".to_owned(),
        health_port: 10456,
        probed_by_headgate: Some(true),
        nodes_total: 3,
        selection: Selection::Notable,
        nodes: vec![
            node("n1", vec![signal.clone(), signal], 503, true, vec![ours, pending]),
            node("n2", Vec::new(), 200, false, vec![foreign]),
        ],
        load_balancers: vec![
            load_balancer(
                "kubernetes",
                pool(vec![probed("a"), probed("b"), rule("c", None, ProbeTarget::NoProbe)], 2),
                &["outbound"],
            ),
            load_balancer("internal", pool(vec![probed("a")], 0), &[]),
        ],
        unmatched_ledger: vec![LedgerRow {
            load_balancer: "kubernetes".to_owned(),
            pool: "kubernetes".to_owned(),
            entry: "10.0.0.9".to_owned(),
            stage: "down",
            since: at(880),
            admin_state: None,
            unreadable: None,
        }],
        ..StatusReport::default()
    }
}

#[test]
fn narrow_text() {
    let expected = "\
Leader:        n3_0a since 1970-01-01T00:06:40Z (10m), term 7, renewed 1s ago
Admin states:  mode Enforce, foreign Down: Keep, by the given settings

NODE   /healthz   SIGNALS     1              2
n1     503        drain, +1   Down ours      None→Down pending
n2     200?       -           Down foreign   -

2 of 3 nodes: those with a signal, an admin state or a ledger entry; --all shows all. \"?\" means that the agent was not queried or did not answer: the code follows from the Node's signals.

#   LOAD BALANCER   POOL         ENTRIES   DOWN   RULES     PROBE                  TARGET
1   kubernetes      kubernetes   3         2      2 rules   Http :10456/healthz    headgate
                                                  c         none                   no probe: Down has no effect
    kubernetes      outbound                      -         -                      not considered: no rule uses it
2   internal        kubernetes   3         0      a         Http :10456/healthz    headgate

1 of 3 rules of kubernetes/kubernetes have no probe: Down has no effect on them.
The ledger has 10.0.0.9 of kubernetes/kubernetes as down for 2m; the pool entry was not found.
";
    let rendered = render(&report(), Detail::Narrow);
    let plain = |text: &str| {
        text.lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
    };
    assert_eq!(plain(&rendered), plain(expected), "{rendered}");
}

#[test]
fn nodes_with_the_condition_have_a_column() {
    let mut report = report();
    report.nodes[0].out_of_load_balancers = Some(MarkerRow {
        status: "True".to_owned(),
        reason: "AdminStateDown".to_owned(),
        message: "m".to_owned(),
    });
    let column = |detail, row: usize| {
        let rendered = render(&report, detail);
        let rows: Vec<&str> = rendered.lines().skip_while(|line| !line.starts_with("NODE")).collect();
        let start = rows[0].find("OUT").unwrap();
        rows[row][start..].split("  ").next().unwrap().to_owned()
    };
    assert_eq!(
        (column(Detail::Narrow, 1), column(Detail::Narrow, 2)),
        ("True".to_owned(), "-".to_owned())
    );
    assert_eq!(column(Detail::Wide, 1), "True AdminStateDown");
}

#[test]
fn unused_pool_with_a_ledger_entry_has_a_column() {
    let mut report = report();
    report.nodes[1].entries.push(EntryRow {
        pool: "outbound".to_owned(),
        owner: Some(Owner::Headgate),
        stage: Some("down"),
        since: Some(at(940)),
        pending: true,
        becomes: Some("None"),
        ..entry("kubernetes", "Down")
    });
    let rendered = render(&report, Detail::Narrow);
    let plain: Vec<_> = rendered
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for line in [
        "NODE /healthz SIGNALS 1 2 3",
        "n2 200? - Down foreign - Down→None pending ours",
        "3 kubernetes outbound - - no rule uses it any more: headgate restores its own entries",
    ] {
        assert!(
            plain.iter().any(|known| known == line),
            "{line:?} is not in\n{rendered}"
        );
    }
}

#[test]
fn wide_text_has_names_stages_and_each_rule() {
    let mut report = report();
    report.load_balancers[1].name = "Internal".to_owned();
    let rendered = render(&report, Detail::Wide);
    assert_contains!(
        rendered,
        "kubernetes/kubernetes",
        "Internal/kubernetes",
        "Down ours (down 1m)",
        "drain, drain",
        "ANSWERED"
    );
    assert!(!rendered.contains("2 rules"), "{rendered}");
}

#[test]
fn only_notable_pools_are_shown_when_there_are_many() {
    let mut report = report();
    let mut many = report.load_balancers[1].clone();
    for number in 0..20 {
        many.name = format!("more-{number}");
        report.load_balancers.push(many.clone());
        report.nodes[0]
            .entries
            .push(entry(&many.name, if number == 17 { "Up" } else { "None" }));
    }
    let rendered = render(&report, Detail::Narrow);
    let header: Vec<_> = rendered.lines().nth(3).unwrap().split_whitespace().collect();
    assert_eq!(header[3..], ["1", "2", "20"], "{rendered}");
    assert_contains!(rendered, "19 more pools are not shown; -o wide shows all.");
}

#[test]
fn unknown_parts_are_named() {
    let mut report = report();
    report.azure_error = Some("no file".to_owned());
    report.ledger_error = Some("forbidden".to_owned());
    report.leader = None;
    report.probed_by_headgate = Some(false);
    report.load_balancers.clear();
    let rendered = render(&report, Detail::Narrow);
    assert_contains!(
        rendered,
        "Leader:        none: there is no Lease",
        "Azure:         not queried: no file",
        "as down for 2m; the pool entry was not looked for.",
        "Ledger:        forbidden",
        "No rule's probe targets headgate (Http :10456/healthz)"
    );
    report.unattributed = vec!["an interface is not known".to_owned()];
    report.nodes[0].unidentified = true;
    assert_contains!(
        render(&report, Detail::Narrow),
        "Pool entries may belong to any Node: an interface is not known.",
        "Pool entries may belong to n1: the Node lacks an InternalIP"
    );
    report.leader_error = Some("refused".to_owned());
    report.leader_work = Some(LeaderWork {
        nodes_stale_since: Some(at(600)),
        ..LeaderWork::default()
    });
    assert_contains!(
        render(&report, Detail::Narrow),
        "Leader:        not known: refused",
        "Nodes:         not confirmed since 1970-01-01T00:10:00Z: nothing is written"
    );
}

#[test]
fn expired_or_released_lease_has_no_leader() {
    let mut report = report();
    let leader = report.leader.as_mut().unwrap();
    leader.alive = false;
    leader.renewed = Some(at(100));
    assert!(render(&report, Detail::Narrow).contains("none: n3_0a was the last one, and renewed the Lease 15m ago"));
    report.leader.as_mut().unwrap().holder = None;
    assert!(render(&report, Detail::Narrow).contains("none: the Lease was released 15m ago"));
}

/// The pool of a Service, with this name for every string of others.
fn local_pool(name: &str) -> LocalPoolRow {
    LocalPoolRow {
        service: name.to_owned(),
        family: "IPv4".to_owned(),
        pool: Some(name.to_owned()),
        unavailable: None,
        desired: Some(vec![[10, 0, 0, 1].into(), [10, 0, 0, 2].into()]),
        actual: vec![[10, 0, 0, 1].into()],
        missing: vec![[10, 0, 0, 2].into()],
        surplus: Vec::new(),
        left_out: vec![name.to_owned()],
    }
}

#[test]
fn pools_of_local_services_have_a_table() {
    let mut report = report();
    assert!(!render(&report, Detail::Wide).contains("LOCAL SERVICE"));
    report.local_pools = vec![local_pool("default/web")];
    let rendered = render(&report, Detail::Narrow);
    let expected = "LOCAL SERVICE   POOL          DESIRED   ACTUAL   DUE\n\
                    default/web     default/web   2         1        missing 10.0.0.2\n";
    assert!(rendered.contains(expected), "{rendered}");
    report.local_pools_error = Some("services cannot be listed".to_owned());
    assert!(render(&report, Detail::Narrow).contains("are not known: services cannot be listed."));
}

/// Ends the line, clears the screen (as ESC and as C1), and turns the text around.
const HOSTILE: &str = "a\n\u{1b}[2J\u{9b}2J\u{202e}b";
const ESCAPED: &str = "a\\n\\u{1b}[2J\\u{9b}2J\\u{202e}b";

/// The report with `name` for every string of others.
fn named(name: &str) -> StatusReport {
    let mut report = report();
    if let Some(leader) = &mut report.leader {
        leader.holder = Some(name.to_owned());
    }
    report.azure_error = Some(name.to_owned());
    report.ledger_error = Some(name.to_owned());
    report.local_pools = vec![local_pool(name)];
    report.probed_by_headgate = Some(false);
    for node in &mut report.nodes {
        node.name = name.to_owned();
        node.verdict.answered = false;
        node.verdict.why = Some(name.to_owned());
        node.verdict.kept_services = vec![KeptServiceStatus {
            service: name.to_owned(),
            why: name.to_owned(),
        }];
        for signal in &mut node.signals {
            signal.name = name.to_owned();
        }
        for entry in &mut node.entries {
            entry.load_balancer = name.to_owned();
            entry.pool = name.to_owned();
            entry.entry = Some(name.to_owned());
        }
    }
    for load_balancer in &mut report.load_balancers {
        load_balancer.name = name.to_owned();
        load_balancer.busy = true;
        load_balancer.not_considered = vec![name.to_owned()];
        for pool in &mut load_balancer.pools {
            pool.name = name.to_owned();
            pool.down_without_node = vec![name.to_owned()];
            for rule in &mut pool.rules {
                rule.name = name.to_owned();
                rule.probe = Some(ProbeRow {
                    protocol: name.to_owned(),
                    port: 1,
                    path: Some(name.to_owned()),
                });
            }
        }
    }
    report.unmatched_ledger = vec![LedgerRow {
        load_balancer: name.to_owned(),
        pool: name.to_owned(),
        entry: name.to_owned(),
        stage: "down",
        since: at(900),
        admin_state: Some("Down"),
        unreadable: Some(name.to_owned()),
    }];
    report
}

#[test]
fn what_others_sent_is_text_on_one_line() {
    for detail in [Detail::Narrow, Detail::Wide] {
        let text = render(&named(HOSTILE), detail);
        assert!(
            !text.chars().any(|c| c != '\n' && (c.is_control() || c == '\u{202e}')),
            "{text:?}"
        );
        assert_eq!(
            text.lines().count(),
            render(&named("a"), detail).lines().count(),
            "{text}"
        );
        let mut without_leader = named(HOSTILE);
        without_leader.leader_error = Some(HOSTILE.to_owned());
        assert!(render(&without_leader, detail).contains(&format!("not known: {ESCAPED}\n")));
        assert_contains!(
            text,
            format!("Leader:        {ESCAPED} since "),
            format!("not queried: {ESCAPED}\n"),
            format!("Ledger:        {ESCAPED}\n"),
            format!("ARM is busy with {ESCAPED}:"),
            format!("The ledger has {ESCAPED} of {ESCAPED}/{ESCAPED} as down"),
            format!("{ESCAPED} :1{ESCAPED}")
        );
    }
}
