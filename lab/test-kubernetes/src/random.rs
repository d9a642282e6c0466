//! Randomised stories: each run follows from its seed, in paused time. What the product draws does, too; only what `select!` picks among
//! branches that are ready at once differs.
//!
//! `HEADGATE_STORIES=5000` sets the number of runs, `HEADGATE_STORIES=1000..2000` their seeds, and `HEADGATE_STORY=17` runs only that
//! seed. Without them half of the runs have seeds that are always the same, the others fresh ones.

use std::cell::RefCell;
use std::io::Write as _;
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, SystemTime};

/// From one line about the progress of many runs to the next.
const RUNS_PER_REPORT: u64 = 100;

/// Deterministic random numbers (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers that follow from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        let length = u64::try_from(from.len()).unwrap();
        &from[usize::try_from(self.below(length)).unwrap()]
    }

    /// A time below `end` milliseconds.
    pub fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }
}

thread_local! {
    /// The panics on this thread since the run began.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Has each thread remember its panics.
fn remember_panics() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // A thread that ends has no run.
            let _ = PANICS.try_with(|panics| panics.borrow_mut().push(panic.to_string()));
            before(panic);
        }));
    });
}

/// Runs this in paused time. A panic of any of its tasks fails it, also one that the product survives.
pub(crate) fn in_paused_time(run: impl Future<Output = ()>) {
    remember_panics();
    PANICS.take();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(run);
    drop(runtime);
    let panics = PANICS.take();
    assert!(panics.is_empty(), "a task has panicked: {}", panics.join("\n"));
}

/// The number in a variable of the environment, if it is set.
pub fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty())?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable}={text:?} is not allowed; allowed: a number")))
}

/// The seed in a variable of the environment, or a new one, which is printed.
pub(crate) fn seed_from(variable: &str, of_what: &str) -> u64 {
    let new = || {
        SystemTime::UNIX_EPOCH
            .elapsed()
            .map_or(0, |age| age.as_secs() % 1_000_000)
    };
    let seed = number_from(variable).unwrap_or_else(new);
    let _ = writeln!(std::io::stderr(), "{variable}={seed} repeats {of_what}");
    seed
}

/// The seeds of the runs that are always the same, of so many.
pub fn fixed_seeds(default_runs: u64) -> Range<u64> {
    0..default_runs / 2
}

/// The other half: seeds that no earlier execution had.
fn fresh_seeds(default_runs: u64) -> Range<u64> {
    let age = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let first = age.as_secs() * 1000;
    first..first + default_runs - fixed_seeds(default_runs).end
}

/// The command that runs the test of this thread.
pub(crate) fn test_command() -> String {
    let package = std::env::var("CARGO_PKG_NAME").map_or_else(|_| String::new(), |package| format!(" -p {package}"));
    let thread = std::thread::current();
    let test = thread.name().filter(|name| *name != "main").unwrap_or_default();
    format!("cargo test --locked{package} {test}")
}

/// The seeds that the environment asks for; without them those that are always the same, and as many fresh ones.
#[expect(
    clippy::single_range_in_vec_init,
    reason = "a list of ranges, of which one is enough"
)]
fn seeds(default_runs: u64) -> Vec<Range<u64>> {
    let variable = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let number = |text: &str| -> u64 {
        text.parse().unwrap_or_else(|_| {
            panic!("{text:?} is not allowed; allowed: a number of runs, or their seeds such as 1000..2000")
        })
    };
    if let Some(seed) = variable("HEADGATE_STORY") {
        let seed = number(&seed);
        return vec![seed..seed + 1];
    }
    let Some(runs) = variable("HEADGATE_STORIES") else {
        return vec![fixed_seeds(default_runs), fresh_seeds(default_runs)];
    };
    match runs.split_once("..") {
        Some((first, end)) => vec![number(first)..number(end)],
        None => vec![0..number(&runs)],
    }
}

/// Runs a story with each seed that the environment asks for, in paused time, on all cores, and reports the progress of many runs to
/// stderr. No run begins after one has failed.
pub fn run_seeds<R: Future<Output = ()>>(name: &str, default_runs: u64, run: impl Fn(u64) -> R + Sync) {
    let (seeds, start) = (seeds(default_runs), std::time::Instant::now());
    let _ = writeln!(std::io::stderr(), "{name}: runs with the seeds {seeds:?}");
    let runs: u64 = seeds.iter().map(|range| range.end - range.start).sum();
    let (waiting, done) = (Mutex::new(seeds.into_iter().flatten()), AtomicU64::new(0));
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(seed) = next() {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                // The product's jitter is from there.
                fastrand::seed(seed);
                in_paused_time(run(seed));
            }));
            if let Err(panic) = result {
                while next().is_some() {}
                let _ = writeln!(
                    std::io::stderr(),
                    "{name}: seed {seed} failed: HEADGATE_STORY={seed} {} repeats the run",
                    test_command()
                );
                std::panic::resume_unwind(panic);
            }
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(RUNS_PER_REPORT) {
                let took = start.elapsed();
                // The harness captures what is printed.
                let _ = writeln!(
                    std::io::stderr(),
                    "{name}: {done} of {runs} runs passed, the last with seed {seed}, in {took:.0?}"
                );
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        // Named like the test, as its own thread is.
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        let worker = |_| std::thread::Builder::new().name(test.clone()).spawn_scoped(scope, work);
        let workers: Vec<_> = (0..cores).map(worker).collect();
        for worker in workers {
            if let Err(panic) = worker.unwrap().join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a task has panicked")]
    fn a_panic_that_a_run_survives_fails_it() {
        in_paused_time(async {
            let task = tokio::spawn(async { panic!("a defect") });
            assert!(task.await.is_err());
        });
    }
}
