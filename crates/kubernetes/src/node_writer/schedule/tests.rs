use super::*;

const RENEW: Duration = Duration::from_mins(1);

fn intent(key: &str, shown: Shown) -> NodeIntent {
    NodeIntent {
        uid: Some("u".to_owned()),
        key: key.to_owned(),
        shown,
        renew_interval: Some(RENEW),
        edit: std::sync::Arc::new(|_: &mut _, _| super::super::Edited::Done),
    }
}

fn once(key: &str, shown: Shown) -> NodeIntent {
    NodeIntent {
        renew_interval: None,
        ..intent(key, shown)
    }
}

fn wanted(nodes: impl IntoIterator<Item = (String, NodeIntent)>) -> Intents {
    [(NodeField::Marker, std::sync::Arc::new(nodes.into_iter().collect()))].into()
}

fn one(intent: NodeIntent) -> Intents {
    wanted([("n".to_owned(), intent)])
}

fn named(letter: &str, numbers: std::ops::Range<u32>, shown: Shown) -> impl Iterator<Item = (String, NodeIntent)> {
    numbers.map(move |number| (format!("{letter}{number:04}"), intent("a", shown)))
}

fn names(attempts: &[Attempt]) -> Vec<&str> {
    attempts.iter().map(|attempt| attempt.node.as_str()).collect()
}

#[test]
fn value_is_written_when_it_is_new_changed_overwritten_or_due_for_renewal() {
    use Shown::{No, Unknown, Yes};
    let start = Instant::now();
    let of_another_node = NodeIntent {
        uid: Some("v".to_owned()),
        ..once("a", No)
    };
    let (a, renewed) = (|shown| once("a", shown), |shown| intent("a", shown));
    // Seconds, what is wanted and shown, and whether it is written then or when it is looked at again.
    let new_leader = [(0, renewed(Yes), Some(0)), (1, renewed(Yes), Some(60))];
    let not_shown_yet = [(0, a(No), Some(0)), (1, a(No), Some(5)), (5, a(No), Some(5))];
    let overwritten = [
        (0, a(No), Some(0)),
        (1, a(Yes), None),
        (2, a(No), Some(2)),
        (3, a(Yes), None),
        (4, a(No), Some(7)),
        (7, a(No), Some(7)),
        (8, a(Yes), None),
        (9, a(No), Some(9)),
        (20, a(No), Some(20)),
    ];
    let overwritten_once = [
        (0, a(No), Some(0)),
        (1, a(Yes), None),
        (2, a(No), Some(2)),
        (3, a(No), Some(7)),
    ];
    let another = [
        (0, renewed(No), Some(0)),
        (1, intent("b", No), Some(1)),
        (2, renewed(Yes), Some(2)),
        (3, renewed(Yes), Some(62)),
    ];
    let not_told = [
        (0, a(Unknown), Some(0)),
        (9, a(Unknown), None),
        (10, renewed(Unknown), Some(60)),
    ];
    for (what, steps) in [
        ("a value that is shown", &[(0, a(Yes), None)][..]),
        ("a new leader renews at once", &new_leader),
        ("not shown yet", &not_shown_yet),
        ("overwritten later", &overwritten_once),
        ("overwritten all the time", &overwritten),
        ("another value", &another),
        ("what the watch does not tell", &not_told),
        (
            "another Node of the name",
            &[(0, a(No), Some(0)), (1, of_another_node, Some(1))],
        ),
    ] {
        let mut schedule = Schedule::default();
        for (second, intent, expected) in steps {
            let now = start + *second * SECOND;
            let (due, next_at) = schedule.start_due(&one(intent.clone()), now);
            let is_now = !due.is_empty();
            for attempt in due {
                schedule.finish(attempt, &[Ended::Done], now);
            }
            let at = if is_now { Some(now) } else { next_at };
            let expected = expected.map(|second| start + second * SECOND);
            assert_eq!(at, expected, "{what}, second {second}");
        }
    }
}

