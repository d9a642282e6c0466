//! CPU affinity and scheduling priority of what is measured.
//!
//! Load and servers get a higher priority than other programs where that is allowed.
//! Rows about the throughput of one core pin the server to one core and the load to another. Latency is
//! measured without pinning, as on a node.

use std::fs;

use anyhow::Context as _;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The cores that may be used.
#[derive(Clone, Debug)]
pub(crate) struct Cores {
    all: Vec<usize>,
}

impl Cores {
    /// The cores that this process may run on.
    pub(crate) fn take() -> anyhow::Result<Self> {
        let set = sched_getaffinity(Pid::from_raw(0)).context("the cores to run on cannot be read")?;
        let all = (0..CpuSet::count())
            .filter(|core| set.is_set(*core).unwrap_or(false))
            .collect();
        Ok(Self { all })
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether load and servers can have a core each.
    pub(crate) fn enough(&self) -> bool {
        self.count() > 1
    }

    /// The core of the server that is measured.
    fn server(&self) -> &[usize] {
        let last = self.all.len().saturating_sub(1);
        &self.all[last..]
    }

    /// The core of the load; the server's core if there is only one.
    fn load(&self) -> &[usize] {
        &self.all[..1]
    }

    /// Gives the servers one core and this process another, until the guard is dropped.
    pub(crate) fn split(&self, servers: &[u32]) -> anyhow::Result<Split> {
        let split = Split {
            cores: self.clone(),
            servers: servers.to_vec(),
        };
        for server in servers {
            pin(*server, self.server())?;
        }
        pin(std::process::id(), self.load())?;
        Ok(split)
    }
}

/// A guard: until it is dropped, load and servers have one core each.
pub(crate) struct Split {
    cores: Cores,
    servers: Vec<u32>,
}

impl Drop for Split {
    fn drop(&mut self) {
        for process in self.servers.iter().chain([&std::process::id()]) {
            // A process that has ended is skipped.
            let _ = pin(*process, &self.cores.all);
        }
    }
}

/// Lets every thread of a process run on `cores` only.
fn pin(process: u32, cores: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    for core in cores {
        set.set(*core)?;
    }
    let mut pinned = Vec::new();
    // A thread may start another before it is pinned, so repeat until there is no new one.
    loop {
        let threads = fs::read_dir(format!("/proc/{process}/task")).context("threads to pin")?;
        let new: Vec<i32> = threads
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|thread| !pinned.contains(thread))
            .collect();
        if new.is_empty() {
            return Ok(());
        }
        for thread in &new {
            match sched_setaffinity(Pid::from_raw(*thread), &set) {
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(error) => return Err(error).context("pinning a thread to a core"),
            }
        }
        pinned.extend(new);
    }
}

/// A guard: until it is dropped, this process and its children have a higher priority than other programs, where
/// that is allowed.
pub(crate) struct PriorityGuard {
    /// The previous priority of the session's group, on kernels that group processes by session.
    group: Option<String>,
    /// Whether the kernel allowed the higher priority.
    pub(crate) allowed: bool,
}

const GROUP: &str = "/proc/self/autogroup";

impl PriorityGuard {
    pub(crate) fn take() -> Self {
        // "/autogroup-33 nice 0"
        let group = fs::read_to_string(GROUP).ok();
        let group = group.and_then(|text| Some(text.trim().rsplit_once(' ')?.1.to_owned()));
        let group_allowed = group.is_none() || fs::write(GROUP, "-20").is_ok();
        let allowed = rustix::process::setpriority_process(None, -20).is_ok() && group_allowed;
        Self { group, allowed }
    }
}

impl Drop for PriorityGuard {
    fn drop(&mut self) {
        if let Some(before) = &self.group {
            // The session belongs to the caller and outlives this process.
            let _ = fs::write(GROUP, before);
        }
    }
}

/// The machine's load average over a minute.
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}
