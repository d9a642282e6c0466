//! What a run needs of a control plane, and the run without one.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::endpoints::Endpoint;
use crate::result::Event;
use crate::rotation::AdminState;
use crate::scenario::Step;
use crate::world::WorldError;

/// Receives the actions of a run that concern the control plane, and gives admin states.
pub trait ControlPlane {
    /// Carries out its part of a step, and returns once that is done; a step that waits for others takes their time.
    /// What else takes seconds at any speed goes on after it.
    ///
    /// # Errors
    /// It cannot be done.
    fn carry_out(&mut self, step: &Step) -> impl Future<Output = Result<(), WorldError>>;

    /// Publishes the Service's endpoints to those who watch the API server.
    ///
    /// # Errors
    /// They cannot be written.
    fn publish(&mut self, endpoints: &[Endpoint]) -> impl Future<Output = Result<(), WorldError>>;

    /// Returns once all that steps have begun is done.
    ///
    /// # Errors
    /// Something of it cannot be done.
    fn settle(&mut self) -> impl Future<Output = Result<(), WorldError>>;

    /// How long the Pod that it was last waited for may take to end, really; none if nobody said.
    fn grace_period(&self) -> Option<Duration> {
        None
    }

    /// What it shows for each backend.
    fn admin_states(&self) -> watch::Receiver<Vec<AdminState>>;

    /// Events of its own since the last call.
    fn take_events(&mut self) -> Vec<Observed>;
}

/// No control plane: no admin states, and signals reach kube-proxy alone.
#[derive(Debug)]
pub struct NoControlPlane(watch::Sender<Vec<AdminState>>);

impl NoControlPlane {
    /// For this many nodes.
    pub fn new(nodes: usize) -> Self {
        Self(watch::Sender::new(vec![AdminState::None; nodes]))
    }

    /// Sets what it shows.
    pub fn clone_sender(&self) -> watch::Sender<Vec<AdminState>> {
        self.0.clone()
    }
}

impl ControlPlane for NoControlPlane {
    async fn carry_out(&mut self, _step: &Step) -> Result<(), WorldError> {
        Ok(())
    }

    async fn publish(&mut self, _endpoints: &[Endpoint]) -> Result<(), WorldError> {
        Ok(())
    }

    async fn settle(&mut self) -> Result<(), WorldError> {
        Ok(())
    }

    fn admin_states(&self) -> watch::Receiver<Vec<AdminState>> {
        self.0.subscribe()
    }

    fn take_events(&mut self) -> Vec<Observed> {
        Vec::new()
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
