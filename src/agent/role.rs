//! The role of a process: whether it answers for its node, and whether it may lead.

use headgate_leader::CandidatePlacement;

/// The role of a process, from `--role`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Answers for its node, and never leads.
    Agent,
    /// Is a candidate for leader, and does not answer for its node.
    Controller,
    /// Answers for its node, and is a candidate for leader.
    #[default]
    All,
}

impl Role {
    /// The value of `--role`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Controller => "controller",
            Self::All => "all",
        }
    }

    /// Whether the process answers the probes of load balancers.
    #[must_use]
    pub fn answers_probes(self) -> bool {
        self != Self::Controller
    }

    /// Whether the process may lead.
    #[must_use]
    pub fn may_lead(self) -> bool {
        self != Self::Agent
    }

    /// Where the candidates run if this process is one of them.
    #[must_use]
    pub fn candidate_placement(self) -> CandidatePlacement {
        if self.answers_probes() {
            CandidatePlacement::EveryNode
        } else {
            CandidatePlacement::Replicas
        }
    }
}
