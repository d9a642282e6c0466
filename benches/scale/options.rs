//! The size of a run, from variables.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use crate::measuring::{BINARY, output};

/// Entries of a pool: Azure's limit.
const MAX_POOL_ENTRIES: usize = 5000;
/// Up to this many Nodes kwok plays the kubelets.
const MAX_KWOK_NODES: usize = 10_000;

/// The size of a run.
pub(crate) struct Options {
    pub(crate) nodes: usize,
    /// Nodes on which a real agent runs.
    pub(crate) agents: usize,
    /// For the phases that have a length.
    pub(crate) minutes: u32,
    /// The program headgate.
    pub(crate) program: PathBuf,
}

impl Options {
    /// Reads `NODES`, `AGENTS`, `MINUTES` and, for another program than that of this build, `HEADGATE_PROGRAM`.
    ///
    /// # Errors
    /// A variable is not a number, or out of bounds.
    pub(crate) fn read() -> anyhow::Result<Self> {
        let number = |name: &str, default: usize| {
            let text = env::var(name).unwrap_or_default();
            if text.is_empty() {
                return Ok(default);
            }
            text.parse().with_context(|| format!("{name} is a whole number"))
        };
        let (nodes, agents) = (number("NODES", 10_000)?, number("AGENTS", 300)?);
        let minutes = u32::try_from(number("MINUTES", 10)?)?;
        ensure!((100..=60_000).contains(&nodes), "NODES is from 100 to 60000");
        ensure!(
            (1..=nodes / 4).contains(&agents),
            "AGENTS is from 1 to a quarter of NODES"
        );
        ensure!((1..=600).contains(&minutes), "MINUTES is from 1 to 600");
        let program = env::var_os("HEADGATE_PROGRAM").filter(|path| !path.is_empty());
        Ok(Self {
            nodes,
            agents,
            minutes,
            // Children have other directories.
            program: std::path::absolute(program.unwrap_or_else(|| BINARY.into()))?,
        })
    }

    /// The command that runs the same again.
    pub(crate) fn command(&self) -> String {
        let Self {
            nodes, agents, minutes, ..
        } = self;
        format!("make scale NODES={nodes} AGENTS={agents} MINUTES={minutes}")
    }

    /// So many hundredths of the run.
    pub(crate) fn share(&self, hundredths: u32) -> Duration {
        Duration::from_mins(self.minutes.into()) * hundredths / 100
    }

    pub(crate) fn has_kwok(&self) -> bool {
        self.nodes <= MAX_KWOK_NODES
    }

    /// Entries of each pool.
    pub(crate) fn pool_entries(&self) -> usize {
        self.nodes.min(MAX_POOL_ENTRIES)
    }

    /// Signals of the burst: at most a fifth of the Nodes.
    pub(crate) fn burst(&self) -> usize {
        (self.nodes / 5).min(1000)
    }

    /// Where the report goes.
    pub(crate) fn directory(&self) -> PathBuf {
        output::directory().join(format!("scale-{}", self.nodes))
    }
}
