//! One run of a world: waits until everything is in service, then carries out the timeline under clients.

use std::net::SocketAddrV4;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::phase::Schedule;
use super::{Recording, RunSettings, World, WorldError};
use crate::clients::{self, ClientSettings, Observations};
use crate::cluster::Cluster;
use crate::control_plane::{ControlPlane, Observed};
use crate::controller::{self, Change, Changed, Channels};
use crate::http::Probe;
use crate::machine::{Command, DeletedMachines};
use crate::network::addresses;
use crate::network::namespace::Running;
use crate::probe::ProbeStatus;
use crate::result::Event;
use crate::scenario::{Action, Timeline};
use crate::strategy::Target;

/// Beyond the probes' own time, how long the load balancer may take to have all nodes in rotation.
const ROTATION_TIMEOUT: Duration = Duration::from_mins(1);
/// How long the nodes may take to forward, once they are in rotation.
const FORWARDING_TIMEOUT: Duration = Duration::from_mins(1);
/// Between two looks at node ports that have not answered.
const FORWARDING_INTERVAL: Duration = Duration::from_millis(50);
/// How long one of them may take.
const FORWARDING_PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Beyond their own timeout, how long clients may take to stop.
const CLIENTS_TIMEOUT: Duration = Duration::from_secs(10);

impl World {
    /// Runs a timeline under clients.
    ///
    /// # Errors
    /// Nodes do not get into rotation, or a step cannot be carried out.
    pub async fn run(
        &mut self,
        timeline: &Timeline,
        run: &RunSettings,
        control_plane: &mut ControlPlane,
    ) -> Result<Recording, WorldError> {
        let capacity = self.settings.nodes.max(1);
        let (watch_health, watched) = mpsc::channel(capacity);
        let (deregister, deregistered) = mpsc::channel(capacity);
        let orders = Orders {
            watch_health,
            deregister,
        };
        let (send_changes, mut changes) = mpsc::unbounded_channel();
        let (send_rotation, mut rotation) = watch::channel(Vec::new());
        let (nodes, probers) = (self.settings.nodes, self.settings.probers);
        let schedule = Schedule::new(Instant::now(), self.settings.probe.interval, nodes, probers, run.seed);
        let settings = self.controller_settings(run, &schedule);
        let channels = Channels {
            admin_states: control_plane.admin_states(),
            watched,
            deregistered,
            changes: send_changes,
            rotation: send_rotation,
        };
        let mut controller = self
            .network
            .load_balancer
            .spawn("load-balancer", move || controller::run(settings, channels))?;
        let driven = async {
            control_plane.publish(&self.endpoints).await?;
            self.published.clone_from(&self.endpoints);
            self.wait_for_rotation(&mut rotation).await?;
            self.wait_for_forwarding().await?;
            let phase = Phase {
                schedule,
                share: run.phase,
            };
            self.drive(timeline, run, control_plane, &orders, &phase).await
        };
        let (start, observations, mut events) = tokio::select! {
            driven = driven => driven?,
            ended = controller.join() => return Err(ended?.err().map_or(WorldError::ControllerStopped, WorldError::from)),
        };
        // Its receiver gone, the controller ends; the next one must not meet it.
        drop(rotation);
        controller.join().await??;
        while let Some(change) = changes.recv().await {
            events.extend(observed(change, start, &events));
        }
        let own = control_plane.cluster().map(Cluster::take_events).unwrap_or_default();
        events.extend(own.into_iter().filter(|event| event.at >= start));
        Ok(Recording {
            start,
            observations,
            events,
        })
    }

    async fn wait_for_rotation(&self, rotation: &mut watch::Receiver<Vec<usize>>) -> Result<(), WorldError> {
        let nodes = self.settings.nodes;
        let probe = &self.settings.probe;
        let waited = probe.interval * (probe.healthy_threshold + 1) + ROTATION_TIMEOUT;
        let complete = timeout(waited, rotation.wait_for(|members| members.len() == nodes)).await;
        for machine in &self.machines {
            machine.command(Command::CheckKubeProxy).await?;
        }
        match complete.map(|found| found.map(drop)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(WorldError::ControllerStopped),
            Err(_) => Err(WorldError::NotInRotation {
                in_rotation: rotation.borrow().clone(),
                nodes,
                waited,
            }),
        }
    }

