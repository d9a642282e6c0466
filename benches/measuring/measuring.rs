//! What benchmarks have in common, each of which includes this file: which rows are measured and how, what is taken from
//! the machine for that, and what becomes of the figures.

pub(crate) mod addresses;
pub(crate) mod cores;
pub(crate) mod cpu_time;
pub(crate) mod figures;
pub(crate) mod memory;
pub(crate) mod output;
pub(crate) mod report;
pub(crate) mod selection;
pub(crate) mod services;

use cores::{Cores, Precedence, load_average};
use output::say;
use report::Report;
use selection::Benchmark;

/// The release binary, built with the same profile as this one.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_headgate");

/// The machine, made ready for benchmarks.
pub(crate) struct Machine {
    cores: Cores,
    precedence: Precedence,
}

impl Machine {
    /// Takes precedence where that is allowed, and enough open files.
    pub(crate) fn take() -> anyhow::Result<Self> {
        memory::raise_open_files()?;
        Ok(Self {
            precedence: Precedence::take(),
            cores: Cores::take()?,
        })
    }

    /// Measures by `measure`, which adds its rows to the report; whether every budget was kept.
    pub(crate) fn report(
        self,
        measure: impl AsyncFnOnce(&Cores, &mut Report) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let mut report = Report::new(&self.cores, self.precedence.allowed, output::directory())?;
        // One thread: children end with the one that starts them and share its cores, and load is made on it as well.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(measure(&self.cores, &mut report))?;
        report.finish()
    }
}

/// Measures rows one after the other in one world.
///
/// # Errors
/// Where it was interrupted; a row that could not be measured is in the report.
pub(crate) async fn measure<W>(
    rows: &[&'static Benchmark<W>],
    world: &mut W,
    report: &mut Report,
) -> anyhow::Result<()> {
    for row in rows {
        let load = load_average();
        say(&format!("{}: {} (load average {load})", row.name, row.about));
        let measured = tokio::select! {
            measured = (row.measure)(world) => measured,
            _ = tokio::signal::ctrl_c() => anyhow::bail!("interrupted"),
        };
        report.add(row.name, measured)?;
    }
    Ok(())
}
