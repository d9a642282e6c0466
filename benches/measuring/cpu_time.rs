//! Processor time used so far, to the nanosecond: of this thread, and of another process.

use std::time::Duration;

use anyhow::Context as _;
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// The processor time of this thread.
pub(crate) fn thread() -> anyhow::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// The processor time of all threads of a process, including ended ones.
pub(crate) fn process(id: u32) -> anyhow::Result<Duration> {
    let clock = || clock_gettime(clock_getcpuclockid(Pid::from_raw(id.cast_signed()))?);
    Ok(clock()
        .with_context(|| format!("processor time of process {id}"))?
        .into())
}
