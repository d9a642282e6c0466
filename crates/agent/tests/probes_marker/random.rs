//! Random runs: signals, probes, foreign writes, faults and restarts of the agent in any order. The condition is never `True` for longer
//! than [`QUIET_BOUND`] without a signal, or before the configured number of probes in a row was answered with 503. After a foreign
//! write, a fault or a restart the bound begins [`RECOVERY_TIME`] later.
//!
//! `make stories` runs these, too.

use std::time::Duration;

use headgate_test_kubernetes::{Fault, Random, run_seeds};
use tokio::time::{Instant, sleep};

use super::world::{REQUIRED, SECOND, World};

/// A look at the counts, a write that is refused once, and the watch that shows it.
const QUIET_BOUND: Duration = Duration::from_secs(10);
/// Backoff of the watch after a fault, and a list.
const RECOVERY_TIME: Duration = Duration::from_mins(1);
const DEFAULT_RUNS: u64 = 8;
const STEPS: u64 = 60;

/// What the runs know of the probes.
struct Run {
    world: World,
    random: Random,
    has_signal: bool,
    /// Probes in a row that were answered with 503.
    failed: u64,
    /// Since when the condition may not be `True`.
    may_not_be_true_since: Option<Instant>,
    disturbed_at: Instant,
    has_fault: bool,
    steps: Vec<String>,
}

impl Run {
    async fn step(&mut self) {
        match self.random.below(12) {
            0 | 1 => {
                self.has_signal = !self.has_signal;
                self.steps.push(format!("signal: {}", self.has_signal));
                self.world.set_signal(self.has_signal);
            }
            2..=7 => {
                let is_ok = self.world.probe().await;
                self.steps.push(format!("probe: 200 {is_ok}"));
                self.failed = if is_ok { 0 } else { self.failed + 1 };
            }
            8 => {
                let status = *self.random.pick(&["True", "False", "Unknown"]);
                self.steps.push(format!("someone else writes {status}"));
                self.world.overwrite(status);
                self.disturbed_at = self.disturbed_at.max(Instant::now());
            }
            9 => {
                let faults = [Fault::Status(500), Fault::Status(403), Fault::CutOff, Fault::AnswerLost];
                let fault = *self.random.pick(&faults);
                self.has_fault = !self.has_fault;
                let fault = if self.has_fault { fault } else { Fault::None };
                self.steps.push(format!("fault: {fault:?}"));
                self.world.agent.faults.set(fault);
                self.disturbed_at = self.disturbed_at.max(Instant::now());
            }
            10 => {
                self.steps.push("the agent restarts".to_owned());
                self.world.restart_agent();
                self.has_fault = false;
                self.disturbed_at = self.disturbed_at.max(Instant::now());
            }
            _ => {
                let away = self.random.millis(20_000);
                self.steps.push(format!("the API server is away for {away:?}"));
                self.world.fake.restart(away);
                self.disturbed_at = self.disturbed_at.max(Instant::now() + away);
            }
        }
        let longest = *self.random.pick(&[40, 900, 5000, 30_000]);
        let end = Instant::now() + self.random.millis(longest);
        while Instant::now() < end {
            sleep((end - Instant::now()).min(SECOND / 2)).await;
            self.check();
        }
    }

    fn check(&mut self) {
        let is_true = self.world.shown().is_some_and(|(status, _)| status == "True");
        if !is_true || self.has_signal && self.failed >= REQUIRED {
            self.may_not_be_true_since = None;
            return;
        }
        let since = *self.may_not_be_true_since.get_or_insert_with(Instant::now);
        // An agent that was restarted goes on with what its predecessor has written, and its watch may be late.
        let from = since.max(self.disturbed_at + RECOVERY_TIME);
        let is_late = Instant::now().saturating_duration_since(from) > QUIET_BOUND;
        assert!(
            self.has_fault || !is_late,
            "True for {:?}, signal {}, {} failed probes\n{}",
            since.elapsed(),
            self.has_signal,
            self.failed,
            self.steps.join("\n")
        );
    }
}

/// After all faults the condition says what follows from the signal and the probes.
async fn run(seed: u64) {
    let world = World::start().await;
    let mut run = Run {
        world,
        random: Random::new(seed),
        has_signal: false,
        failed: 0,
        may_not_be_true_since: None,
        disturbed_at: Instant::now(),
        has_fault: false,
        steps: vec![format!("seed {seed}")],
    };
    for _ in 0..STEPS {
        run.step().await;
    }
    run.world.agent.faults.set(Fault::None);
    sleep(120 * SECOND).await;
    for _ in 0..REQUIRED {
        let is_ok = run.world.probe().await;
        assert_eq!(is_ok, !run.has_signal, "{}", run.steps.join("\n"));
        sleep(2 * SECOND).await;
    }
    sleep(QUIET_BOUND).await;
    let shown = run.world.shown();
    let status = shown.as_ref().map(|(status, _)| status.as_str());
    let is_right = if run.has_signal {
        status == Some("True")
    } else {
        status.is_none_or(|status| status == "False")
    };
    assert!(
        is_right,
        "signal {}: {shown:?}\n{}",
        run.has_signal,
        run.steps.join("\n")
    );
}

#[test]
fn random_events_keep_the_bounds_of_the_condition() {
    run_seeds("marker by probes", DEFAULT_RUNS, run);
}
