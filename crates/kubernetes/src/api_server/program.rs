//! What requests say of the program that sends them.
//!
//! The API server takes the field manager of a write from the part of the User-Agent before the slash, so no write names one.

use hyper::header::{HeaderValue, USER_AGENT};

/// The program that a client belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// The agent on a node.
    Agent,
    /// A controller: a candidate for leadership that serves no probes.
    Controller,
    /// A command of an operator.
    Cli,
    /// The sandbox and the drill.
    Sandbox,
}

impl Program {
    /// The configuration with this program's User-Agent.
    pub(super) fn on(self, config: &kube::Config) -> kube::Config {
        let mut config = config.clone();
        config
            .headers
            .push((USER_AGENT, HeaderValue::from_static(self.user_agent())));
        config
    }

    const fn user_agent(self) -> &'static str {
        match self {
            Self::Agent => concat!("headgate-agent/", env!("CARGO_PKG_VERSION")),
            Self::Controller => concat!("headgate-controller/", env!("CARGO_PKG_VERSION")),
            Self::Cli => concat!("headgate-cli/", env!("CARGO_PKG_VERSION")),
            Self::Sandbox => concat!("headgate-sandbox/", env!("CARGO_PKG_VERSION")),
        }
    }
}
