//! The control plane of a run, which may be none.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::cluster::{Cluster, ClusterError};
use crate::endpoints::Endpoint;
use crate::result::Event;
use crate::rotation::AdminState;
use crate::scenario::Step;

/// Receives the actions of a run that concern the control plane, and gives admin states.
#[derive(Debug)]
pub enum ControlPlane {
    /// None: signals reach kube-proxy alone. The admin states are what is sent here.
    None(watch::Sender<Vec<AdminState>>),
    /// A real one.
    Cluster(Box<Cluster>),
}

impl ControlPlane {
    /// None, for this many nodes.
    pub fn none(nodes: usize) -> Self {
        Self::None(watch::Sender::new(vec![AdminState::None; nodes]))
    }

    /// The real one, if it is one.
    pub(crate) fn cluster(&mut self) -> Option<&mut Cluster> {
        match self {
            Self::None(_) => None,
            Self::Cluster(cluster) => Some(cluster),
        }
    }

    /// Carries out its part of a step, and returns once that is done; a step that waits for others takes their time.
    /// What else takes seconds at any speed goes on after it.
    ///
    /// # Errors
    /// It cannot be done.
    pub(crate) async fn carry_out(&mut self, step: &Step) -> Result<(), ClusterError> {
        match self.cluster() {
            Some(cluster) => cluster.carry_out(step).await,
            None => Ok(()),
        }
    }

    /// Publishes the Service's endpoints to those who watch the API server.
    ///
    /// # Errors
    /// They cannot be written.
    pub(crate) async fn publish(&mut self, endpoints: &[Endpoint]) -> Result<(), ClusterError> {
        match self.cluster() {
            Some(cluster) => cluster.publish(endpoints).await,
            None => Ok(()),
        }
    }

    /// How long the Pod that it was last waited for may take to end, really; none if nobody said.
    pub(crate) fn grace_period(&mut self) -> Option<Duration> {
        self.cluster()?.grace_period
    }

    /// What it shows for each backend.
    pub(crate) fn admin_states(&self) -> watch::Receiver<Vec<AdminState>> {
        match self {
            Self::None(states) => states.subscribe(),
            Self::Cluster(cluster) => cluster.admin_states.clone(),
        }
    }
}

/// Something that happened to a node, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The time of the event.
    pub at: Instant,
    /// The index of the node, from 0.
    pub node: usize,
    /// The event on the node.
    pub event: Event,
}
