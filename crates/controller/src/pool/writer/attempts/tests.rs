use headgate_azure::{AdminState, ErrorBody, OperationFailure};
use tokio::time::advance;

use super::super::super::fixtures::{edit, pool_id as pool, refused};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn end(attempts: &mut Attempts, plan: Vec<PoolEdit>, result: Result<(), AttemptError>) -> AfterAttempt {
    attempts.end(pool("a").load_balancer(), plan, result)
}

/// A plan that sets nodes `Down` in these pools.
fn down_in(pools: &[&str]) -> Vec<PoolEdit> {
    pools.iter().map(|name| edit(name, Some(AdminState::Down))).collect()
}

fn busy(refused_pool: &str) -> AttemptError {
    AttemptError::Busy(Some((pool(refused_pool), refused(429, "RetryableError", None))))
}

#[tokio::test(start_paused = true)]
async fn failed_plan_waits_and_another_one_waits_for_retry_after_only() {
    let down = |name| edit(name, Some(AdminState::Down));
    let members = || edit("c", None);
    for (status, retry_after, until, until_of_others) in [
        (409, None, Some(SECOND / 10), None),
        (409, Some(20), Some(20 * SECOND), None),
        (503, Some(20), Some(20 * SECOND), Some(20 * SECOND)),
        (429, Some(20), Some(20 * SECOND), Some(20 * SECOND)),
    ] {
        let mut attempts = Attempts::default();
        let result = Err(AttemptError::Arm(refused(status, "", retry_after)));
        assert!(matches!(
            end(&mut attempts, vec![down("a"), down("b")], result),
            AfterAttempt::Failed(_)
        ));
        let deferred = |attempts: &Attempts, plan: &[PoolEdit]| {
            let until = attempts.deferred_until(plan);
            until.map(|until| until - Instant::now())
        };
        for (plan, expected) in [
            (vec![down("a"), down("b")], until),
            (vec![down("a"), members(), down("b")], until),
            (vec![down("a")], until_of_others),
            (vec![down("a"), edit("b", Some(AdminState::None))], until_of_others),
            (vec![members()], until_of_others),
        ] {
            assert_eq!(deferred(&attempts, &plan), expected, "{status}: {plan:?}");
        }
        advance(until.unwrap()).await;
        assert_eq!(deferred(&attempts, &[down("a"), down("b")]), None, "{status}");
        assert!(attempts.succeed() && !attempts.succeed());
    }
}

#[tokio::test(start_paused = true)]
async fn pools_that_ended_attempts_come_last_and_take_turns_until_all_is_written() {
    let mut attempts = Attempts::default();
    let order = |attempts: &Attempts| {
        let mut edits = ["a", "b", "c", "d"].map(|name| edit(name, Some(AdminState::Down)));
        attempts.take_failed_last(&mut edits);
        edits.map(|edit| edit.pool.name().to_owned())
    };
    for (failed, expected) in [
        ("a", ["b", "c", "d", "a"]),
        ("b", ["c", "d", "a", "b"]),
        ("a", ["c", "d", "b", "a"]),
        ("b", ["c", "d", "a", "b"]),
    ] {
        attempts.fail_pool(pool(failed));
        let result = Err(AttemptError::Arm(refused(500, "", None)));
        end(&mut attempts, vec![edit("a", Some(AdminState::Down))], result);
        assert_eq!(order(&attempts), expected);
    }
    attempts.succeed();
    assert_eq!(order(&attempts), ["a", "b", "c", "d"]);
}

#[tokio::test(start_paused = true)]
async fn pool_that_failed_first_less_than_a_minute_ago_comes_before_those_that_fail_for_longer() {
    let mut attempts = Attempts::default();
    let plan = || down_in(&["a", "b", "c", "d"]);
    // `d` changes while it is written, and ARM does not refuse it.
    for (later, succeeded, failed, expected) in [
        (0, None, "a", "b c d a"),
        (0, None, "b", "c d a b"),
        (3600, None, "d", "c d a b"),
        (0, None, "c", "d c a b"),
        (30, None, "c", "d c a b"),
        (30, None, "c", "a b d c"),
        (8, None, "a", "b d c a"),
        (0, Some("d"), "b", "d c a b"),
        (0, None, "d", "d c a b"),
    ] {
        advance(later * SECOND).await;
        if let Some(succeeded) = succeeded {
            attempts.adopt_success(&pool(succeeded));
        }
        attempts.fail_pool(pool(failed));
        let error = if failed == "d" {
            AttemptError::Busy(None)
        } else {
            busy(failed)
        };
        end(&mut attempts, plan(), Err(error));
        let mut edits = plan();
        attempts.take_failed_last(&mut edits);
        let order: Vec<_> = edits.iter().map(|edit| edit.pool.name()).collect();
        assert_eq!(order.join(" "), expected, "{later} {failed}");
    }
}

