//! Clients: new connections at a steady rate, and long-lived ones with a request now and then.
//!
//! A new connection succeeds if its handshake, one request and one answer fit into the timeout. A long-lived one is
//! lost if an answer is missing for that long, or if the other side ends it. An idle one sends its only request at its end,
//! so that its loss is noticed then at the latest.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use crate::lifetimes::{Life, Lifetimes};
use crate::network::addresses::{FRONTEND, FRONTEND_PORT};

/// How clients behave; all times are real.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClientSettings {
    /// Where they connect from.
    pub source: Ipv4Addr,
    /// New connections each second.
    pub rate: f64,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Long-lived connections held at once.
    pub long_lived: usize,
    /// How long each of them lives.
    pub lifetimes: Lifetimes,
    /// Between two requests of one of them that is not idle.
    pub request_interval: Duration,
    /// Where random numbers come from.
    pub seed: u64,
}

/// The result of one new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempted {
    /// When it was begun.
    pub at: Instant,
    /// The node of the Pod that answered; none without an answer in time.
    pub answered_by: Option<u8>,
}

/// One long-lived connection that was established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The node of its Pod.
    pub node: u8,
    /// The node that the load balancer chose, which forwards it to the Pod.
    pub through: u8,
    /// When it was begun.
    pub opened: Instant,
    /// When its client ended it, or noticed its loss.
    pub ended: Instant,
    /// When the first request without an answer was sent; none if the client ended the connection.
    pub lost: Option<Instant>,
}

/// Local ports of short connections, in an order that the seed gives; and of long-lived ones, drawn at random. With them a
/// run repeats: the load balancer hashes ports.
const SHORT_PORTS: std::ops::Range<u16> = 16_384..u16::MAX;
const HELD_PORTS: std::ops::Range<u16> = 1_024..16_384;
/// From one port to the next: it has no divisor in common with the number of ports.
const PORT_STEP: u64 = 20_011;

/// All that clients saw.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    /// New connections, in the order in which they were begun, those of long-lived ones among them.
    pub attempts: Vec<Attempted>,
    /// The long-lived connections that clients held.
    pub held: Vec<Held>,
    /// The longest time by which a new connection was begun, or a step of the timeline, too late.
    pub longest_lag: Duration,
}

/// Connects until `stop` is true or its sender is gone, then waits for answers on their way.
pub async fn run(settings: ClientSettings, mut stop: watch::Receiver<bool>) -> Observations {
    let mut random = fastrand::Rng::with_seed(settings.seed);
    let mut holders = JoinSet::new();
    for _ in 0..settings.long_lived {
        holders.spawn(hold(settings, random.fork(), stop.clone()));
    }
    let mut attempts = JoinSet::new();
    let mut observed = Observations::default();
    let mut begun = 0;
    let mut due = interval(Duration::from_secs_f64(1.0 / settings.rate.max(0.001)));
    // A stall of this machine is made up for: the rate stays what it says.
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => break,
            Some(joined) = attempts.join_next() => observed.attempts.extend(finished(joined)),
            scheduled = due.tick() => {
                observed.longest_lag = observed.longest_lag.max(scheduled.elapsed());
                attempts.spawn(attempt(settings, short_port(settings.seed, begun)));
                begun += 1;
            }
        }
    }
    while let Some(joined) = attempts.join_next().await {
        observed.attempts.extend(finished(joined));
    }
    while let Some(joined) = holders.join_next().await {
        let (attempts, held) = finished(joined).unwrap_or_default();
        observed.attempts.extend(attempts);
        observed.held.extend(held);
    }
    observed.attempts.sort_by_key(|attempted| attempted.at);
    observed
}

/// What a task gave. Its panic is the caller's, so that no connection is missing from the results; no task is aborted.
fn finished<T>(joined: Result<T, JoinError>) -> Option<T> {
    match joined.map_err(JoinError::try_into_panic) {
        Ok(value) => Some(value),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => None,
    }
}

/// The port of the short connection with this number.
fn short_port(seed: u64, number: u64) -> u16 {
    let count = u64::try_from(SHORT_PORTS.len()).unwrap_or(1);
    let offset = fastrand::Rng::with_seed(seed).u64(..count);
    let port = u64::from(SHORT_PORTS.start) + (offset + number.wrapping_mul(PORT_STEP)) % count;
    u16::try_from(port).unwrap_or_default()
}

async fn attempt(settings: ClientSettings, port: u16) -> Attempted {
    let at = Instant::now();
    let answered = timeout(settings.timeout, async {
        let mut stream = connect(settings.source, port).await?;
        exchange(&mut stream).await
    });
    Attempted {
        at,
        answered_by: answered.await.ok().and_then(Result::ok).map(|[node, _]| node),
    }
}

