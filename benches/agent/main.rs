//! The benchmarks of the node agent, beside the real kube-proxy and a bare hyper responder.
//!
//! `cargo bench` starts a control plane, a kube-proxy and the release `headgate agent` in a network
//! namespace of its own and measures them in the same run, on the same two cores. Every row of
//! budgets is a file in `rows/`; its figures are printed as a table and written to
//! `target/headgate-bench/NAME.json`. Ratios are what counts: absolute figures are the machine's.
//!
//! `cargo bench -- taint memory` runs the rows whose names contain one of these words. A budget that is
//! missed is shown; with `cargo bench -- --strict` it also fails the run. A row that could not be measured always does.

mod bare;
mod cpu;
mod figures;
mod flood;
mod http;
mod load;
mod memory;
mod namespace;
mod report;
mod rows;
mod world;

use std::env;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use headgate::sandbox::assets::Assets;

use report::Report;
use rows::ROWS;
use world::World;

/// What this process is asked to be.
enum Task {
    /// The benchmarks whose names contain one of these words, or all of them.
    Measure { words: Vec<String>, strict: bool },
    /// The bare responder.
    Respond(bare::Arguments),
    /// Nothing: not run by `cargo bench`.
    Nothing,
}

impl Task {
    fn read() -> Self {
        let arguments: Vec<String> = env::args().skip(1).collect();
        if let Some(arguments) = bare::Arguments::read(&arguments) {
            return Self::Respond(arguments);
        }
        if !arguments.iter().any(|argument| argument == "--bench") {
            return Self::Nothing;
        }
        Self::Measure {
            strict: arguments.iter().any(|argument| argument == "--strict"),
            words: arguments.into_iter().filter(|word| !word.starts_with("--")).collect(),
        }
    }
}

fn main() -> ExitCode {
    let outcome = match Task::read() {
        Task::Nothing => {
            say("benchmarks are run by `cargo bench`");
            Ok(true)
        }
        Task::Respond(arguments) => bare::run(&arguments).map(|()| true),
        Task::Measure { words, strict } => measure(&words).map(|kept| kept || !strict),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs the chosen rows; whether every budget was kept.
fn measure(words: &[String]) -> anyhow::Result<bool> {
    let chosen: Vec<_> = ROWS
        .iter()
        .filter(|row| words.is_empty() || words.iter().any(|word| row.name.contains(word.as_str())))
        .collect();
    if chosen.is_empty() {
        let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
        anyhow::bail!("no benchmark is called so; there are {}", names.join(", "));
    }
    let assets = Assets::find(None).context("the benchmarks need the real control plane (`make bench` builds it)")?;
    // Before there is a second thread.
    namespace::enter()?;
    memory::raise_open_files()?;
    let precedence = cpu::Precedence::take();
    let cores = cpu::Cores::take()?;
    let mut report = Report::new(
        &cores,
        precedence.allowed,
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("headgate-bench"),
    )?;
    // One thread: the children are bound to the one that starts them, and load is made on it as well.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        say("starting etcd, kube-apiserver, kube-proxy and headgate");
        let mut world = World::start(assets, cores).await?;
        for row in chosen {
            say(&format!("{}: {}", row.name, row.about));
            let measured = tokio::select! {
                measured = (row.measure)(&mut world) => measured,
                _ = tokio::signal::ctrl_c() => {
                    world.stop().await;
                    anyhow::bail!("interrupted");
                }
            };
            report.add(row.name, measured)?;
        }
        world.stop().await;
        anyhow::Ok(())
    })?;
    report.finish()
}

/// A line for the person who watches; one that nobody reads is not worth failing for.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