#[tokio::test(start_paused = true)]
async fn busy_load_balancer_is_read_ever_more_seldom_and_is_an_error_after_a_minute() {
    let mut attempts = Attempts::default();
    let mut busy = |refusal| end(&mut attempts, Vec::new(), Err(AttemptError::Busy(refusal)));
    for wait in [1, 2, 4, 8, 8, 8, 8, 8, 8] {
        let AfterAttempt::Wait(delay) = busy(None) else {
            panic!("no error yet")
        };
        assert_eq!(delay, wait * SECOND);
        advance(delay).await;
    }
    advance(5 * SECOND).await;
    let refusal = || Some((pool("a"), refused(429, "RetryableError", None)));
    // A write that is refused for so long is tried seldom, and at once when a read shows another version.
    for (later, refusal, code, wait, is_due_with_version) in [
        (0, None, "Busy", 8, false),
        (0, refusal(), "RetryableError", 8, true),
        (10, refusal(), "RetryableError", 10, true),
        (10, refusal(), "RetryableError", 20, true),
        (600, refusal(), "RetryableError", 300, true),
        (0, None, "Busy", 8, false),
    ] {
        advance(later * SECOND).await;
        let AfterAttempt::Failed(error) = end(&mut attempts, down_in(&["a"]), Err(AttemptError::Busy(refusal))) else {
            panic!("busy for a minute")
        };
        assert_eq!(error.code, code);
        let until = attempts.deferred_until(&down_in(&["a"]));
        assert_eq!(until, Some(Instant::now() + wait * SECOND));
        attempts.adopt_new_version();
        assert_eq!(attempts.deferred_until(&down_in(&["a"])).is_none(), is_due_with_version);
    }
    assert!(matches!(
        end(&mut attempts, Vec::new(), Ok(())),
        AfterAttempt::PlanAgain
    ));
    let after = end(&mut attempts, Vec::new(), Err(AttemptError::Busy(None)));
    assert!(matches!(after, AfterAttempt::Wait(SECOND)), "it begins anew");
}