    /// Waits until each node port answers: kube-proxy's own process sets its rules some time after its start.
    async fn wait_for_forwarding(&self) -> Result<(), WorldError> {
        if self.settings.plan.target != Target::NodePort {
            return Ok(());
        }
        let probes: Vec<_> = (0..self.settings.nodes).map(node_port).collect();
        let mut asking = self.network.load_balancer.spawn("node-ports", move || async move {
            let mut silent: Vec<_> = (0..probes.len()).collect();
            let deadline = Instant::now() + FORWARDING_TIMEOUT;
            while Instant::now() < deadline {
                let mut still = Vec::new();
                for node in silent {
                    if !probes[node].succeeds(FORWARDING_PROBE_TIMEOUT).await {
                        still.push(node);
                    }
                }
                silent = still;
                if silent.is_empty() {
                    return silent;
                }
                sleep(FORWARDING_INTERVAL).await;
            }
            silent
        })?;
        let silent = asking.join().await?;
        if silent.is_empty() {
            return Ok(());
        }
        Err(WorldError::NotForwarding {
            silent,
            waited: FORWARDING_TIMEOUT,
        })
    }

    /// Whether the cloud removes the node from its load balancer because of this.
    fn is_removed_by(&self, action: Action) -> bool {
        match action {
            Action::Signal(signal) => self.settings.plan.removal.follows(signal),
            Action::PowerOff => self.settings.deleted_machines == DeletedMachines::Leave,
            _ => false,
        }
    }

    /// Carries out the steps while clients connect.
    async fn drive(
        &mut self,
        timeline: &Timeline,
        run: &RunSettings,
        control_plane: &mut ControlPlane,
        orders: &Orders,
        phase: &Phase,
    ) -> Result<(Instant, Observations, Vec<Observed>), WorldError> {
        let (clients_end, stopped) = watch::channel(false);
        let settings = ClientSettings {
            source: addresses::client(run.index),
            ..run.clients
        };
        let signal = timeline.first_signal();
        sleep(phase.wait(Instant::now() + signal.at, signal.node)).await;
        let mut running: Running<Observations> = self
            .network
            .clients
            .spawn("clients", move || clients::run(settings, stopped))?;
        let start = Instant::now();
        let mut events = Vec::new();
        let mut timeline = timeline.clone();
        let mut longest_lag = Duration::ZERO;
        for number in 0..timeline.steps.len() {
            let step = timeline.steps[number];
            sleep_until(start + step.at).await;
            if step.action.is_wait() {
                control_plane.carry_out(&step).await?;
                let mut took = start.elapsed().saturating_sub(step.at);
                if step.at < signal.at {
                    took += phase.wait(start + signal.at + took, signal.node);
                }
                timeline.postpone(number, took);
                if let Some(grace) = control_plane.grace_period() {
                    timeline.limit_grace_period(number, grace);
                }
                continue;
            }
            let at = Instant::now();
            longest_lag = longest_lag.max(at.saturating_duration_since(start + step.at));
            let is_first = !events
                .iter()
                .any(|seen: &Observed| seen.node == step.node && seen.event == Event::Signal);
            events.extend(event_of(step.action, is_first).map(|event| Observed {
                at,
                node: step.node,
                event,
            }));
            if step.action.announces() && is_first && self.probe(step.node).path.is_some() {
                // If the controller has ended, `run` reports that.
                let _ = orders.watch_health.send(step.node).await;
            }
            if self.is_removed_by(step.action) {
                let _ = orders.deregister.send(step.node).await;
            }
            self.carry_out(&step).await?;
            control_plane.carry_out(&step).await?;
            if self.endpoints != self.published {
                control_plane.publish(&self.endpoints).await?;
                self.published.clone_from(&self.endpoints);
            }
        }
        sleep_until(start + timeline.end).await;
        clients_end.send_replace(true);
        let bound = run.clients.timeout * 2 + CLIENTS_TIMEOUT;
        let mut observations = timeout(bound, running.join())
            .await
            .map_err(|_| WorldError::ClientsTimeout(bound))??;
        // A node that dies later than the timeline says leaves more time to take it out.
        observations.longest_lag = observations.longest_lag.max(longest_lag);
        if let Some(cluster) = control_plane.cluster() {
            cluster.settle().await?;
        }
        Ok((start, observations, events))
    }
}