/// Connects from this port, or from another one if it is still in use.
async fn connect(source: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket
        .bind(SocketAddr::from((source, port)))
        .or_else(|_| socket.bind(SocketAddr::from((source, 0))))?;
    let stream = socket
        .connect(SocketAddrV4::new(FRONTEND, FRONTEND_PORT).into())
        .await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Gives the nodes of [`Held::node`] and [`Held::through`].
async fn exchange(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<[u8; 2]> {
    stream.write_all(b"?").await?;
    let mut nodes = [0; 2];
    stream.read_exact(&mut nodes).await?;
    Ok(nodes)
}

/// Holds one connection after another.
async fn hold(
    settings: ClientSettings,
    mut random: fastrand::Rng,
    mut stop: watch::Receiver<bool>,
) -> (Vec<Attempted>, Vec<Held>) {
    let (mut attempts, mut held) = (Vec::new(), Vec::new());
    while !*stop.borrow() {
        let (at, port) = (Instant::now(), random.u16(HELD_PORTS));
        let opened = timeout(settings.timeout, async {
            let mut stream = connect(settings.source, port).await?;
            let nodes = exchange(&mut stream).await?;
            Ok::<_, io::Error>((stream, nodes))
        });
        let opened = opened.await.ok().and_then(Result::ok);
        attempts.push(Attempted {
            at,
            answered_by: opened.as_ref().map(|(_, [node, _])| *node),
        });
        let Some((stream, [node, through])) = opened else {
            tokio::select! {
                () = sleep(settings.request_interval) => continue,
                _ = stop.wait_for(|stop| *stop) => break,
            }
        };
        let life = settings.lifetimes.draw(&mut random);
        let lost = live(stream, &settings, at, life, &mut stop).await;
        held.push(Held {
            node,
            through,
            opened: at,
            ended: Instant::now(),
            lost,
        });
    }
    (attempts, held)
}

/// Uses a connection until its end, when it sends its last request; gives when it was lost, if it was.
async fn live(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    settings: &ClientSettings,
    opened: Instant,
    life: Life,
    stop: &mut watch::Receiver<bool>,
) -> Option<Instant> {
    let end = opened + life.length;
    let request_interval = if life.is_idle {
        life.length
    } else {
        settings.request_interval
    };
    while Instant::now() < end && !*stop.borrow() {
        // What comes now is the end: all requests have been answered.
        let mut unexpected = [0];
        tokio::select! {
            () = sleep_until(end.min(Instant::now() + request_interval)) => {}
            _ = stop.wait_for(|stop| *stop) => {}
            _ = stream.read(&mut unexpected) => return Some(Instant::now()),
        }
        let sent = Instant::now();
        if !matches!(timeout(settings.timeout, exchange(&mut stream)).await, Ok(Ok(_))) {
            return Some(sent);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout_at;

    use super::*;

    const NEVER: u64 = 9000;

    /// A connection to a Pod that answers until one time and ends at another, of clients that are stopped: the requests that the
    /// Pod gets, when the connection is lost, and when its client ends it or notices. A request comes each 300 ms, and an answer
    /// may take 400 ms.
    async fn lived(is_idle: bool, silent: u64, closed: u64, stopped: u64) -> (usize, Option<u64>, u64) {
        let settings = ClientSettings {
            source: Ipv4Addr::LOCALHOST,
            rate: 1.0,
            timeout: Duration::from_millis(400),
            long_lived: 1,
            lifetimes: Lifetimes::AtMost(Duration::from_secs(1)),
            request_interval: Duration::from_millis(300),
            seed: 1,
        };
        let start = Instant::now();
        let at = move |millis: u64| start + Duration::from_millis(millis);
        let (client, mut pod) = tokio::io::duplex(64);
        let (stop, mut is_stopped) = watch::channel(false);
        let serve = async move {
            let (mut requests, mut request) = (0, [0]);
            while let Ok(Ok(_)) = timeout_at(at(closed), pod.read_exact(&mut request)).await {
                requests += 1;
                if Instant::now() < at(silent) {
                    pod.write_all(&[1, 2]).await.unwrap();
                }
            }
            drop(pod);
            requests
        };
        let live = async {
            let life = Life {
                length: Duration::from_secs(1),
                is_idle,
            };
            let lost = live(client, &settings, start, life, &mut is_stopped).await;
            (lost, Instant::now())
        };
        let stop = async move {
            sleep_until(at(stopped)).await;
            stop.send_replace(true);
        };
        let (requests, (lost, ended), ()) = tokio::join!(serve, live, stop);
        let millis = |time: Instant| u64::try_from((time - start).as_millis()).unwrap();
        (requests, lost.map(millis), millis(ended))
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_lived_connection_is_used_until_its_end_and_notices_its_loss() {
        assert_eq!(lived(false, NEVER, NEVER, NEVER).await, (4, None, 1000));
        assert_eq!(lived(true, NEVER, NEVER, NEVER).await, (1, None, 1000), "idle");
        assert_eq!(lived(false, NEVER, NEVER, 700).await, (3, None, 700), "stopped");
        assert_eq!(lived(false, NEVER, 450, NEVER).await, (1, Some(450), 450), "at once");
        assert_eq!(lived(true, NEVER, 450, NEVER).await, (0, Some(450), 450), "idle, too");
        assert_eq!(
            lived(false, 500, NEVER, NEVER).await,
            (2, Some(600), 1000),
            "since its request"
        );
    }

    #[test]
    fn short_connections_use_each_port_once_before_one_comes_again() {
        let count = u64::try_from(SHORT_PORTS.len()).unwrap();
        let mut ports: Vec<_> = (0..count).map(|number| short_port(7, number)).collect();
        assert_eq!(short_port(7, count), ports[0]);
        assert_eq!(
            ports[..3],
            [0, 1, 2].map(|number| short_port(7, number)),
            "a run repeats"
        );
        assert_ne!(ports[0], short_port(8, 0));
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] < pair[1]) && SHORT_PORTS.contains(&ports[0]));
    }

    #[tokio::test]
    #[should_panic(expected = "a client's mistake")]
    async fn a_client_that_panics_ends_the_run_instead_of_missing_in_it() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async { panic!("a client's mistake") });
        let joined: Result<(), JoinError> = tasks.join_next().await.unwrap();
        finished(joined);
    }
}
