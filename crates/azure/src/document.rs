//! Load balancers and backend pools as documents: JSON, in which what is not known here is kept.
//!
//! A PUT replaces a pool, so whatever is left out is lost: [`Pool::put_body`] gives back all that was read but
//! what ARM alone writes (specs azure-arm.md 1.4 and 1.5). A field that a newer API brings survives.
//! An admin state that is absent and one that says `None` are the same.

use std::collections::HashMap;
use std::net::IpAddr;

use serde_json::{Map, Value};

use super::id::{Etag, LoadBalancerId, PoolId};

mod put_body;

pub use put_body::PutBody;

/// Whether an address gets new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AdminState {
    /// As the probe says.
    #[default]
    None,
    /// Always.
    Up,
    /// Never.
    Down,
}

impl AdminState {
    /// As ARM writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Up => "Up",
            Self::Down => "Down",
        }
    }

    /// Reads it, in any case; nothing of what is not known.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let states = [Self::None, Self::Up, Self::Down];
        states
            .into_iter()
            .find(|state| text.eq_ignore_ascii_case(state.as_str()))
    }
}

/// Whether ARM is busy with a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProvisioningState {
    /// It is not.
    Settled,
    /// It is: a write now would take the place of the one under way.
    Busy,
}

impl ProvisioningState {
    /// Of a document; one without is settled.
    fn of(document: &Value) -> Self {
        let state = document
            .pointer("/properties/provisioningState")
            .and_then(Value::as_str);
        let settled = ["Succeeded", "Failed", "Canceled"];
        match state {
            Some(state) if !settled.iter().any(|word| state.eq_ignore_ascii_case(word)) => Self::Busy,
            _ => Self::Settled,
        }
    }
}

/// A load balancer as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadBalancer {
    /// Which.
    pub id: LoadBalancerId,
    /// Its state's.
    pub etag: Option<Etag>,
    /// All of it.
    pub document: Value,
}

impl LoadBalancer {
    /// Of what ARM showed; the etag stands in the document where no header had it.
    pub(super) fn read(document: Value, etag: Option<Etag>) -> Result<Self, String> {
        let id = document
            .get("id")
            .and_then(Value::as_str)
            .ok_or("a load balancer without id")?;
        let id = LoadBalancerId::parse(id).map_err(|error| error.to_string())?;
        let etag = etag.or_else(|| written_etag(&document));
        Ok(Self { id, etag, document })
    }

    /// Whether ARM is busy with it.
    #[must_use]
    pub fn provisioning_state(&self) -> ProvisioningState {
        ProvisioningState::of(&self.document)
    }

    /// Takes its pools out of the document; those without a name are none.
    pub fn take_pools(&mut self) -> Vec<Pool> {
        let pools = self.document.pointer_mut("/properties/backendAddressPools");
        let Some(Value::Array(pools)) = pools.map(Value::take) else {
            return Vec::new();
        };
        let pool = |document: Value| {
            let name = document.get("name").and_then(Value::as_str)?;
            Some(Pool {
                id: self.id.pool(name).ok()?,
                etag: written_etag(&document).or_else(|| self.etag.clone()),
                document,
            })
        };
        pools.into_iter().filter_map(pool).collect()
    }
}

/// A backend pool as it was read, and maybe changed since.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Which.
    pub id: PoolId,
    /// Of the state that was read.
    pub etag: Option<Etag>,
    /// All of it.
    pub document: Value,
}

impl Pool {
    /// Of what ARM showed.
    pub(super) fn read(id: PoolId, document: Value, etag: Option<Etag>) -> Result<Self, String> {
        if !document.is_object() {
            return Err("a pool that is no object".to_owned());
        }
        let etag = etag.or_else(|| written_etag(&document));
        Ok(Self { id, etag, document })
    }

    /// Whether ARM is busy with it.
    #[must_use]
    pub fn provisioning_state(&self) -> ProvisioningState {
        ProvisioningState::of(&self.document)
    }

