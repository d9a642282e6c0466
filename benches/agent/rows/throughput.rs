//! Throughput of one core: `/healthz` under full load, the agent and its peers alternately.
//!
//! Rounds alternate between the servers, so that other load on the machine affects
//! all of them; a ratio is the median of the rounds' ratios.

use std::time::Duration;

use serde_json::{Value, json};

use crate::load::{self, Measured, Requests};
use crate::measuring::figures::{median, millis, rounded};
use crate::measuring::report::{Budget, Check, PeerComparison, Row};
use crate::world::{Server, World};

/// Rounds for each server.
const ROUNDS: usize = 6;
/// Load in one round.
const ROUND: Duration = Duration::from_millis(1700);

/// Rounds in which new connections come at a given rate.
const PACED_ROUNDS: usize = 4;
/// That rate, as a share of kube-proxy's maximum: both get the same load, and neither is saturated.
const PACE: f64 = 0.5;

/// The largest share of time in which the load generator may be busy: above, a rate may be its own and not the server's.
const GENERATOR_BUSY: f64 = 0.95;

/// Positions in [`Rounds`].
const AGENT: usize = 0;
const KUBE_PROXY: usize = 1;
const BARE: usize = 2;

pub(super) async fn keep_alive(world: &mut World) -> anyhow::Result<Row> {
    let _split = world.split_cores().await?;
    let all = Rounds::run(world, Requests::Kept, ROUNDS)?;
    let check = |figure, peer, least| {
        let (value, beside) = all.beside(peer, |measured| measured.rate);
        Check::new(figure, value, "req/s", Some(beside), Budget::ShareAtLeast(least))
    };
    Ok(Row {
        checks: vec![
            check("requests", KUBE_PROXY, 2.5),
            check("requests", BARE, 0.7),
            all.generator(),
        ],
        raw: json!({"kept": all.raw(), "kubeProxyCores": world.kube_proxy_cores().await}),
    })
}

pub(super) async fn new_connections(world: &mut World) -> anyhow::Result<Row> {
    let _split = world.split_cores().await?;
    let all = Rounds::run(world, Requests::New, ROUNDS)?;
    let (rate, rates) = all.beside(KUBE_PROXY, |measured| measured.rate);
    let pace = (rates.peer * PACE).round();
    let paced = Rounds::run(world, Requests::NewAt(pace), PACED_ROUNDS)?;
    let (p99, p99s) = paced.beside(KUBE_PROXY, |measured| millis(measured.p99));
    Ok(Row {
        checks: vec![
            Check::new("requests", rate, "req/s", Some(rates), Budget::ShareAtLeast(1.0)),
            all.generator(),
            Check::new(
                "p99 at half of the peer's rate",
                p99,
                "ms",
                Some(p99s),
                Budget::ShareAtMost(0.5),
            ),
        ],
        raw: json!({
            "closedLoop": all.raw(),
            "pacedRate": pace,
            "paced": paced.raw(),
            "kubeProxyCores": world.kube_proxy_cores().await,
        }),
    })
}

/// The rounds of every server.
struct Rounds {
    servers: [Server; 3],
    rounds: [Vec<Measured>; 3],
}

impl Rounds {
    fn run(world: &World, requests: Requests, count: usize) -> anyhow::Result<Self> {
        let mut all = Self {
            servers: [world.agent, world.kube_proxy, world.bare],
            rounds: Default::default(),
        };
        for round in 0..count {
            let order = if round % 2 == 0 {
                [AGENT, KUBE_PROXY, BARE]
            } else {
                [BARE, KUBE_PROXY, AGENT]
            };
            for index in order {
                let measured = load::measure(&all.servers[index], requests, ROUND, world.cores.enough())?;
                all.rounds[index].push(measured);
            }
        }
        Ok(all)
    }

    /// The agent's median figure, compared with a peer's.
    fn beside(&self, peer: usize, figure: impl Fn(&Measured) -> f64) -> (f64, PeerComparison) {
        let of = |index: usize| self.rounds[index].iter().map(&figure);
        let ratio = median(of(AGENT).zip(of(peer)).map(|(agent, peer)| agent / peer));
        (
            median(of(AGENT)),
            PeerComparison {
                peer_name: self.servers[peer].name,
                peer: median(of(peer)),
                ratio,
            },
        )
    }

    /// How busy the load generator was in the round in which it had the most to do.
    fn generator(&self) -> Check {
        let busiest = self
            .rounds
            .iter()
            .flatten()
            .map(|measured| measured.load_busy)
            .fold(0.0, f64::max);
        let figure = "the load generator's share of its core, busiest round";
        Check::new(figure, busiest, "", None, Budget::Most(GENERATOR_BUSY))
    }

    fn raw(&self) -> Value {
        let rounds = |rounds: &Vec<Measured>| {
            let list = |figure: fn(&Measured) -> f64| rounds.iter().map(figure).map(rounded).collect::<Vec<_>>();
            json!({
                "rates": list(|measured| measured.rate.round()),
                "p50Ms": list(|measured| millis(measured.p50)),
                "p99Ms": list(|measured| millis(measured.p99)),
                "serverBusy": list(|measured| measured.server_busy),
                "loadBusy": list(|measured| measured.load_busy),
            })
        };
        json!({
            "headgate": rounds(&self.rounds[AGENT]),
            "kubeProxy": rounds(&self.rounds[KUBE_PROXY]),
            "bareHyper": rounds(&self.rounds[BARE]),
        })
    }
}