#[tokio::test(start_paused = true)]
async fn refusal_waits_as_long_as_the_newest_one_has_lasted() {
    let mut attempts = Attempts::default();
    let plan = || down_in(&["a", "b", "c", "d", "e"]);
    for (later, succeeded, refused_pool, error_in, wait_in) in [
        (0, "", "a", None, Some(1)),
        (1, "", "b", None, Some(2)),
        (61, "", "a", Some(61), None),
        (0, "", "b", Some(61), None),
        // The reason may have been the same, so `b` begins anew.
        (61, "a", "b", None, Some(1)),
        (59, "", "b", None, Some(2)),
        // ARM did not refuse `c` before, which says nothing about `b`.
        (2, "c", "b", Some(61), None),
        (3600, "d", "c", None, Some(1)),
        // It takes turns with `b`.
        (1, "", "b", None, Some(2)),
        // `c` was accepted long after `b` was refused first.
        (1, "c", "b", Some(300), None),
        // In a load balancer that is busy for an hour, each pool is tried.
        (3600, "", "c", Some(8), None),
        (8, "", "d", Some(8), None),
        (8, "", "e", Some(8), None),
        (3600, "", "b", Some(300), None),
    ] {
        advance(later * SECOND).await;
        if !succeeded.is_empty() {
            attempts.adopt_success(&pool(succeeded));
        }
        let (waits, retries) = match end(&mut attempts, plan(), Err(busy(refused_pool))) {
            AfterAttempt::Wait(delay) => (Some(delay.as_secs()), None),
            _ => (
                None,
                attempts
                    .deferred_until(&plan())
                    .map(|until| (until - Instant::now()).as_secs()),
            ),
        };
        assert_eq!(
            (retries, waits),
            (error_in, wait_in),
            "{later} {succeeded} {refused_pool}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_of_a_pool_that_was_not_due_meanwhile_is_its_first() {
    let mut attempts = Attempts::default();
    let both = &["a", "b"][..];
    for (later, plan, refused_pool, error_in) in [
        (0, both, "a", None),
        (3600, both, "b", Some(8)),
        // The taint goes that was the reason for `b`.
        (8, &["a"], "a", Some(300)),
        (3600, both, "b", Some(8)),
        (8, both, "a", Some(8)),
    ] {
        advance(later * SECOND).await;
        end(&mut attempts, down_in(plan), Err(busy(refused_pool)));
        let until = attempts.deferred_until(&down_in(plan));
        assert_eq!(
            until.map(|until| (until - Instant::now()).as_secs()),
            error_in,
            "{later} {plan:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn second_hold_in_a_row_that_closes_before_a_write_is_an_error() {
    let mut attempts = Attempts::default();
    for (has_written, is_error) in [
        (false, false),
        (true, false),
        (false, false),
        (false, true),
        (false, true),
        (true, false),
    ] {
        let after = end(&mut attempts, Vec::new(), Err(AttemptError::HoldClosed { has_written }));
        assert_eq!(matches!(after, AfterAttempt::Failed(_)), is_error);
    }
}

#[tokio::test(start_paused = true)]
async fn ignored_write_is_reported_once_for_each_pool() {
    let mut attempts = Attempts::default();
    let mut report = |name| {
        let waiting = Waiting {
            until: Instant::now() + SECOND,
            pool: pool(name),
        };
        attempts.report_ignored(pool(name).load_balancer(), &waiting)
    };
    let error = report("a").unwrap();
    assert!(
        error.is_ignored_write() && error.message.contains("backendAddressPools/a"),
        "{error:?}"
    );
    advance(SECOND).await;
    assert_eq!(report("a"), None);
    assert_eq!(report("b").unwrap().since, error.since);
}

#[test]
fn refusal_of_one_pool_stops_no_other() {
    let failed = ArmError::OperationFailed {
        status: OperationFailure::Failed,
        error: ErrorBody::default(),
    };
    for (error, expected) in [
        (refused(400, "", None), true),
        (refused(404, "", None), true),
        (refused(401, "", None), false),
        (refused(408, "", None), false),
        (refused(429, "", None), false),
        (refused(503, "", None), false),
        (failed, true),
        (ArmError::DeadlineExceeded, false),
    ] {
        assert_eq!(concerns_one_pool(&error), expected, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_edit_is_left_out_of_sooner_attempts_until_its_own_time() {
    let mut attempts = Attempts::default();
    let refusal = |retry_after| AttemptError::Arm(refused(409, "", retry_after));
    let down = |name| edit(name, Some(AdminState::Down));
    attempts.refuse([down("a")].into_iter(), &refusal(Some(300)));
    attempts.refuse([down("b")].into_iter(), &refusal(Some(20)));
    let is_left_out = |attempts: &Attempts, plan: &[PoolEdit]| {
        plan.iter()
            .map(|edit| attempts.refusal(edit).is_some())
            .collect::<Vec<_>>()
    };
    let plan = [down("a"), down("b")];
    assert_eq!(is_left_out(&attempts, &plan), [true, true]);
    let others = [edit("a", Some(AdminState::None)), edit("b", None), down("c")];
    assert_eq!(is_left_out(&attempts, &others), [false, false, false]);
    {
        let plan = vec![others[0].clone(), down("b")];
        let after = end(&mut attempts, plan.clone(), Err(AttemptError::Refused));
        assert!(matches!(after, AfterAttempt::PlanAgain), "what is new is not deferred");
        assert_eq!(attempts.deferred_until(&plan), None);
    }
    let AfterAttempt::Failed(error) = end(&mut attempts, plan.to_vec(), Err(AttemptError::Refused)) else {
        panic!("not reported");
    };
    assert!(error.message.contains("409"), "{error:?}");
    let first = Instant::now() + 20 * SECOND;
    assert_eq!(attempts.deferred_until(&plan), Some(first), "the first that is due");
    let unrecorded = || AttemptError::IntentNotRecorded(IntentNotRecorded::Ledger("away".to_owned()));
    let AfterAttempt::Failed(both) = end(&mut attempts, plan.to_vec(), Err(unrecorded())) else {
        panic!("not reported");
    };
    assert!(
        both.message.contains("away") && both.message.contains("409"),
        "{both:?}"
    );
    assert_ne!(both.code, error.code);
    assert_eq!(
        attempts.deferred_until(&plan),
        Some(Instant::now() + SECOND / 10),
        "the refusals have waits of their own"
    );
    advance(20 * SECOND).await;
    assert_eq!(is_left_out(&attempts, &plan), [true, false]);
    attempts.adopt_success(&pool("a"));
    assert_eq!(is_left_out(&attempts, &plan), [false, false]);
    attempts.refuse([down("b")].into_iter(), &refusal(Some(200)));
    attempts.refuse(
        [down("a")].into_iter(),
        &AttemptError::VersionRefused(refused(412, "", None)),
    );
    end(&mut attempts, plan.to_vec(), Err(AttemptError::Refused));
    assert!(attempts.deferred_until(&plan).is_some());
    attempts.adopt_new_version();
    assert_eq!(is_left_out(&attempts, &plan), [false, true]);
    assert_eq!(attempts.deferred_until(&plan), None);
}