#[test]
fn each_field_of_each_node_has_a_backoff_of_its_own() {
    let start = Instant::now();
    let expected = [200, 400, 800, 1600, 3200, 6400, 12_800, 20_000, 20_000];
    let (mut schedule, mut now, mut delays) = (Schedule::default(), start, Vec::new());
    let target = one(once("a", Shown::No));
    for _ in expected {
        let due = schedule.start_due(&target, now).0;
        schedule.finish(due[0].clone(), &[Ended::Failed], now);
        let (early, next_at) = schedule.start_due(&target, now);
        assert!(early.is_empty() && schedule.is_failing(NodeField::Marker));
        delays.push((next_at.unwrap() - now).as_millis());
        now = next_at.unwrap();
    }
    assert_eq!(delays, expected);
    let due = schedule.start_due(&target, now).0;
    schedule.finish(due[0].clone(), &[Ended::Failed], now);
    // Neither another Node nor another value of this one waits for it.
    let both = wanted(["m", "n"].map(|name| (name.to_owned(), once("a", Shown::No))));
    assert_eq!(names(&schedule.start_due(&both, now).0), ["m"]);
    let another = one(once("b", Shown::No));
    assert!(schedule.start_due(&another, now).0.is_empty(), "not at once either");
    let soon = now + MIN_BACKOFF;
    assert!(schedule.start_due(&target, soon).0.is_empty());
    let due = schedule.start_due(&another, soon).0;
    assert_eq!(names(&due), ["n"]);
    // A success ends it.
    schedule.finish(due[0].clone(), &[Ended::Done], soon);
    assert!(!schedule.is_failing(NodeField::Marker));
}

#[test]
fn one_attempt_of_a_node_at_a_time_and_slow_ones_take_no_place() {
    let start = Instant::now();
    let mut schedule = Schedule::default();
    let all = wanted((0..40).map(|number| (format!("n{number:02}"), once("a", Shown::No))));
    let (first, next_at) = schedule.start_due(&all, start);
    assert_eq!((first.len(), next_at), (MAX_NEW_ATTEMPTS, Some(start + SLOW_AFTER)));
    let (none, _) = schedule.start_due(&all, start);
    assert!(none.is_empty());
    schedule.finish(first[0].clone(), &[Ended::Done], start);
    assert_eq!(names(&schedule.start_due(&all, start).0), ["n16"]);
    // None of the others has an answer.
    let (second, _) = schedule.start_due(&all, start + SLOW_AFTER);
    assert_eq!(second.len(), MAX_NEW_ATTEMPTS);
    assert!(second.iter().all(|attempt| attempt.node.as_str() > "n16"));
}

#[test]
fn changes_go_before_renewals_and_repetitions() {
    let now = Instant::now();
    let mut schedule = Schedule::default();
    let many = |numbers: std::ops::Range<u32>, shown| named("n", numbers, shown);
    let failed = schedule.start_due(&wanted(many(0..16, Shown::No)), now).0;
    for attempt in failed {
        schedule.finish(attempt, &[Ended::Failed], now);
    }
    let changes = many(0..16, Shown::No).chain(many(200..210, Shown::No));
    let all = wanted(many(0..100, Shown::Yes).chain(changes));
    let due = schedule.start_due(&all, now + SECOND).0;
    assert_eq!(due.len(), MAX_NEW_ATTEMPTS);
    assert!(names(&due)[..10].iter().all(|name| *name >= "n0200"), "{due:?}");
}

#[test]
fn a_hold_that_failed_once_goes_before_the_markers_of_many_nodes() {
    let start = Instant::now();
    for field in [NodeField::Hold, NodeField::DrainingTaint, NodeField::DeletionDelay] {
        let mut schedule = Schedule::default();
        let hold = std::sync::Arc::new(BTreeMap::from([("z".to_owned(), once("a", Shown::No))]));
        let failed = schedule.start_due(&[(field, hold.clone())].into(), start).0;
        schedule.finish(failed[0].clone(), &[Ended::Failed], start);
        let mut all = wanted(named("n", 0..1000, Shown::No));
        all.insert(field, hold);
        // The API server answers none.
        let turns = (0..10).map(|turn| start + MIN_BACKOFF + turn * SLOW_AFTER);
        let mut started = turns.filter(|now| names(&schedule.start_due(&all, *now).0).contains(&"z"));
        assert_eq!(started.next(), Some(start + MIN_BACKOFF), "{field:?}");
    }
}

