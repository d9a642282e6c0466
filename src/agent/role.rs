//! Which part of the work a process does.

/// Which part of the work a process does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It answers for its node, and never leads.
    Agent,
    /// It stands for election and leads, and does not answer for its node.
    Controller,
    /// Both.
    #[default]
    All,
}

impl Role {
    /// Its name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Controller => "controller",
            Self::All => "all",
        }
    }

    /// Whether it answers load balancers' probes.
    #[must_use]
    pub fn answers_probes(self) -> bool {
        self != Self::Controller
    }

    /// Whether it may lead.
    #[must_use]
    pub fn may_lead(self) -> bool {
        self != Self::Agent
    }
}
