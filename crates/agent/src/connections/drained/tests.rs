use proptest::prelude::*;

use super::super::count::ServiceConnections;
use super::*;

fn count(connections: u64) -> ConnectionCount {
    let row = ServiceConnections {
        service: "default/web".to_owned(),
        tcp: connections,
        udp: 3,
    };
    ConnectionCount {
        services: (connections > 0).then_some(row).into_iter().collect(),
        ..ConnectionCount::default()
    }
}

fn unreliable() -> ConnectionCount {
    ConnectionCount {
        unreliable: Some("Cilium".to_owned()),
        ..ConnectionCount::default()
    }
}

/// Counts of one node, second by second.
struct World {
    connections: Connections,
    start: Instant,
    second: u64,
}

impl World {
    fn new() -> Self {
        Self {
            connections: Connections::default(),
            start: Instant::now(),
            second: 0,
        }
    }

    fn now(&self) -> Instant {
        self.start + Duration::from_secs(self.second)
    }

    fn at(&mut self, second: u64) -> &mut Self {
        self.second = second;
        self
    }

    fn node(&mut self, is_signalled: bool, is_out: bool) -> &mut Self {
        let now = self.now();
        self.connections.observe_node(is_signalled, is_out, now);
        self
    }

    fn ordered(&mut self) -> &mut Self {
        let now = self.now();
        self.connections.observe_order(now);
        self
    }

    fn counted(&mut self, began: u64, outcome: Result<ConnectionCount, String>) -> &mut Self {
        let began_at = self.start + Duration::from_secs(began);
        let now = self.now();
        self.connections
            .observe_count(began_at, outcome, now, Timestamp::UNIX_EPOCH);
        self
    }

    fn condition(&self) -> MarkerCondition {
        self.connections.state(self.now()).condition()
    }

    fn reason(&self) -> &'static str {
        self.condition().reason
    }

    /// The reason after a count that began and ended in this second.
    fn counts(&mut self, second: u64, connections: u64) -> &'static str {
        self.at(second).counted(second, Ok(count(connections))).reason()
    }

    /// The reason after a failure in this second.
    fn fails(&mut self, second: u64, why: &str) -> &'static str {
        self.at(second).counted(second, Err(why.to_owned())).reason()
    }
}

#[test]
fn true_follows_two_zeros_that_follow_the_load_balancers() {
    let mut world = World::new();
    assert_eq!(world.reason(), "NoSignal");
    // A count without a signal is of an earlier one.
    assert_eq!(world.counts(0, 0), "NoSignal");
    assert_eq!(world.node(true, false).reason(), "NotCountedYet");
    assert_eq!(world.counts(1, 0), "NotOutOfLoadBalancers");
    assert_eq!(world.counts(2, 0), "NotOutOfLoadBalancers");
    assert_eq!(world.at(3).node(true, true).reason(), "Confirming");
    let early = world.at(4).counted(2, Ok(count(0))).reason();
    assert_eq!(early, "Confirming", "it began before the node was out");
    assert_eq!(world.at(5).counted(4, Ok(count(0))).reason(), "Confirming");
    assert_eq!(world.counts(6, 0), "NoConnections");
    assert_eq!(world.counts(7, 1), "ConnectionsOpen");
    assert_eq!(world.counts(8, 0), "Confirming");
    assert_eq!(world.fails(9, "no right"), "NotCounted");
    assert_eq!(world.counts(10, 0), "Confirming", "begins anew");
    assert_eq!(world.at(11).node(true, false).reason(), "NotOutOfLoadBalancers");
    world.at(12).node(true, true);
    assert_eq!(world.counts(12, 0), "Confirming");
    assert_eq!(world.node(false, true).reason(), "NoSignal");
    let anew = world.at(13).node(true, true).reason();
    assert_eq!(anew, "NotCountedYet", "nothing is left of before");
}

