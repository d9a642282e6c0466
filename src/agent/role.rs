//! The role of a process: whether it answers for its node, and whether it may lead.

use clap::ValueEnum;
use headgate_core::telemetry::words;
use headgate_kubernetes::leader::CandidatePlacement;

words! {
    /// The role of a process, from `--role`.
    #[derive(Default, ValueEnum)]
    pub enum Role {
        /// Serve the health port; never lead
        Agent = "agent",
        /// Stand for election and lead; no health port
        Controller = "controller",
        /// Both
        #[default]
        All = "all",
    }
}

impl Role {
    /// Whether the process answers the probes of load balancers.
    pub(crate) fn answers_probes(self) -> bool {
        self != Self::Controller
    }

    /// Whether the process may lead.
    pub(crate) fn may_lead(self) -> bool {
        self != Self::Agent
    }

    /// Where the candidates run if this process is one of them.
    pub(crate) fn candidate_placement(self) -> CandidatePlacement {
        if self.answers_probes() {
            CandidatePlacement::EveryNode
        } else {
            CandidatePlacement::Replicas
        }
    }
}
