//! Memory of a process, and the limit on open files of this process and its children.

use std::fs;

use anyhow::Context as _;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

use super::figures::{mebibytes, rounded};

/// The limit on open files: the connections of one flood, and room for other files.
const OPEN_FILES: u64 = 16 * 1024;

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// Resident memory in bytes, including pages of files.
    pub(crate) resident: u64,
    /// Resident anonymous memory in bytes.
    pub(crate) anonymous: u64,
    /// Peak of resident memory in bytes since the last [`forget_peak`].
    pub(crate) peak: u64,
}

impl Memory {
    /// Reads the present memory of a process.
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

    /// All values as JSON.
    pub(crate) fn raw(self) -> Value {
        json!({
            "residentMiB": rounded(mebibytes(self.resident)),
            "anonymousMiB": rounded(mebibytes(self.anonymous)),
            "peakMiB": rounded(mebibytes(self.peak)),
        })
    }
}

/// Resets the kernel's peak of a process.
pub(crate) fn forget_peak(process: u32) -> anyhow::Result<()> {
    fs::write(format!("/proc/{process}/clear_refs"), "5").context("the peak of a process's memory cannot be reset")
}

/// Raises the limit on open files for this process and its children.
///
/// # Errors
/// The hard limit is too low.
pub(crate) fn raise_open_files() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if hard < OPEN_FILES {
        anyhow::bail!("only {hard} open files are allowed, {OPEN_FILES} are needed: see `ulimit -Hn`");
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("the limit on open files cannot be raised")
}