#[test]
fn what_cannot_be_counted_is_unknown() {
    let mut world = World::new();
    assert_eq!(world.node(true, true).at(44).reason(), "NotCountedYet");
    assert_eq!(world.at(45).reason(), "NotCounted");
    assert!(world.condition().message.contains("Services are not listed yet"));
    let mut world = World::new();
    assert_eq!(world.node(true, true).ordered().at(14).reason(), "NotCountedYet");
    assert_eq!(world.at(15).reason(), "NotCounted");
    assert!(world.condition().message.contains("no counter has reported"));
    assert_eq!(world.counted(15, Ok(unreliable())).reason(), "NotCounted");
    assert_eq!(world.counted(15, Ok(unreliable())).reason(), "NotCounted");
    // A list that failed may succeed before the first count is due; the counter itself says that it cannot count.
    let mut world = World::new();
    let refused = "Services cannot be listed: refused";
    world.node(true, true);
    assert_eq!(world.fails(0, refused), "NotCountedYet");
    assert_eq!(world.fails(44, refused), "NotCountedYet");
    assert_eq!(world.at(45).reason(), "NotCounted");
    assert_eq!(
        world.condition().message,
        format!("Connections are not counted: {refused}.")
    );
    assert_eq!(world.ordered().at(59).reason(), "NotCountedYet", "they are listed now");
    assert_eq!(world.ordered().at(60).reason(), "NotCounted", "no counter");
    let mut world = World::new();
    world.node(true, true).ordered();
    assert_eq!(world.fails(0, "no right"), "NotCounted");
    // Other Services are no more countable.
    assert_eq!(world.ordered().reason(), "NotCounted");
    // A failure does not take back what was counted shortly before.
    let mut world = World::new();
    world.node(true, true).ordered();
    world.counts(20, 50);
    assert_eq!(world.fails(21, "interrupted"), "ConnectionsOpen");
    let changes_at = world.connections.changes_at(world.now());
    assert_eq!(changes_at, Some(world.start + Duration::from_secs(80)));
    assert_eq!(world.at(79).reason(), "ConnectionsOpen");
    assert_eq!(world.at(80).reason(), "NotCounted");
    world.counts(80, 0);
    assert_eq!(world.counts(80, 0), "NoConnections");
    assert_eq!(world.at(140).reason(), "NotCounted", "the counter is gone");
    assert_eq!(world.connections.view(world.now()).last, None);
    assert_eq!(world.counts(140, 0), "Confirming", "the zeros before are too old");
    assert_eq!(world.counts(140, 0), "NoConnections");
    assert_eq!(world.ordered().reason(), "Confirming", "other Services count now");
}

#[test]
fn a_count_of_the_order_before_confirms_nothing() {
    let mut world = World::new();
    world.node(true, true).ordered().at(4).counted(4, Ok(count(0)));
    world.at(5).ordered().at(6).counted(4, Ok(count(0)));
    assert_eq!(world.counts(7, 0), "Confirming");
    assert_eq!(world.counts(8, 0), "NoConnections");
}

#[test]
fn udp_is_not_waited_for_and_every_service_stays_seen() {
    let mut world = World::new();
    world.node(true, true).counted(0, Ok(count(2)));
    let message = "2 connections pass through this node: 2 default/web.";
    assert_eq!(world.condition().message, message);
    let mut datagrams = count(1);
    datagrams.services[0].tcp = 0;
    world.counted(0, Ok(datagrams.clone())).counted(0, Ok(datagrams));
    assert_eq!(world.reason(), "NoConnections");
    assert!(world.connections.view(world.now()).seen.contains("default/web"));
}

#[test]
fn writes_are_paced() {
    let start = Instant::now();
    let at = |second| start + Duration::from_secs(second);
    let mut pacer = ConditionPacer::default();
    let open = |connections| ConnectionsState::Open(Arc::new(count(connections))).condition();
    let yet = ConnectionsState::NotCountedYet.condition();
    let drained = ConnectionsState::Drained.condition();
    let none = ConnectionsState::NoSignal.condition();
    let unknown = ConnectionsState::Unknown("interrupted".to_owned()).condition();
    let in_service = ConnectionsState::InService.condition();
    // The second, what is so, what is written, and when the next one is due.
    for (second, present, written, due_at) in [
        (0, &none, &none, None),
        (0, &yet, &yet, None),
        (1, &open(9), &yet, Some(10)),
        (10, &open(8), &open(8), None),
        (11, &open(8), &open(8), None),
        // The first one at once, and back to waiting at once.
        (12, &drained, &drained, None),
        (13, &open(1), &open(1), None),
        (14, &open(2), &open(1), Some(23)),
        (15, &drained, &open(1), Some(23)),
        (23, &drained, &drained, None),
        (40, &in_service, &in_service, None),
        (60, &unknown, &unknown, None),
        // Unknown lets the node go.
        (61, &open(1), &open(1), None),
        (62, &unknown, &open(1), Some(71)),
        (71, &unknown, &unknown, None),
        // The end at once.
        (72, &none, &none, None),
    ] {
        let next = pacer.next(present.clone(), at(second));
        assert_eq!(next, (written.clone(), due_at.map(at)), "{second}");
    }
}

#[test]
fn messages_fit_into_the_condition() {
    let row = |index: usize| ServiceConnections {
        service: format!("{}/{index:0>253}", "n".repeat(63)),
        tcp: u64::MAX / 1_000,
        udp: 0,
    };
    let many = ConnectionCount {
        services: (0..100).map(row).collect(),
        oldest_seconds: Some(u64::MAX),
        ..ConnectionCount::default()
    };
    let condition = ConnectionsState::Open(Arc::new(many)).condition();
    assert!(condition.message.len() <= MAX_MARKER_MESSAGE_BYTES);
}

