//! Which program `headgate` the sandbox and the drills start.

use std::io;
use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(super) struct HeadgateArguments {
    /// The program headgate [default: the one beside this program, otherwise that in PATH]
    #[arg(long, value_name = "FILE")]
    headgate: Option<PathBuf>,
}

impl HeadgateArguments {
    /// The program; whether it can be run shows when it is started. A path is absolute, because children have other directories.
    pub(super) fn program(&self) -> io::Result<PathBuf> {
        if let Some(file) = &self.headgate {
            return std::path::absolute(file);
        }
        let beside = std::env::current_exe()?.with_file_name("headgate");
        Ok(if beside.is_file() { beside } else { "headgate".into() })
    }
}
