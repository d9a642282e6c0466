//! Load balancers and backend pools as JSON documents; `summary` reads them without keeping the documents.
//!
//! A PUT replaces the whole pool, so a field that is omitted is lost. [`Pool::put_body`] therefore keeps every field that
//! was read, also those of newer API versions, except those that only ARM writes. An absent admin state and `None` are
//! equal.

use std::net::IpAddr;

use headgate_core::telemetry::words;
use serde_json::{Map, Value};

use crate::id::{Etag, PoolId};

mod address;
mod draft;
mod lenient;
mod put_body;
mod summary;

pub use draft::PoolDraft;
pub use put_body::PutBody;
pub(crate) use summary::parts::{
    ListedPool, LoadBalancerState, PartsPage, pools_of_rules, read_interfaces_page, read_pool, read_pools_page,
    read_provisioning_state, read_state, read_values_page, virtual_machine_of,
};
pub(crate) use summary::{ListPage, MAX_ADDRESSES, MAX_RULES, read_load_balancer, read_page};
pub use summary::{LoadBalancerSummary, PoolSummary};

words! {
    /// `adminState` of a pool entry: whether the load balancer sends it new connections.
    #[derive(Default, Hash)]
    pub enum AdminState {
        /// The health probe decides.
        #[default]
        None = "None",
        /// New connections, whatever the probe reports.
        Up = "Up",
        /// New connections are not sent to the entry, whatever the probe reports.
        Down = "Down",
    }
}

impl AdminState {
    /// Parses ARM's spelling in any case; `None` for an unknown word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|state| text.eq_ignore_ascii_case(state.as_str()))
    }
}

/// Whether an operation of ARM changes a resource at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProvisioningState {
    /// No operation runs: `Succeeded`, `Failed`, `Canceled`, or no state at all.
    Settled,
    /// An operation runs. A write now would supersede it.
    Busy,
}

impl ProvisioningState {
    fn from_document(document: &Value) -> Self {
        Self::from_text(
            document
                .pointer("/properties/provisioningState")
                .and_then(Value::as_str),
        )
    }

    /// The state of this name; none is settled.
    fn from_text(state: Option<&str>) -> Self {
        let settled = ["Succeeded", "Failed", "Canceled"];
        match state {
            Some(state) if !settled.iter().any(|word| state.eq_ignore_ascii_case(word)) => Self::Busy,
            _ => Self::Settled,
        }
    }
}

/// A backend pool as it was read, with changes for the next write.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Of the pool that was read.
    pub id: PoolId,
    /// The version that was read.
    pub etag: Option<Etag>,
    /// The whole document as it was read, with unknown fields.
    pub document: Value,
}

impl Pool {
    /// A pool from its document. The document has the etag, too, if the headers do not.
    pub(crate) fn from_document(id: PoolId, document: Value, etag: Option<Etag>) -> Result<Self, String> {
        if !document.is_object() {
            return Err("a pool that is not an object".to_owned());
        }
        let etag = etag.or_else(|| etag_of(&document));
        Ok(Self { id, etag, document })
    }

    /// Whether ARM is busy with the pool.
    pub fn provisioning_state(&self) -> ProvisioningState {
        ProvisioningState::from_document(&self.document)
    }

    /// The pool entries, in the document's order.
    pub fn addresses(&self) -> impl Iterator<Item = BackendAddress<'_>> {
        let addresses = self.document.pointer(ADDRESSES).and_then(Value::as_array);
        addresses.into_iter().flatten().map(BackendAddress::of_value)
    }

    /// Sets the admin state of the entry at this index of [`Self::addresses`]. Returns whether that changed the document.
    pub fn set_admin_state(&mut self, index: usize, state: AdminState) -> bool {
        let entry = entries_mut(&mut self.document).and_then(|entries| entries.get_mut(index));
        entry.is_some_and(|entry| set_admin_state(entry, state))
    }

    /// The body of a PUT: the document without the fields that only ARM writes.
    pub fn put_body(&self) -> PutBody<'_> {
        PutBody::new(&self.document, None)
    }
}

fn entries_mut(document: &mut Value) -> Option<&mut Vec<Value>> {
    document.pointer_mut(ADDRESSES)?.as_array_mut()
}

/// Sets the admin state of a pool entry. Returns whether that changed it.
fn set_admin_state(entry: &mut Value, state: AdminState) -> bool {
    let Value::Object(address) = entry else { return false };
    let present = address.get("properties").unwrap_or(&Value::Null);
    if !present.is_object() && !present.is_null() {
        return false;
    }
    let present = present.get("adminState").and_then(Value::as_str).unwrap_or("None");
    if AdminState::parse(present) == Some(state) {
        return false;
    }
    let properties = address.entry("properties").or_insert(Value::Null);
    if properties.is_null() {
        *properties = Value::Object(Map::new());
    }
    properties["adminState"] = state.as_str().into();
    true
}

const ADDRESSES: &str = "/properties/loadBalancerBackendAddresses";

/// A pool entry: one of a pool's backend addresses, as far as headgate reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackendAddress<'a> {
    name: Option<&'a str>,
    ip_address: Option<IpAddr>,
    interface: Option<&'a str>,
    admin_state: Option<AdminState>,
}

impl<'a> BackendAddress<'a> {
    fn of_value(entry: &'a Value) -> Self {
        let properties = entry.get("properties").unwrap_or(&Value::Null);
        let is_well_formed = entry.is_object() && (properties.is_object() || properties.is_null());
        let state = || match properties.get("adminState") {
            None | Some(Value::Null) => Some(AdminState::None),
            Some(value) => value.as_str().and_then(AdminState::parse),
        };
        let text = |value: Option<&'a Value>| value.and_then(Value::as_str);
        let interface = properties.get("networkInterfaceIPConfiguration");
        Self {
            name: text(entry.get("name")),
            ip_address: text(properties.get("ipAddress")).and_then(|address| address.parse().ok()),
            interface: text(interface.and_then(|interface| interface.get("id"))),
            admin_state: is_well_formed.then(state).flatten(),
        }
    }

    /// The entry's name: the name of a node, or one that Azure generated.
    pub fn name(self) -> Option<&'a str> {
        self.name
    }

    /// The entry's IP address; `None` if it is missing or malformed.
    pub fn ip_address(self) -> Option<IpAddr> {
        self.ip_address
    }

    /// The id of the entry's network interface configuration, in a NIC pool.
    pub fn network_interface_ip_configuration(self) -> Option<&'a str> {
        self.interface
    }

    /// The entry's admin state; `None` if the entry is malformed, or has a word that this version does not know and must
    /// not change.
    pub fn admin_state(self) -> Option<AdminState> {
        self.admin_state
    }
}

fn etag_of(document: &Value) -> Option<Etag> {
    document.get("etag").and_then(Value::as_str).and_then(Etag::new)
}

#[cfg(test)]
mod tests;