    /// Its addresses, in their order.
    pub fn addresses(&self) -> impl Iterator<Item = Address<'_>> {
        self.array().into_iter().flatten().map(BackendAddress)
    }

    /// Sets the admin state of the address at this place of [`Self::addresses`]; says whether that changed it.
    pub fn set_admin_state(&mut self, place: usize, state: AdminState) -> bool {
        let addresses = self.document.pointer_mut(ADDRESSES).and_then(Value::as_array_mut);
        let Some(Value::Object(address)) = addresses.and_then(|addresses| addresses.get_mut(place)) else {
            return false;
        };
        let properties = address.entry("properties").or_insert_with(|| Value::Object(Map::new()));
        if properties.is_null() {
            *properties = Value::Object(Map::new());
        }
        let Value::Object(properties) = properties else {
            return false;
        };
        let was = properties.get("adminState").and_then(Value::as_str).unwrap_or("None");
        if AdminState::parse(was) == Some(state) {
            return false;
        }
        properties.insert("adminState".to_owned(), state.as_str().into());
        true
    }

    /// The document for a PUT: what only ARM writes is left out, in the pool and in each address, and nothing else.
    #[must_use]
    pub fn put_body(&self) -> PutBody<'_> {
        PutBody::pool(&self.document)
    }

    /// Whether this pool, as it was read, has the members and the admin states of that one: what a write
    /// was to bring about. ARM may spell ids and addresses in other ways, so nothing else is compared.
    #[must_use]
    pub fn shows(&self, written: &Self) -> bool {
        let mut members: HashMap<_, Vec<_>> = HashMap::new();
        for address in self.addresses() {
            members.entry(address.key()).or_default().push(address.seen());
        }
        let found = written.addresses().all(|address| {
            let seen = members.get_mut(&address.key());
            seen.is_some_and(|seen| {
                let place = seen.iter().position(|seen| *seen == address.seen());
                place.map(|place| seen.swap_remove(place)).is_some()
            })
        });
        found && members.values().all(Vec::is_empty)
    }

    fn array(&self) -> Option<&Vec<Value>> {
        self.document.pointer(ADDRESSES).and_then(Value::as_array)
    }
}

const ADDRESSES: &str = "/properties/loadBalancerBackendAddresses";

/// A pool's member.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Address<'a>(&'a Value);

impl<'a> Address<'a> {
    /// Its name: a node's, or one of Azure's making.
    #[must_use]
    pub fn name(self) -> Option<&'a str> {
        self.0.get("name").and_then(Value::as_str)
    }

    /// Its IP address; none where that is missing or no address.
    #[must_use]
    pub fn ip_address(self) -> Option<IpAddr> {
        self.property("ipAddress")?.as_str()?.parse().ok()
    }

    /// The id of the interface's configuration it stands for.
    #[must_use]
    pub fn network_interface_ip_configuration(self) -> Option<&'a str> {
        self.property("networkInterfaceIPConfiguration")?.get("id")?.as_str()
    }

    /// Its admin state; none for a word that is not known, which is not ours to change, and where there is no place
    /// for one.
    #[must_use]
    pub fn admin_state(self) -> Option<AdminState> {
        let properties = self.0.get("properties").unwrap_or(&Value::Null);
        if !self.0.is_object() || !properties.is_object() && !properties.is_null() {
            return None;
        }
        match self.property("adminState") {
            None | Some(Value::Null) => Some(AdminState::None),
            Some(value) => value.as_str().and_then(AdminState::parse),
        }
    }

    fn property(self, name: &str) -> Option<&'a Value> {
        self.0.get("properties")?.get(name)
    }

    fn key(self) -> String {
        self.name().unwrap_or_default().to_ascii_lowercase()
    }

    /// What is compared of it.
    fn seen(self) -> (Option<IpAddr>, Option<AdminState>) {
        (self.ip_address(), self.admin_state())
    }
}

fn written_etag(document: &Value) -> Option<Etag> {
    document.get("etag").and_then(Value::as_str).and_then(Etag::new)
}

#[cfg(test)]
mod tests;