#[test]
fn holds_that_wait_to_be_renewed_go_before_changes_the_oldest_first() {
    let start = Instant::now();
    let mut schedule = Schedule::default();
    let held = |shown| -> BTreeMap<_, _> { named("n", 0..100, shown).collect() };
    let holds = |shown| Intents::from([(NodeField::Hold, std::sync::Arc::new(held(shown)))]);
    // The last names are written first.
    let (mut first, all) = (holds(Shown::No), holds(Shown::No));
    std::sync::Arc::make_mut(first.get_mut(&NodeField::Hold).unwrap()).retain(|name, _| name.as_str() >= "n0050");
    for (second, some) in [(0, first), (1, all)] {
        let now = start + second * SECOND;
        for _ in 0..4 {
            for attempt in schedule.start_due(&some, now).0 {
                schedule.finish(attempt, &[Ended::Done], now);
            }
        }
    }
    let mut all = wanted(named("m", 500..1500, Shown::No));
    all.extend(holds(Shown::Yes));
    let (due, _) = schedule.start_due(&all, start + RENEW + SECOND);
    let is_change = |name: &&str| name.starts_with('m');
    assert!(names(&due).iter().all(is_change), "a tool may wait for a change");
    // The API server answers none.
    let turns = (0..4).map(|turn| start + RENEW + SECOND + RENEWAL_SLACK + turn * SLOW_AFTER);
    let started = turns.flat_map(|now| schedule.start_due(&all, now).0);
    let started: Vec<_> = started.map(|attempt| attempt.node).collect();
    let oldest: Vec<_> = held(Shown::No).into_keys().skip(50).collect();
    assert_eq!(started[..50], oldest, "{started:?}");
    // The next leader does not know when they were renewed.
    let mut next = Schedule::default();
    let failing = wanted(named("f", 0..16, Shown::No));
    for attempt in next.start_due(&failing, start).0 {
        next.finish(attempt, &[Ended::Failed], start);
    }
    all.extend(failing);
    let (due, _) = next.start_due(&all, start + SECOND);
    assert!(names(&due).iter().all(|name| name.starts_with('n')), "{due:?}");
}

#[test]
fn markers_of_many_nodes_are_confirmed_at_a_bounded_rate() {
    const NODES: u32 = 1000;
    let (start, mut schedule) = (Instant::now(), Schedule::default());
    let all = wanted(named("n", 0..NODES, Shown::Yes));
    let mut change = all.clone();
    let marker = std::sync::Arc::make_mut(change.get_mut(&NodeField::Marker).unwrap());
    marker.insert("n0999".to_owned(), intent("b", Shown::No));
    let (mut confirmed, mut now) = (BTreeMap::new(), start);
    while now < start + 220 * SECOND {
        let (due, next_at) = schedule.start_due(&all, now);
        for attempt in due {
            confirmed.entry(attempt.node.clone()).or_insert_with(Vec::new).push(now);
            schedule.finish(attempt, &[Ended::Done], now);
        }
        assert!(schedule.start_due(&all, now).0.is_empty(), "no more in the same second");
        now = next_at.unwrap();
    }
    assert_eq!(confirmed.len(), NODES as usize);
    let pause = |times: &Vec<Instant>| times[1] - times[0];
    let longest = confirmed.values().map(pause).max().unwrap();
    assert!(longest <= 101 * SECOND, "{longest:?}");
    let mut times: Vec<_> = confirmed.into_values().flatten().collect();
    times.sort();
    for window in times.windows(2 * MAX_CONFIRMATIONS_PER_SECOND + 1) {
        assert!(window[2 * MAX_CONFIRMATIONS_PER_SECOND] - window[0] >= SECOND);
    }
    // A change waits for none of them.
    let due = schedule.start_due(&change, now).0;
    assert_eq!(due[0].node, "n0999");
}
