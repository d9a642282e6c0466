//! The state of the Services' own ports, for those who look: metrics, events, people.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::super::proxy::Family;
use super::object::ObjectKey;

/// A Service's port in one IP family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortKey {
    /// The Service.
    pub service: Arc<ObjectKey>,
    /// The family.
    pub family: Family,
}

/// Which ports are open and which should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Whether the ports of a table were tried once.
    pub tried: bool,
    /// The addresses of those that are open.
    pub open: BTreeMap<PortKey, Vec<SocketAddr>>,
    /// Those that cannot be opened.
    pub failed: BTreeMap<PortKey, Failure>,
}

/// A port that cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The Service's UID.
    pub uid: Box<str>,
    /// The port.
    pub port: u16,
    /// Why.
    pub error: String,
}
