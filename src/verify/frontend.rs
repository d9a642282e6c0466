//! Connections through the load balancer while an entry is set `Down`: until when new ones are answered, and whether established ones
//! live.
//!
//! An HTTP server must answer behind the frontend; any answer counts. The other entries of the pool must be out of service, because the
//! answers do not say which entry they come from.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use headgate_azure::AdminState;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, timeout};

use super::assumptions::{ESTABLISHED_CONNECTIONS, NEW_CONNECTIONS};
use super::report::Answers;
use super::session::{Session, Stop, code_of, with_state};

/// Time for one connection, and for one answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between new connections.
const INTERVAL: Duration = Duration::from_millis(200);
/// Time between requests on an established one, shorter than the idle timeout of any server.
const REQUEST_INTERVAL: Duration = Duration::from_millis(500);
/// Connections that are kept.
const ESTABLISHED: usize = 3;
/// Requests that each must answer beforehand.
const REQUESTS_BEFORE: usize = 3;

/// A connection that is kept open.
struct Connection {
    stream: TcpStream,
    host: String,
}

impl Connection {
    /// Opens a connection and sends one request; `None` if it is not answered.
    async fn open(frontend: SocketAddr) -> Option<Self> {
        let stream = timeout(ANSWER_TIMEOUT, TcpStream::connect(frontend)).await.ok()?.ok()?;
        let host = frontend.to_string();
        let mut connection = Self { stream, host };
        connection.is_answered().await.then_some(connection)
    }

    /// Sends a request; whether any of an answer arrives.
    async fn is_answered(&mut self) -> bool {
        let request = format!(
            "HEAD / HTTP/1.1\r\nHost: {}\r\nUser-Agent: headgate-verify\r\n\r\n",
            self.host
        );
        let exchange = async {
            self.stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = [0; 4096];
            let read = self.stream.read(&mut answer).await.ok()?;
            (read > 0).then_some(())
        };
        matches!(timeout(ANSWER_TIMEOUT, exchange).await, Ok(Some(())))
    }
}

/// Follows an established connection until it is not answered; returns when that was.
async fn follow(mut connection: Connection) -> Instant {
    while connection.is_answered().await {
        sleep(REQUEST_INTERVAL).await;
    }
    Instant::now()
}

/// Opens connections all the time, and publishes when the last one that was answered began.
async fn open_connections(frontend: SocketAddr, last_answered: Arc<watch::Sender<Instant>>) {
    let mut attempts = JoinSet::new();
    let mut ticks = interval(INTERVAL);
    loop {
        ticks.tick().await;
        let last_answered = Arc::clone(&last_answered);
        attempts.spawn(async move {
            let began = Instant::now();
            if Connection::open(frontend).await.is_some() {
                last_answered.send_modify(|last| *last = began.max(*last));
            }
        });
        while attempts.try_join_next().is_some() {}
    }
}

/// Opens the connections that are kept, or says why they cannot be.
async fn establish(frontend: SocketAddr) -> Result<JoinSet<Instant>, &'static str> {
    let mut established = JoinSet::new();
    for _ in 0..ESTABLISHED {
        let connection = Connection::open(frontend).await;
        let mut connection = connection.ok_or("no HTTP server answers at the frontend")?;
        for _ in 0..REQUESTS_BEFORE {
            if !connection.is_answered().await {
                return Err("the HTTP server does not keep connections open");
            }
        }
        established.spawn(follow(connection));
    }
    Ok(established)
}

/// Asks both assumptions. Leaves the entry `Down`.
pub(super) async fn traffic(session: &mut Session, answers: &mut Answers) -> Result<(), Stop> {
    let Some(frontend) = session.plan.frontend else {
        return Ok(());
    };
    let undecided = |answers: &mut Answers, why: &str| {
        for id in [NEW_CONNECTIONS, ESTABLISHED_CONNECTIONS] {
            answers.undecided(id, why);
        }
        Ok(())
    };
    let first = session.plan.named.first.clone();
    let read = session.read().await?;
    let pool = read.pool(&first.pool)?;
    let serving = pool
        .addresses()
        .filter(|entry| entry.admin_state() != Some(AdminState::Down));
    if serving.count() > 1 {
        return undecided(
            answers,
            "other entries of the pool are in service: name a pool of one entry",
        );
    }
    // An entry that was just set back may not be in service yet.
    let deadline = Instant::now() + session.plan.observe;
    while Connection::open(frontend).await.is_none() && Instant::now() < deadline {
        session.pause(INTERVAL).await?;
    }
    let established = match establish(frontend).await {
        Ok(established) => established,
        Err(why) => return undecided(answers, why),
    };
    session.record(&first).await?;
    let down = with_state(pool, &first.entry, AdminState::Down)?;
    let operation = match session.put(&down).await? {
        Ok(operation) => operation,
        Err(error) => return undecided(answers, &format!("the write was refused with {}", code_of(&error))),
    };
    let accepted = Instant::now();
    let (sender, last_answered) = watch::channel(accepted);
    let mut new = JoinSet::new();
    new.spawn(open_connections(frontend, Arc::new(sender)));
    if let Err(error) = session.wait(&operation).await? {
        return undecided(answers, &format!("the operation ended with {}", code_of(&error)));
    }
    session.end_turn().await;
    let ended = Instant::now();
    let stopped = loop {
        session.pause(INTERVAL).await?;
        let last = *last_answered.borrow();
        if last >= ended + session.plan.observe {
            break false;
        }
        // The last attempts may still be answered.
        if Instant::now() >= last.max(ended) + session.plan.quiet + ANSWER_TIMEOUT * 2 {
            break true;
        }
    };
    let operation = seconds(accepted, ended);
    let seen = if stopped {
        let last = seconds(accepted, *last_answered.borrow());
        format!("the last one was answered {last} after the write was accepted; its operation took {operation}")
    } else {
        let after = seconds(ended, Instant::now());
        format!("they are answered {after} after the end of the operation, which took {operation}")
    };
    answers.decide(NEW_CONNECTIONS, stopped, seen);
    report_established(established, accepted, answers);
    Ok(())
}

fn seconds(from: Instant, to: Instant) -> String {
    format!("{:.1} s", to.saturating_duration_since(from).as_secs_f64())
}

fn report_established(mut established: JoinSet<Instant>, accepted: Instant, answers: &mut Answers) {
    let mut lost = Vec::new();
    while let Some(Ok(at)) = established.try_join_next() {
        lost.push(at);
    }
    let seen = match lost.iter().min() {
        None => {
            let after = seconds(accepted, Instant::now());
            format!("{ESTABLISHED} of {ESTABLISHED} are answered {after} after the write was accepted")
        }
        Some(earliest) => {
            let (count, after) = (lost.len(), seconds(accepted, *earliest));
            format!("{count} of {ESTABLISHED} ended, the first {after} after the write was accepted")
        }
    };
    answers.decide(ESTABLISHED_CONNECTIONS, lost.is_empty(), seen);
}
