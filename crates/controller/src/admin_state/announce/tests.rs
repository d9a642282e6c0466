use std::collections::BTreeMap as Map;

use headgate_clock::Clock;

use super::super::desired::Desired;
use super::super::fixtures::{DRAIN, PoolOf, book, desired, keys, line, node, view};
use super::super::plan::{Policy, plan};
use super::*;
use crate::admin_state::{AdminStateMode, ForeignDown};
use crate::pool::{Interfaces, Unread};

/// One load balancer as its editor would show it.
type Entries<'a> = [PoolOf<'a>];

struct Story {
    announcer: Announcer,
    desired: Desired,
    book: Book,
    clock: Clock,
    trouble: Option<Trouble>,
    unread: Vec<Unread>,
}

impl Story {
    fn new(nodes: &[ClusterNode], lines: &[(&str, u8, Stage)]) -> Self {
        let clock = Clock::anchored(jiff::Timestamp::UNIX_EPOCH);
        Self {
            announcer: Announcer::default(),
            desired: desired(nodes, clock.now()),
            book: book(lines),
            clock,
            trouble: None,
            unread: Vec::new(),
        }
    }

    fn observe(&self, pools: &Entries<'_>) -> Observed {
        let policy = Policy {
            mode: AdminStateMode::Enforce,
            foreign_down: ForeignDown::Keep,
        };
        let now = self.clock.now().mono;
        let plan = plan(
            &view(pools),
            &Interfaces::default(),
            &self.desired,
            &self.book,
            policy,
            now,
        );
        Observed {
            generation: Some(self.desired.generation),
            pending: plan.changes(),
            unsent: plan.changes(),
            standings: plan.standings,
            pools: plan.pools,
            unread: self.unread.clone(),
            trouble: self.trouble.clone(),
        }
    }

    /// What is told when this is seen: reasons, Nodes, notes. The ledger learns of it.
    fn look(&mut self, observed: &[Observed]) -> Vec<(&'static str, String, String)> {
        let told = self.announcer.look(&Sight {
            desired: &self.desired,
            book: &self.book,
            observed,
            mode: AdminStateMode::Enforce,
            blocked: None,
            now: self.clock.now(),
        });
        for line in told.lines {
            self.book.write(line);
        }
        let event = |event: Announcement| (event.kind.reason(), event.node.name.clone(), event.note);
        told.events.into_iter().map(event).collect()
    }

    fn sees(&mut self, pools: &Entries<'_>) -> Vec<(&'static str, String, String)> {
        let observed = self.observe(pools);
        self.look(&[observed])
    }

    fn stages(&self) -> Map<String, Stage> {
        let mut found = Map::new();
        for pool in ["p", "q"] {
            for number in 1..4 {
                let key = crate::pool::Key::written(&format!("10.0.0.{number}"));
                let record = self.book.record(&super::super::fixtures::pool_id(pool), &key);
                found.extend(record.map(|record| (format!("{pool}{number}"), record.stage)));
            }
        }
        found
    }
}

