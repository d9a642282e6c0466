//! What a process holds in memory, and how many files this one and its children may open.

use std::fs;

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use super::figures::{mebibytes, rounded};

/// Connections of one flood, with room for everything else.
const OPEN_FILES: u64 = 16 * 1024;

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Resident: what counts against the machine, pages of files included.
    pub(crate) resident: u64,
    /// Resident and the process's own.
    pub(crate) anonymous: u64,
    /// The most that was resident since the last [`forget_peak`].
    pub(crate) peak: u64,
}

impl Memory {
    /// The memory of a process now.
    pub(crate) fn of(process: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).context("memory of a process")?;
        let field = |name: &str| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            kilobytes
                .map(|kilobytes| kilobytes * 1024)
                .with_context(|| format!("{name} of process {process}"))
        };
        Ok(Self {
            resident: field("VmRSS")?,
            anonymous: field("RssAnon")?,
            peak: field("VmHWM")?,
        })
    }

    /// All of it, for the record.
    pub(crate) fn raw(self) -> Value {
        json!({
            "residentMiB": rounded(mebibytes(self.resident)),
            "anonymousMiB": rounded(mebibytes(self.anonymous)),
            "peakMiB": rounded(mebibytes(self.peak)),
        })
    }
}

/// Has the kernel count the peak from now.
pub(crate) fn forget_peak(process: u32) -> anyhow::Result<()> {
    fs::write(format!("/proc/{process}/clear_refs"), "5").context("the peak of a process's memory cannot be reset")
}

/// Lifts the limit on open files, for this process and what it starts.
///
/// # Errors
/// Where too few are allowed.
pub(crate) fn raise_open_files() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if hard < OPEN_FILES {
        anyhow::bail!("only {hard} open files are allowed, {OPEN_FILES} are needed: see `ulimit -Hn`");
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("the limit on open files cannot be raised")
}
