//! `ip` and `nft`, run in the network namespace of the calling thread.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

/// How long a run may take. It needs milliseconds, but more than 20 s were seen while other network namespaces came and went.
const RUN_TIMEOUT: Duration = Duration::from_mins(1);

/// A tool cannot be run or rejects its input.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The program is missing or may not be run.
    #[error("cannot run {program}: {source}; install it, on Debian: apt-get install iproute2 nftables")]
    Spawn {
        /// The name of the program.
        program: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The program reports an error.
    #[error("{program} failed ({status}): {output}; its input was:\n{input}")]
    Failed {
        /// The name of the program.
        program: &'static str,
        /// The exit status of the program.
        status: String,
        /// What it wrote to standard error.
        output: String,
        /// The commands given to it.
        input: String,
    },
    /// The program did not end.
    #[error("{program} did not end within {} s", RUN_TIMEOUT.as_secs())]
    Timeout {
        /// The name of the program.
        program: &'static str,
    },
}

/// Runs `ip` commands, one on each line.
///
/// # Errors
/// `ip` is missing, fails or does not end.
pub async fn ip(commands: &str) -> Result<(), ToolError> {
    run("ip", &["-batch", "-"], commands).await
}

/// Loads an nftables ruleset in one transaction.
///
/// # Errors
/// `nft` is missing, fails or does not end.
pub async fn nft(ruleset: &str) -> Result<(), ToolError> {
    run("nft", &["-f", "-"], ruleset).await
}

async fn run(program: &'static str, arguments: &[&str], input: &str) -> Result<(), ToolError> {
    let spawn_error = |source| ToolError::Spawn { program, source };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        // A Ctrl-C in the terminal reaches only this process, which stops in order.
        .process_group(0)
        .spawn()
        .map_err(spawn_error)?;
    let ended = async {
        if let Some(mut stdin) = child.stdin.take() {
            // A program that ended early says why on standard error.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await.map_err(spawn_error)
    };
    let output = timeout(RUN_TIMEOUT, ended)
        .await
        .map_err(|_| ToolError::Timeout { program })??;
    if output.status.success() {
        return Ok(());
    }
    Err(ToolError::Failed {
        program,
        status: output.status.to_string(),
        output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        input: input.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn failures_say_what_to_install_or_what_was_rejected() {
        let missing = run("nonexistent-nft", &[], "").await.unwrap_err().to_string();
        assert!(missing.contains("apt-get install iproute2 nftables"), "{missing}");
        let failed = run("sh", &[], "echo no such rule >&2; exit 3")
            .await
            .unwrap_err()
            .to_string();
        for expected in ["exit status: 3", "no such rule", "its input was:"] {
            assert!(failed.contains(expected), "{expected} in {failed}");
        }
        run("sh", &[], "exit 0").await.unwrap();
    }
}