#[derive(Clone, Debug)]
enum Step {
    Node { is_signalled: bool, is_out: bool },
    Ordered,
    Counted { began: u64, connections: u64 },
    Unreliable,
    Failed,
    Passes(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => any::<bool>().prop_map(|is_out| Step::Node { is_signalled: false, is_out }),
        4 => any::<bool>().prop_map(|is_out| Step::Node { is_signalled: true, is_out }),
        // Counts may be late: their start is up to 5 s ago.
        8 => (0..5u64, 0..2u64).prop_map(|(began, connections)| Step::Counted { began, connections }),
        1 => Just(Step::Ordered),
        1 => Just(Step::Unreliable),
        2 => Just(Step::Failed),
        6 => (0..40u64).prop_map(Step::Passes),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// True says: two zeros, both begun while the node was out and signalled, and since the last order, with nothing else between; and
    /// without a count nothing waits for longer than the two bounds.
    #[test]
    fn no_sequence_says_true_without_two_zeros_or_waits_without_end(steps in steps()) {
        let mut world = World::new();
        let (mut zeros, mut out_since, mut signalled_since, mut last_count): (u32, Option<u64>, Option<u64>, Option<u64>) =
            (0, None, None, None);
        let (mut ordered_since, mut last_order) = (None, None);
        for step in steps {
            match step {
                Step::Node { is_signalled, is_out } => {
                    world.node(is_signalled, is_out);
                    let second = world.second;
                    if !is_signalled {
                        (signalled_since, last_count, ordered_since, last_order) = (None, None, None, None);
                    } else if signalled_since.is_none() {
                        signalled_since = Some(second);
                    }
                    let is_out = is_out && is_signalled;
                    out_since = is_out.then(|| out_since.unwrap_or(second));
                    if !is_out {
                        zeros = 0;
                    }
                }
                Step::Ordered => {
                    world.ordered();
                    ordered_since = ordered_since.or(Some(world.second));
                    last_order = Some(world.second);
                    zeros = 0;
                }
                Step::Counted { began, connections } => {
                    let began = world.second.saturating_sub(began);
                    world.counted(began, Ok(count(connections)));
                    if signalled_since.is_some_and(|since| since <= began) {
                        if last_count.is_some_and(|last| last + 60 <= world.second) {
                            zeros = 0;
                        }
                        last_count = Some(world.second);
                        let is_of_last_order = last_order.is_none_or(|at| at <= began);
                        let counts = connections == 0 && is_of_last_order && out_since.is_some_and(|since| since <= began);
                        zeros = if counts { zeros + 1 } else { 0 };
                    }
                }
                Step::Unreliable => {
                    let second = world.second;
                    world.counted(second, Ok(unreliable()));
                    zeros = 0;
                    if signalled_since.is_some() {
                        last_count = Some(second);
                    }
                }
                Step::Failed => {
                    let second = world.second;
                    world.counted(second, Err("failed".to_owned()));
                    zeros = 0;
                }
                Step::Passes(seconds) => world.second += seconds,
            }
            let condition = world.condition();
            if condition.status == MarkerStatus::True {
                prop_assert!(zeros >= 2, "{zeros} zeros");
            }
            let is_waited_for = condition.status == MarkerStatus::False && condition.reason != MARKER_NO_SIGNAL;
            let first = ordered_since.map(|at| at + 15).or(signalled_since.map(|at| at + 45));
            let bound = [first, last_count.map(|at| at + 60)].into_iter().flatten().max();
            prop_assert!(!is_waited_for || bound.is_some_and(|bound| world.second < bound), "{condition:?}");
        }
    }
}

#[test]
fn services_that_had_connections_are_bounded() {
    let numbers = |numbers: std::ops::Range<usize>| ConnectionCount {
        services: numbers
            .map(|number| ServiceConnections {
                service: number.to_string(),
                ..ServiceConnections::default()
            })
            .collect(),
        ..ConnectionCount::default()
    };
    let mut world = World::new();
    world.node(true, false);
    for counted in [0..MAX_SEEN - 1, 0..MAX_SEEN, MAX_SEEN..2 * MAX_SEEN] {
        world.counted(0, Ok(numbers(counted)));
    }
    assert_eq!(world.connections.seen.len(), MAX_SEEN);
}

#[test]
fn a_count_is_shown_until_it_is_stale() {
    let mut world = World::new();
    world.node(true, false).at(1).counted(1, Ok(count(2)));
    let is_shown = |world: &World| world.connections.view(world.now()).last.is_some();
    assert!(is_shown(world.at(STALE_AFTER.as_secs())));
    assert!(!is_shown(world.at(1 + STALE_AFTER.as_secs())));
}