fn reasons<'a>(events: &'a [(&'static str, String, String)]) -> Vec<(&'static str, &'a str)> {
    events
        .iter()
        .map(|(reason, node, _)| (*reason, node.as_str()))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn one_event_for_each_transition() {
    let mut story = Story::new(&[node(1, &[DRAIN]), node(2, &[])], &[]);
    assert!(
        story
            .sees(&[("p", &[(1, "-"), (2, "-")], true), ("q", &[(1, "-"), (2, "-")], true)])
            .is_empty(),
        "not done"
    );
    story.book.write(line("p", 1, Stage::Intended));
    story.book.write(line("q", 1, Stage::Intended));
    assert!(
        story
            .sees(&[
                ("p", &[(1, "Down"), (2, "-")], true),
                ("q", &[(1, "-"), (2, "-")], true)
            ])
            .is_empty(),
        "half done"
    );
    let done: &Entries<'_> = &[
        ("p", &[(1, "Down"), (2, "-")], true),
        ("q", &[(1, "Down"), (2, "-")], true),
    ];
    let events = story.sees(done);
    assert_eq!(reasons(&events), [("LoadBalancerAdminStateDown", "n1")]);
    assert_eq!(events[0].2, "Down in lb/p, lb/q because of drain: no new connections.");
    assert_eq!(
        story.stages(),
        [("p1".to_owned(), Stage::Down), ("q1".to_owned(), Stage::Down)].into()
    );
    assert!(story.sees(done).is_empty(), "once");
    // Lost and repaired, or one more pool: the same transition.
    assert!(
        story
            .sees(&[
                ("p", &[(1, "-"), (2, "-")], true),
                ("q", &[(1, "Down"), (2, "-")], true)
            ])
            .is_empty()
    );
    assert!(story.sees(done).is_empty());

    story.desired.apply(node(1, &[]), &keys(), story.clock.now());
    assert!(story.sees(done).is_empty(), "a moment");
    tokio::time::advance(Duration::from_secs(1)).await;
    story.desired.touch();
    assert!(
        story
            .sees(&[
                ("p", &[(1, "None"), (2, "-")], true),
                ("q", &[(1, "Down"), (2, "-")], true)
            ])
            .is_empty()
    );
    let back: &Entries<'_> = &[
        ("p", &[(1, "None"), (2, "-")], true),
        ("q", &[(1, "None"), (2, "-")], true),
    ];
    let events = story.sees(back);
    assert_eq!(reasons(&events), [("LoadBalancerAdminStateNone", "n1")]);
    assert_eq!(events[0].2, "None again in lb/p, lb/q: new connections as probes say.");
    assert!(story.sees(back).is_empty(), "once");
    assert_eq!(story.stages()["p1"], Stage::Restored);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_before_every_load_balancer_has_looked() {
    let mut story = Story::new(&[node(1, &[])], &[("p", 1, Stage::Intended)]);
    let behind = story.observe(&[("q", &[(1, "-"), (2, "-")], true)]);
    story.desired.apply(node(1, &[DRAIN]), &keys(), story.clock.now());
    let done = story.observe(&[("p", &[(1, "Down"), (2, "-")], true)]);
    assert!(story.look(&[behind, done.clone()]).is_empty());
    let nothing = story.observe(&[("q", &[(2, "-")], true)]);
    let never = Observed::default();
    assert!(story.look(&[never, done.clone()]).is_empty());
    assert_eq!(
        reasons(&story.look(&[nothing, done])),
        [("LoadBalancerAdminStateDown", "n1")]
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_finds_it_told_tells_nothing() {
    let mut story = Story::new(&[node(1, &[DRAIN])], &[("p", 1, Stage::Down)]);
    assert!(story.sees(&[("p", &[(1, "Down"), (2, "-")], true)]).is_empty());
    // And nothing about what others did.
    let mut story = Story::new(&[node(1, &[DRAIN]), node(2, &[DRAIN])], &[]);
    assert!(story.sees(&[("p", &[(1, "Down"), (2, "Up")], true)]).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_has_no_effect_is_said() {
    let mut story = Story::new(
        &[node(1, &[DRAIN])],
        &[("p", 1, Stage::Intended), ("q", 1, Stage::Intended)],
    );
    let events = story.sees(&[
        ("p", &[(1, "Down"), (2, "-")], true),
        ("q", &[(1, "Down"), (2, "-")], false),
    ]);
    assert!(
        events[0]
            .2
            .ends_with("It has no effect in lb/q: no rule of it has a health probe."),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_taint_that_cloud_controller_manager_took_off_is_said() {
    let out_of_service = "node.kubernetes.io/out-of-service";
    let mut story = Story::new(&[node(1, &[out_of_service])], &[("p", 1, Stage::Down)]);
    story.desired.apply(node(1, &[]), &keys(), story.clock.now());
    tokio::time::advance(Duration::from_secs(1)).await;
    let events = story.sees(&[("p", &[(1, "None"), (2, "-")], true)]);
    assert!(
        events[0].2.contains("use cloudprovider.azure.microsoft.com/draining"),
        "{events:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_told_when_it_begins_when_it_changes_and_every_five_minutes() {
    let trouble = |class, code: &str| Some(Trouble::named(class, code, format!("ARM said {code}"), None));
    let mut story = Story::new(&[node(1, &[DRAIN])], &[]);
    let pools: &Entries<'_> = &[("p", &[(1, "-"), (2, "-")], true)];
    let told = |story: &mut Story| story.sees(pools).len();
    story.trouble = trouble(ErrorClass::Retriable, "Throttled");
    let events = story.sees(pools);
    assert_eq!(reasons(&events), [("LoadBalancerAdminStateUpdateFailed", "n1")]);
    assert_eq!(
        events[0].2,
        "Admin state not updated: ARM said Throttled; it is tried again."
    );
    assert_eq!(told(&mut story), 0);
    story.trouble = trouble(ErrorClass::Retriable, "Connection");
    assert_eq!(told(&mut story), 0, "they take turns");
    tokio::time::advance(ANOTHER).await;
    assert_eq!(told(&mut story), 1, "another one");
    tokio::time::advance(AGAIN).await;
    assert_eq!((told(&mut story), told(&mut story)), (1, 0), "again");
    story.trouble = trouble(ErrorClass::Terminal, "AuthorizationFailed");
    assert_eq!(told(&mut story), 1);
    tokio::time::advance(2 * AGAIN).await;
    assert_eq!(told(&mut story), 0, "once, for good");
    story.trouble = None;
    assert_eq!(told(&mut story), 0);
    story.trouble = trouble(ErrorClass::Terminal, "AuthorizationFailed");
    assert_eq!(told(&mut story), 1, "it had ended");
}

#[tokio::test(start_paused = true)]
async fn load_balancers_that_cannot_be_seen_are_a_failure_of_every_node_that_waits() {
    let mut story = Story::new(&[node(1, &[DRAIN]), node(2, &[])], &[]);
    let trouble = Trouble::named(
        ErrorClass::Terminal,
        "AuthorizationFailed",
        "ARM answered 403".to_owned(),
        None,
    );
    let told = story.announcer.look(&Sight {
        desired: &story.desired,
        book: &story.book,
        observed: &[],
        mode: AdminStateMode::Enforce,
        blocked: Some(&trouble),
        now: story.clock.now(),
    });
    let events: Vec<_> = told
        .events
        .iter()
        .map(|event| (event.kind, event.node.name.as_str()))
        .collect();
    assert_eq!(events, [(Kind::UpdateFailed, "n1")]);
}

#[tokio::test(start_paused = true)]
async fn an_interface_that_cannot_be_read_is_told_to_whom_it_may_belong() {
    let nodes = [node(1, &[DRAIN]), node(2, &[DRAIN]), node(3, &[])];
    let mut story = Story::new(
        &nodes,
        &[("p", 1, Stage::Down), ("q", 1, Stage::Down), ("q", 2, Stage::Down)],
    );
    story.unread = vec![Unread {
        pool: super::super::fixtures::pool_id("p"),
        trouble: Trouble::named(
            ErrorClass::Terminal,
            "AuthorizationFailed",
            "nic cannot be read".to_owned(),
            None,
        ),
    }];
    let pools: &Entries<'_> = &[
        ("p", &[(1, "Down"), (8, "-")], true),
        ("q", &[(1, "Down"), (2, "Down"), (8, "-")], true),
    ];
    let events = story.sees(pools);
    assert_eq!(
        reasons(&events),
        [("LoadBalancerAdminStateUpdateFailed", "n2")],
        "node 1 is found there, node 3 has no signal"
    );
    assert!(
        events[0]
            .2
            .starts_with("Admin state not updated: nic cannot be read; it is tried again now and then")
    );
    assert!(story.sees(pools).is_empty(), "once");
    story.unread[0].trouble.class = ErrorClass::Retriable;
    assert_eq!(story.sees(pools).len(), 1, "another class");
    tokio::time::advance(AGAIN).await;
    assert_eq!(story.sees(pools).len(), 1, "again");
    // What was planned before its signal was seen says nothing of it.
    let before = story.observe(pools);
    story.desired.apply(node(3, &[DRAIN]), &keys(), story.clock.now());
    assert!(story.look(&[before]).is_empty());
    assert_eq!(
        reasons(&story.sees(pools)),
        [("LoadBalancerAdminStateUpdateFailed", "n3")]
    );
    // What is in the way of an entry of its own comes first.
    let other: &Entries<'_> = &[
        ("p", &[(1, "Down"), (8, "-")], true),
        ("q", &[(2, "-"), (8, "-")], true),
    ];
    story.trouble = Some(Trouble::named(
        ErrorClass::Terminal,
        "ScopeLocked",
        "locked".to_owned(),
        None,
    ));
    let events = story.sees(other);
    assert!(events.len() == 1 && events[0].2.contains("locked"), "{events:?}");
    story.unread.clear();
    story.trouble = None;
    assert!(story.sees(pools).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pool_without_an_eligible_address_is_told_once() {
    let mut story = Story::new(&[node(1, &[DRAIN]), node(2, &[DRAIN])], &[]);
    let pools: &Entries<'_> = &[("p", &[(1, "-"), (2, "-")], true), ("q", &[(1, "-"), (9, "-")], true)];
    let events = story.sees(pools);
    assert_eq!(reasons(&events), [("LoadBalancerPoolHasNoEligibleAddress", "n1")]);
    assert!(story.sees(pools).is_empty());
    story.desired.apply(node(2, &[]), &keys(), story.clock.now());
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(story.sees(pools).is_empty());
    story.desired.apply(node(2, &[DRAIN]), &keys(), story.clock.now());
    assert_eq!(story.sees(pools).len(), 1, "again");
}

#[test]
fn notes_fit() {
    let note = cut("ö".repeat(900));
    assert!(note.len() <= 1024 && note.ends_with('…'), "{}", note.len());
    assert_eq!(cut("short".to_owned()), "short");
}
