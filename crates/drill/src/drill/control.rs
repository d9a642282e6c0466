//! The control plane of a strategy, chosen when the drill runs.

use headgate_sandbox::assets::Assets;
use tokio::sync::watch;

use super::{DrillError, Options};
use crate::cluster::{Cluster, ClusterError, ClusterSettings};
use crate::control_plane::{ControlPlane, NoControlPlane, Observed};
use crate::rotation::AdminState;
use crate::scenario::Step;
use crate::strategy::Plan;
use crate::world::WorldError;

/// The control plane of a strategy: strategies without agents need none.
pub(super) enum Control {
    None(NoControlPlane),
    Cluster(Box<Cluster>),
}

impl Control {
    pub(super) async fn start(options: &Options, plan: &Plan) -> Result<Self, DrillError> {
        if !plan.runs_agents {
            return Ok(Self::None(NoControlPlane::new(options.nodes)));
        }
        let settings = ClusterSettings {
            program: options.program.clone(),
            assets: Assets::find(options.assets.as_deref())?,
            nodes: options.nodes,
            sets_admin_state: plan.sets_admin_state,
            operation_delay: options.speed.real(options.operation_delay),
        };
        Ok(Self::Cluster(Box::new(Cluster::start(settings).await?)))
    }

    pub(super) async fn restore(&mut self) -> Result<(), ClusterError> {
        match self {
            Self::None(_) => Ok(()),
            Self::Cluster(cluster) => cluster.restore().await,
        }
    }

    pub(super) async fn wait_for_leader(&self) -> Result<(), ClusterError> {
        match self {
            Self::None(_) => Ok(()),
            Self::Cluster(cluster) => cluster.wait_for_leader().await,
        }
    }
}

impl ControlPlane for Control {
    async fn carry_out(&mut self, step: &Step) -> Result<(), WorldError> {
        match self {
            Self::None(none) => none.carry_out(step).await,
            Self::Cluster(cluster) => cluster.carry_out(step).await,
        }
    }

    fn admin_states(&self) -> watch::Receiver<Vec<AdminState>> {
        match self {
            Self::None(none) => none.admin_states(),
            Self::Cluster(cluster) => cluster.admin_states(),
        }
    }

    fn take_events(&mut self) -> Vec<Observed> {
        match self {
            Self::None(none) => none.take_events(),
            Self::Cluster(cluster) => cluster.take_events(),
        }
    }
}
