//! `headgate probe`: asks the agent in this container over its Unix socket.
//!
//! kubelet runs it as an exec probe, because during a rollout two agents answer on the same ports, and an HTTP probe could
//! reach the other one. Exit codes: 0 the agent is live or ready, 1 it is not, and the agent's answer is printed.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use crate::agent::{PROBE_SOCKET_FILE, connect_probe_socket};
use crate::config;

use super::{Failure, print};

/// For each read and write; an answer may take 5 s where there is nothing to count. kubelet's own timeout ends a whole probe.
const IO_TIMEOUT: Duration = Duration::from_secs(8);
/// Size limit of an answer. The longest is an order with thousands of Services.
const MAX_ANSWER_BYTES: u64 = 16 * 1024 * 1024;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// What to ask: whether a restart could help (livez), or whether the agent serves its node (readyz)
    #[arg(value_enum)]
    question: Endpoint,

    /// State directory of the agent [default: /var/lib/headgate]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Endpoint {
    Livez,
    Readyz,
}

impl Endpoint {
    fn path(self) -> &'static str {
        match self {
            Self::Livez => "/livez",
            Self::Readyz => "/readyz",
        }
    }
}

/// What the agent answered.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) body: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let state_dir = ("--state-dir", "stateDir", arguments.state_dir.as_deref());
    let settings = config::load(None, &[state_dir]).map_err(Failure::settings)?;
    let path = arguments.question.path();
    let socket = settings.state_dir.join(PROBE_SOCKET_FILE);
    let answer = request(&socket, path, None).map_err(Failure::runtime)?;
    match answer.status {
        200 => print(answer.body.as_bytes()),
        status => Err(Failure::runtime(anyhow::anyhow!(
            "{path} answers {status}\n{}",
            answer.body.trim_end()
        ))),
    }
}

/// Sends one request: GET, or POST with a body in JSON. The agent closes an HTTP/1.0 connection after its answer, so the end of the stream
/// is the end of the body.
pub(super) fn request(socket: &Path, path: &str, json: Option<&str>) -> anyhow::Result<Answer> {
    let context = || format!("asking the agent at {}", socket.display());
    let mut stream = connect_probe_socket(socket).with_context(context)?;
    stream.set_read_timeout(Some(IO_TIMEOUT)).with_context(context)?;
    stream.set_write_timeout(Some(IO_TIMEOUT)).with_context(context)?;
    let written = match json {
        None => write!(stream, "GET {path} HTTP/1.0\r\n\r\n"),
        Some(json) => write!(
            stream,
            "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{json}",
            json.len()
        ),
    };
    written.with_context(context)?;
    let mut answer = String::new();
    stream
        .take(MAX_ANSWER_BYTES)
        .read_to_string(&mut answer)
        .with_context(context)?;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .with_context(|| format!("{} gave no complete answer", socket.display()))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok(Answer {
        status: status.with_context(|| format!("{} did not answer in HTTP", socket.display()))?,
        body: body.to_owned(),
    })
}
