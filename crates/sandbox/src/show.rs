//! What the nodes answer and what is in the load balancers' pools, on standard output: live tables on a
//! terminal, else a JSON line a change.

use std::io::{self, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::time::Duration;

use console::Term;
use futures::future::join_all;
use jiff::{Timestamp, Unit};
use kube::Client;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::board::Board;
use super::calls::{self, Calls};
use super::directory::NodeAddresses;
use super::health;
use super::leads;
use super::pools::{self, Pools};
use super::table::{LiveTable, Shown};

/// The table shows ages in seconds.
const REDRAW: Duration = Duration::from_secs(1);

/// Shows what to try: where the table will be, or where progress is told if standard output is for programs.
pub(super) fn hints(text: &str) -> io::Result<()> {
    if io::stdout().is_terminal() {
        writeln!(io::stdout(), "\n{text}")
    } else {
        // Nobody may be reading.
        let _ = writeln!(io::stderr(), "\n{text}");
        Ok(())
    }
}

/// Shows what there is until the reader of standard output goes away.
pub(super) async fn run(nodes: &[NodeAddresses], control: SocketAddr, client: Client) -> io::Result<()> {
    let asker = health::asker();
    let (heard, mut hearing) = mpsc::channel(nodes.len().max(1));
    let asking = join_all(
        nodes
            .iter()
            .enumerate()
            .map(|(number, node)| health::follow(&asker, number, node.addresses.healthz, heard.clone())),
    );
    let (seen, mut seeing) = mpsc::channel(1);
    let (journal, mut pages) = mpsc::channel(1);
    let (elected, mut leaders) = mpsc::channel(1);
    let looking = async {
        tokio::join!(
            pools::follow(control, seen),
            calls::follow(control, journal),
            leads::follow(client, elected)
        );
    };
    let showing = async {
        let (mut pools, mut calls, mut lead) = (Pools::default(), Calls::default(), None);
        let mut board = Board::new(nodes.iter().map(|node| node.name.clone()));
        let mut table = io::stdout()
            .is_terminal()
            .then(|| LiveTable::new(Term::buffered_stdout()));
        let mut redraw = interval(REDRAW);
        redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let news: io::Result<()> = tokio::select! {
                Some((number, said)) = hearing.recv() => match board.hear(number, said, now()) {
                    Some(news) if table.is_none() => line(news),
                    _ => Ok(()),
                },
                Some(seen) = seeing.recv() => {
                    let news = pools.see(seen, now());
                    if table.is_none() { news.iter().try_for_each(line) } else { Ok(()) }
                }
                Some(page) = pages.recv() => {
                    let news = calls.see(&page);
                    if table.is_none() { news.iter().try_for_each(line) } else { Ok(()) }
                }
                Some(leader) = leaders.recv() => {
                    let news = lead.insert(leader);
                    if table.is_none() { line(news) } else { Ok(()) }
                }
                _ = redraw.tick(), if table.is_some() => Ok(()),
            };
            let shown = match &mut table {
                Some(table) => {
                    let shown = Shown {
                        board: &board,
                        pools: pools.rows(),
                        calls: &calls,
                        lead: lead.as_ref(),
                    };
                    table.draw(&shown, now())
                }
                None => news,
            };
            match shown {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    };
    tokio::select! {
        _ = asking => Ok(()),
        () = looking => Ok(()),
        shown = showing => shown,
    }
}

/// The time, as exactly as anybody wants to read it.
fn now() -> Timestamp {
    let now = Timestamp::now();
    now.round(Unit::Millisecond).unwrap_or(now)
}

fn line(news: &impl serde::Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(news)?;
    line.push(b'\n');
    let mut output = io::stdout().lock();
    output.write_all(&line)?;
    output.flush()
}