/// The phase of the probes at which a run's first signal comes.
struct Phase {
    schedule: Schedule,
    share: f64,
}

impl Phase {
    fn wait(&self, at: Instant, node: usize) -> Duration {
        self.schedule.wait(at, node, self.share)
    }
}

/// Orders to the load balancer's controller in a run.
struct Orders {
    watch_health: mpsc::Sender<usize>,
    deregister: mpsc::Sender<usize>,
}

/// What a timeline shows of a step, which is the first that announces its node's end, or not.
fn event_of(action: Action, is_first: bool) -> Option<Event> {
    match action {
        _ if action.announces() && is_first => Some(Event::Signal),
        Action::TerminatePod => Some(Event::PodTerminating),
        Action::EndPod => Some(Event::PodEnded),
        Action::StartPod => Some(Event::PodReady),
        // Its packets are dropped some milliseconds later. What is lost from now on is lost with the machine.
        Action::PowerOff => Some(Event::NodeGone),
        _ => None,
    }
}

/// A handshake with a node's port of the Service.
const fn node_port(node: usize) -> Probe {
    Probe {
        address: SocketAddrV4::new(addresses::node(node), addresses::NODE_PORT),
        path: None,
    }
}

/// A change at the load balancer as an event; a health answer that fails because the machine is off is none.
fn observed((at, node, change): Changed, start: Instant, events: &[Observed]) -> Option<Observed> {
    let is_gone = || {
        events
            .iter()
            .any(|event| event.node == node && event.event == Event::NodeGone && event.at <= at)
    };
    let event = match change {
        Change::HealthFailed if !is_gone() => Event::Healthz503,
        Change::ProbeFailed => Event::ProbeFailed,
        Change::Probed(ProbeStatus::Down) => Event::ProbeDown,
        Change::InRotation(false) => Event::OutOfRotation,
        Change::HealthFailed | Change::Probed(ProbeStatus::Up) | Change::InRotation(true) => return None,
    };
    (at >= start).then_some(Observed { at, node, event })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Signal;

    #[test]
    fn what_announces_the_end_of_a_node_is_its_signal_once() {
        let taint = Action::Signal(Signal::AutoscalerTaint);
        for (action, is_first, expected) in [
            (taint, true, Some(Event::Signal)),
            (taint, false, None),
            (Action::Signal(Signal::AutoscalerCandidate), true, None),
            (Action::TerminatePod, true, Some(Event::Signal)),
            (Action::TerminatePod, false, Some(Event::PodTerminating)),
            (Action::EndPod, false, Some(Event::PodEnded)),
            (Action::StartPod, true, Some(Event::PodReady)),
            (Action::PowerOff, true, Some(Event::NodeGone)),
            (Action::StopApiServer, true, None),
        ] {
            assert_eq!(event_of(action, is_first), expected, "{action:?}, first: {is_first}");
        }
    }

    #[test]
    fn changes_at_the_load_balancer_are_events_of_their_run_but_for_answers_of_a_dead_machine() {
        let origin = Instant::now();
        let at = |seconds: u64| origin + Duration::from_secs(seconds);
        let dead = [Observed {
            at: at(5),
            node: 1,
            event: Event::NodeGone,
        }];
        for (seconds, node, change, expected) in [
            (0, 0, Change::ProbeFailed, None),
            (1, 0, Change::ProbeFailed, Some(Event::ProbeFailed)),
            (4, 1, Change::HealthFailed, Some(Event::Healthz503)),
            (5, 1, Change::HealthFailed, None),
            (6, 0, Change::HealthFailed, Some(Event::Healthz503)),
            (6, 1, Change::Probed(ProbeStatus::Down), Some(Event::ProbeDown)),
            (6, 1, Change::InRotation(false), Some(Event::OutOfRotation)),
            (7, 1, Change::Probed(ProbeStatus::Up), None),
            (7, 1, Change::InRotation(true), None),
        ] {
            let found = observed((at(seconds), node, change), at(1), &dead);
            let found = found.map(|found| found.event);
            assert_eq!(found, expected, "{change:?} of node {node} at {seconds} s");
        }
    }
}
