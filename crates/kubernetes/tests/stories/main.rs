//! Tests of the election and of the ARM lock. They are one binary, so that they share one control plane.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails where a precondition does"
)]

use proptest::prelude::any;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestRunner};

mod arm_lock;
mod leader;

/// Runs a scenario in paused time with random inputs: as many as `PROPTEST_CASES` says, or else `cases`. What the product draws is one
/// of them.
fn run_paused<S: Strategy, F: Future<Output = ()>>(
    file: &'static str,
    cases: u32,
    inputs: &S,
    scenario: impl Fn(S::Value) -> F,
) {
    let is_configured = std::env::var_os("PROPTEST_CASES").is_some();
    let config = Config {
        cases: if is_configured { Config::default().cases } else { cases },
        max_shrink_iters: 200,
        ..Config::with_source_file(file)
    };
    let inputs = (inputs, any::<u64>().no_shrink());
    let outcome = TestRunner::new(config).run(&inputs, |(input, seed)| {
        fastrand::seed(seed);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(scenario(input));
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
