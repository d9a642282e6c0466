//! Processor time, to the nanosecond: of this thread, and of another process.

use std::fs;
use std::time::Duration;

use anyhow::Context as _;
use nix::time::{ClockId, clock_gettime};

/// What this thread has used so far.
pub(crate) fn thread() -> anyhow::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// What all threads of a process have used so far; of threads that have ended meanwhile it is not known.
pub(crate) fn process(id: u32) -> anyhow::Result<Duration> {
    let mut used = 0;
    for thread in fs::read_dir(format!("/proc/{id}/task"))
        .context("threads of a process")?
        .flatten()
    {
        // "1136593 8292001 3": time on a processor in nanoseconds, and two more.
        let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else {
            continue;
        };
        let on_processor = text.split(' ').next().and_then(|text| text.parse::<u64>().ok());
        used += on_processor.context("processor time of a thread")?;
    }
    Ok(Duration::from_nanos(used))
}
