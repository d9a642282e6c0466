//! Connections through the pool of all nodes: the load balancer, nodes and clients of drills, in network namespaces. Each node answers, the
//! load balancer has no probes, and takes new flows to the members that are not `Down`; a member that ARM no longer shows gets a reset, as
//! a machine that is gone.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headgate_drill::clients::{ClientSettings, Observations, run};
use headgate_drill::draining::FlowEnd;
use headgate_drill::lifetimes::Lifetimes;
use headgate_drill::network::namespace::Running;
use headgate_drill::network::{Network, addresses, ruleset, tool};
use headgate_drill::pod::Pod;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::observer::Shared;
use super::{NODES, node_name};
use crate::chaos::connections::{Backends, Connections, Held, InForce, PoolWrite, judge};

/// How long an answer may take on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct DataPlane {
    clients: Running<Observations>,
    stop_clients: watch::Sender<bool>,
    /// For the others, which stay until no connection is left.
    stop: watch::Sender<bool>,
    load_balancer: JoinHandle<Vec<InForce>>,
    /// The threads of the nodes.
    nodes: Vec<Running<()>>,
}

impl DataPlane {
    /// Starts it, and returns once the first backends are in force.
    pub(super) async fn start(shared: &Arc<Shared>, seed: u64) -> Self {
        let network = Network::build(usize::from(NODES))
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        let ((stop_clients, clients_stopped), (stop, stopped)) = (watch::channel(false), watch::channel(false));
        let mut nodes = Vec::new();
        for (index, namespace) in (0..NODES).zip(&network.nodes) {
            let mut stopped = stopped.clone();
            let answer = move || async move {
                let _pod = Pod::start(index).await.unwrap();
                // At the end its sender may be gone.
                let _ = stopped.wait_for(|stop| *stop).await;
            };
            nodes.push(namespace.spawn("node", answer).unwrap());
        }
        let settings = ClientSettings {
            source: addresses::client(0),
            rate: 5.0,
            timeout: ANSWER_TIMEOUT,
            long_lived: 30,
            lifetimes: Lifetimes::AtMost(Duration::from_mins(2)),
            request_interval: Duration::from_secs(1),
            seed,
        };
        let mut backends = shared.backends.subscribe();
        // Its own statement: while the value is borrowed, the observer cannot publish another.
        let first = backends
            .wait_for(|backends| !backends.rotation.is_empty())
            .await
            .unwrap()
            .clone();
        let in_force = vec![put_in_force(&network, first, seed).await];
        let clients = network.clients.spawn("clients", move || run(settings, clients_stopped));
        Self {
            clients: clients.unwrap(),
            stop_clients,
            stop,
            load_balancer: tokio::spawn(follow(network, backends, stopped, in_force, seed)),
            nodes,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        !self.load_balancer.is_finished()
    }

    /// Ends all connections, and gives what became of them, with what was written to the pool.
    pub(super) async fn stop(mut self, mut writes: Vec<PoolWrite>) -> (Connections, Vec<String>) {
        self.stop_clients.send_replace(true);
        let observed = self.clients.join().await.unwrap();
        self.stop.send_replace(true);
        for node in &mut self.nodes {
            node.join().await.unwrap();
        }
        let in_force = self.load_balancer.await.unwrap();
        let attempts = observed.attempts.iter();
        let attempts: Vec<_> = attempts
            .map(|attempted| (attempted.at.into_std(), attempted.answered_by.is_some()))
            .collect();
        let held = observed.held.iter().map(|held| Held {
            node: node_name(held.node + 1),
            opened: held.opened.into_std(),
            ended: held.ended.into_std(),
            is_lost: held.lost.is_some(),
        });
        writes.sort_by_key(|write| write.arrived);
        judge(&in_force, &writes, &attempts, ANSWER_TIMEOUT, &held.collect::<Vec<_>>())
    }
}

async fn follow(
    network: Network,
    mut backends: watch::Receiver<Backends>,
    mut stopped: watch::Receiver<bool>,
    mut in_force: Vec<InForce>,
    seed: u64,
) -> Vec<InForce> {
    loop {
        tokio::select! {
            changed = backends.changed() => changed.unwrap(),
            _ = stopped.wait_for(|stop| *stop) => return in_force,
        }
        let latest = backends.borrow_and_update().clone();
        let next = put_in_force(&network, latest, seed).await;
        in_force.last_mut().unwrap().until = Some(Instant::now());
        in_force.push(next);
    }
}

async fn put_in_force(network: &Network, backends: Backends, seed: u64) -> InForce {
    let from = Instant::now();
    let (mut rotation, mut gone) = (Vec::new(), Vec::new());
    for index in 0..NODES {
        let (node, address) = (node_name(index + 1), addresses::node(usize::from(index)));
        if backends.rotation.contains_key(&node) {
            rotation.push(SocketAddrV4::new(address, addresses::POD_PORT));
        } else if !backends.down.contains_key(&node) {
            gone.push((address, FlowEnd::Reset));
        }
    }
    // Any number will do for the hash.
    let rules = ruleset::rotation(&rotation, u32::try_from(seed).unwrap_or_default()) + &ruleset::ended_flows(&gone);
    let mut applying = network
        .load_balancer
        .spawn("rules", move || async move { tool::nft(&rules).await })
        .unwrap();
    applying.join().await.unwrap().unwrap_or_else(|error| panic!("{error}"));
    InForce {
        backends,
        from,
        until: None,
    }
}
