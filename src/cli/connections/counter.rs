//! Counts for the agent of the same Pod: asks its Unix socket for an order, counts, and reports. It has no listener, no token, and sends
//! nothing to the API server. What is counted, and when, the agent decides.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use headgate_agent::connections::{CountReport, Counter, Interval, IssuedOrder, ORDER_PATH, REPORT_PATH};

use crate::cli::probe::request;
use crate::cli::signals::Termination;
use crate::cli::{Failure, block_on};

/// After a request that failed: the agent starts, or stops.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Counts until a signal ends the process.
pub(super) fn run(socket: &Path) -> Result<(), Failure> {
    headgate_core::telemetry::install_logs(headgate_core::telemetry::LogFormat::default());
    tracing::info!(
        version = headgate_core::telemetry::VERSION,
        socket = %socket.display(),
        "counting connections for the agent"
    );
    let work = async {
        let mut signals = Termination::new(&[])?;
        let socket = socket.to_owned();
        // It ends with the process.
        let counting = tokio::task::spawn_blocking(move || count_endlessly(&socket));
        tokio::select! {
            ended = counting => Err(anyhow::anyhow!("the counter ended: {ended:?}")),
            () = signals.received() => Ok(()),
        }
    };
    block_on(async { work.await.map_err(Failure::runtime) })
}

fn count_endlessly(socket: &Path) {
    let mut counter = Counter::default();
    let interval = Interval::default();
    let mut is_failing = false;
    loop {
        let pause = match count_once(socket, &mut counter) {
            Ok(last) => {
                if std::mem::take(&mut is_failing) {
                    tracing::info!("the agent answers again");
                }
                last.map_or(Duration::ZERO, |(began, cpu_time)| {
                    interval.after(cpu_time).saturating_sub(began.elapsed())
                })
            }
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::info!(error = format!("{error:#}"), retry_in = ?RETRY_INTERVAL, "agent does not answer; connections are not counted");
                }
                RETRY_INTERVAL
            }
        };
        std::thread::sleep(pause);
    }
}

/// Waits for an order and carries it out. Gives the start of the count and its processor time; `None` if there was nothing to count.
fn count_once(socket: &Path, counter: &mut Counter) -> anyhow::Result<Option<(Instant, Duration)>> {
    let asked = Instant::now();
    let answer = request(socket, ORDER_PATH, None)?;
    if answer.status == 204 {
        // The agent holds a request back; one that does not must not be asked without a pause.
        std::thread::sleep(RETRY_INTERVAL.saturating_sub(asked.elapsed()));
        return Ok(None);
    }
    anyhow::ensure!(answer.status == 200, "{ORDER_PATH} answers {}", answer.status);
    let began = Instant::now();
    let issued: IssuedOrder = serde_json::from_str(&answer.body).context("reading the order")?;
    let (outcome, cpu_time) = issued.order.count(counter);
    let report = CountReport {
        number: issued.number,
        outcome: outcome.map_err(|error| error.to_string()),
    };
    let body = serde_json::to_string(&report).context("writing the report")?;
    let answer = request(socket, REPORT_PATH, Some(&body))?;
    // 409: the agent has restarted, or another counter was faster.
    anyhow::ensure!(
        matches!(answer.status, 204 | 409),
        "{REPORT_PATH} answers {}",
        answer.status
    );
    Ok(Some((began, cpu_time)))
}
