//! `headgate probe`: asks the agent in this container over its Unix socket.
//!
//! kubelet runs it as an exec probe, because during a roll two agents answer on the same ports and an
//! HTTP probe could reach the other one. Exit codes: 0 good, 1 not, with the agent's own words.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use crate::agent::{PROBE_SOCKET_FILE, connect_probe_socket};
use crate::config::{self, Override};

use super::{EXIT_RUNTIME, EXIT_SETTINGS, fail, print};

/// How long the agent may take for each part of its answer; kubelet has a limit of its own above it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// More than any answer to a probe.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// What to ask: whether restarting could help (livez), or whether it answers for its node (readyz)
    #[arg(value_enum)]
    question: Question,

    /// Settings file of the agent, for its stateDir
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// State directory of the agent [default: /var/lib/headgate]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Question {
    Livez,
    Readyz,
}

pub(super) fn run(arguments: &Arguments) -> ExitCode {
    let state_dir = arguments.state_dir.clone().map(|value| Override {
        flag: "--state-dir",
        key: "stateDir",
        value,
    });
    let settings = match config::load(arguments.config.as_deref(), state_dir.as_slice()) {
        Ok(settings) => settings,
        Err(mistakes) => return fail(EXIT_SETTINGS, &mistakes.into()),
    };
    let path = match arguments.question {
        Question::Livez => "/livez",
        Question::Readyz => "/readyz",
    };
    match ask(&settings.state_dir, path) {
        Ok((200, body)) => print(body.as_bytes()),
        Ok((code, body)) => fail(
            EXIT_RUNTIME,
            &anyhow::anyhow!("{path} answers {code}\n{}", body.trim_end()),
        ),
        Err(error) => fail(EXIT_RUNTIME, &error),
    }
}

/// The status and body of one request. HTTP/1.0 closes after the answer, which is all that is needed.
fn ask(state_dir: &Path, path: &str) -> anyhow::Result<(u16, String)> {
    let socket = state_dir.join(PROBE_SOCKET_FILE);
    let context = || format!("asking the agent at {}", socket.display());
    let mut stream = connect_probe_socket(state_dir).with_context(context)?;
    stream.set_read_timeout(Some(TIMEOUT)).with_context(context)?;
    stream.set_write_timeout(Some(TIMEOUT)).with_context(context)?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").with_context(context)?;
    let mut answer = String::new();
    stream
        .take(MAX_ANSWER_BYTES)
        .read_to_string(&mut answer)
        .with_context(context)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .with_context(|| format!("{} gave no whole answer", socket.display()))?;
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Ok((
        code.with_context(|| format!("{} gave no HTTP answer", socket.display()))?,
        body.to_owned(),
    ))
}
