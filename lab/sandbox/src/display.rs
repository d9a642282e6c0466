//! The sandbox's output. Standard output has the health of the nodes, the pools, the callers of ARM and the leader:
//! live tables on a terminal, otherwise a JSON line for each change. Standard error has the progress of the start and
//! the stop.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use console::Term;
use futures::future::join_all;
use jiff::{Timestamp, Unit};
use kube::Client;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::arm_callers::{self, CallerRows};
use super::directory::NodeAddresses;
use super::leader_row;
use super::live_tables::{LiveTables, Snapshot};
use super::node_health::{self, NodeRows};
use super::pools::{self, PoolRows};

/// Time between two redraws; the tables show ages in seconds.
const REDRAW_INTERVAL: Duration = Duration::from_secs(1);

/// Prints the hints: on standard output if it is a terminal, otherwise on standard error.
pub(super) fn print_hints(text: &str) -> io::Result<()> {
    if io::stdout().is_terminal() {
        writeln!(io::stdout(), "\n{text}")
    } else {
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "\n{text}");
        Ok(())
    }
}

/// Shows the state of the sandbox until standard output is closed.
pub(super) async fn run(nodes: &[NodeAddresses], control: SocketAddr, client: Client) -> io::Result<()> {
    let health_client = node_health::client();
    let (answers, mut answer_receiver) = mpsc::channel(nodes.len().max(1));
    let probed =
        join_all(nodes.iter().enumerate().map(|(number, node)| {
            node_health::follow(&health_client, number, node.addresses.healthz, answers.clone())
        }));
    let probing = async {
        probed.await;
        if nodes.is_empty() {
            std::future::pending::<()>().await;
        }
    };
    let (pools, mut pool_receiver) = mpsc::channel(1);
    let (pages, mut page_receiver) = mpsc::channel(1);
    let (leaders, mut leader_receiver) = mpsc::channel(1);
    let polling = async {
        tokio::join!(
            pools::follow(control, pools),
            arm_callers::follow(control, pages),
            leader_row::follow(client, leaders)
        );
    };
    let drawing = async {
        let (mut pools, mut callers, mut leader) = (PoolRows::default(), CallerRows::default(), None);
        let mut rows = NodeRows::new(nodes.iter().map(|node| node.name.clone()));
        let mut table = io::stdout()
            .is_terminal()
            .then(|| LiveTables::new(Term::buffered_stdout()));
        let mut redraw = interval(REDRAW_INTERVAL);
        redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_table = table.is_some();
            let printed: io::Result<()> = tokio::select! {
                Some((number, answer)) = answer_receiver.recv() => {
                    let mut changed = rows.update(number, answer, now()).into_iter();
                    changed.try_for_each(|row| print_unless(is_table, row))
                }
                Some(read) = pool_receiver.recv() => {
                    pools.update(read, now()).iter().try_for_each(|row| print_unless(is_table, row))
                }
                Some(page) = page_receiver.recv() => {
                    callers.update(&page).iter().try_for_each(|row| print_unless(is_table, row))
                }
                Some(row) = leader_receiver.recv() => print_unless(is_table, leader.insert(row)),
                _ = redraw.tick(), if is_table => Ok(()),
            };
            let shown = match &mut table {
                Some(table) => {
                    let snapshot = Snapshot {
                        nodes: &rows,
                        pools: pools.rows(),
                        callers: &callers,
                        leader: leader.as_ref(),
                    };
                    table.draw(&snapshot, now())
                }
                None => printed,
            };
            match shown {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    };
    tokio::select! {
        () = probing => Ok(()),
        () = polling => Ok(()),
        shown = drawing => shown,
    }
}

/// The time in milliseconds, the precision of the output.
fn now() -> Timestamp {
    let now = Timestamp::now();
    now.round(Unit::Millisecond).unwrap_or(now)
}

/// Prints a row as a line, unless a table shows it.
fn print_unless(is_table: bool, row: &impl serde::Serialize) -> io::Result<()> {
    if is_table {
        return Ok(());
    }
    let mut line = serde_json::to_vec(row)?;
    line.push(b'\n');
    let mut output = io::stdout().lock();
    output.write_all(&line)?;
    output.flush()
}

/// Prints what the sandbox does on standard error, with the seconds since it start.
#[derive(Debug)]
pub(super) struct Progress {
    start: Instant,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { start: Instant::now() }
    }

    pub(super) fn print(&self, what: impl Display) {
        // On a terminal, overwrite the ^C that it may show.
        let start = if io::stderr().is_terminal() { "\r" } else { "" };
        let seconds = self.start.elapsed().as_secs_f32();
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "{start}{seconds:>5.1} s  {what}");
    }
}
