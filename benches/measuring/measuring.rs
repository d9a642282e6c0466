//! The common part of all benchmarks, each of which includes this file: selection of rows, preparation of the
//! machine, and reports.

pub(crate) mod addresses;
pub(crate) mod conditions;
pub(crate) mod cores;
pub(crate) mod cpu_time;
pub(crate) mod figures;
pub(crate) mod memory;
pub(crate) mod output;
pub(crate) mod report;
pub(crate) mod selection;

use cores::{Cores, PriorityGuard, load_average};
use output::say;
use report::Report;
use selection::Benchmark;

/// The release binary, built with the same profile as this one.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_headgate");

/// The machine, prepared for benchmarks.
pub(crate) struct Machine {
    cores: Cores,
    precedence: PriorityGuard,
}

impl Machine {
    /// Raises the priority where that is allowed, and the limit on open files.
    pub(crate) fn take() -> anyhow::Result<Self> {
        memory::raise_open_files()?;
        Ok(Self {
            precedence: PriorityGuard::take(),
            cores: Cores::take()?,
        })
    }

    /// Runs `measure`, which adds rows to the report; returns whether every budget was kept.
    pub(crate) fn report(
        self,
        measure: impl AsyncFnOnce(&Cores, &mut Report) -> anyhow::Result<()>,
    ) -> anyhow::Result<bool> {
        let mut report = Report::new(self.precedence.allowed, &output::directory())?;
        // One thread: children end with the thread that starts them and share its cores; it also generates the load.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(measure(&self.cores, &mut report))?;
        report.finish()
    }
}

/// Measures rows one after the other in one world.
///
/// # Errors
/// The run was interrupted. A row that could not be measured is in the report.
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
