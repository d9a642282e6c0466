//! Parts of a load balancer, for one that is too large to be read whole: the beginning of its document, pages of its rules, probes
//! and pools, and single pools.

use std::collections::BTreeSet;

use headgate_core::lower_case;
use serde::de::{Error as _, MapAccess, SeqAccess};
use serde_json::Value;

use super::{
    BackendAddress, Fields, Items, Lenient, LoadBalancerSummary, MAX_ADDRESSES, Object, PageReader, PoolReader,
    PoolSummary, PoolsReader, ProvisioningState, ValuesReader, read_object, read_text, skip_value,
};
use crate::body_stream::BodyReader;
use crate::id::{Etag, LoadBalancerId, NetworkInterfaceId, PoolId};

/// What the beginning of a load balancer's document says: ARM writes the state before everything that may be large.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LoadBalancerState {
    id: Option<String>,
    etag: Option<Etag>,
    /// Empty if it is no text; `None` where the document has none.
    state: Option<String>,
}

impl LoadBalancerState {
    pub(crate) fn provisioning_state(&self) -> ProvisioningState {
        ProvisioningState::from_text(self.state.as_deref().filter(|state| !state.is_empty()))
    }
}

/// One page of a list of parts.
pub(crate) struct PartsPage<T> {
    pub(crate) items: Vec<T>,
    pub(crate) next_link: Option<String>,
}

/// A pool in the list of the pools of a load balancer.
pub(crate) enum ListedPool<E> {
    Shown(PoolSummary<E>),
    /// Without its entries. A single pool always shows them, even if there are none.
    WithoutEntries(PoolId),
}

impl<E> ListedPool<E> {
    /// What it counts towards the limit of pool entries in memory.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Shown(pool) => pool.weight(),
            Self::WithoutEntries(_) => 1,
        }
    }
}

/// Reads the state of a load balancer from the beginning of its document, or from all of it.
pub(crate) fn read_state(beginning: BodyReader) -> Result<LoadBalancerState, String> {
    let mut reader = LoadBalancerState::default();
    match read_object(beginning, &mut reader) {
        // The reader stops where it has found the state.
        Err(error) if reader.state.is_none() => Err(format!(
            "no provisioningState at the beginning of the load balancer: {error}"
        )),
        _ => Ok(reader),
    }
}

/// Reads the `provisioningState` of a resource; `None` if it is none, or has none. What follows the state is not parsed.
pub(crate) fn read_provisioning_state(body: BodyReader) -> Option<String> {
    let mut reader = LoadBalancerState::default();
    // It is an error where the reader stops, too.
    drop(read_object(body, &mut reader));
    reader.state
}

/// Reads a page of rules or probes.
pub(crate) fn read_values_page(body: BodyReader) -> Result<PartsPage<Value>, String> {
    let mut reader = PageReader::new(ValuesReader(Vec::new()));
    let next_link = reader.read(body)?;
    let items = reader.items.0;
    Ok(PartsPage { items, next_link })
}

/// Reads a page of network interfaces: the virtual machines of those that have one.
pub(crate) fn read_interfaces_page(body: BodyReader) -> Result<PartsPage<(NetworkInterfaceId, String)>, String> {
    let mut reader = PageReader::new(InterfacesReader(Vec::new()));
    let next_link = reader.read(body)?;
    let items = reader.items.0;
    Ok(PartsPage { items, next_link })
}

/// The resource id of the virtual machine that has this network interface, in lower case.
pub(crate) fn virtual_machine_of(interface: &Value) -> Option<String> {
    let machine = interface.pointer("/properties/virtualMachine/id")?;
    machine.as_str().map(lower_case)
}

/// Reads a page of the pools of a load balancer. Omits pools without a name.
pub(crate) fn read_pools_page<E>(
    body: BodyReader,
    load_balancer: &LoadBalancerId,
    convert: &dyn Fn(BackendAddress<'_>) -> E,
) -> Result<PartsPage<ListedPool<E>>, String> {
    let mut reader = PageReader::new(PoolsReader::new(convert));
    let next_link = reader.read(body)?;
    let pools = reader.items.pools.into_iter();
    let items = pools.filter_map(|pool| {
        let has_entries = pool.properties.has_addresses;
        let pool = pool.finish(load_balancer, None)?;
        Some(if has_entries {
            ListedPool::Shown(pool)
        } else {
            ListedPool::WithoutEntries(pool.id)
        })
    });
    let items = items.collect();
    Ok(PartsPage { items, next_link })
}

/// Reads one pool.
pub(crate) fn read_pool<E>(
    body: BodyReader,
    id: &PoolId,
    convert: &dyn Fn(BackendAddress<'_>) -> E,
) -> Result<PoolSummary<E>, String> {
    let mut reader = PoolReader::new(convert, MAX_ADDRESSES);
    read_object(body, &mut reader)?;
    let found = reader.finish(id.load_balancer(), None).ok_or("a pool without name")?;
    if found.id == *id {
        Ok(found)
    } else {
        Err(format!("it is the pool {}", found.id))
    }
}

/// The pools of this load balancer that its rules use.
pub(crate) fn pools_of_rules(rules: &[Value], load_balancer: &LoadBalancerId) -> BTreeSet<PoolId> {
    let references = rules.iter().flat_map(|rule| {
        let several = rule.pointer("/properties/backendAddressPools");
        let several = several.and_then(Value::as_array).into_iter().flatten();
        several.chain(rule.pointer("/properties/backendAddressPool"))
    });
    let ids = references.filter_map(|reference| PoolId::parse(reference.get("id")?.as_str()?).ok());
    ids.filter(|id| id.load_balancer() == load_balancer).collect()
}

impl<E> PoolSummary<E> {
    /// Adds the etag of the response's headers to a pool whose document has none.
    pub(crate) fn with_etag(mut self, etag: Option<Etag>) -> Self {
        self.etag = self.etag.or(etag);
        self
    }
}

impl<E> LoadBalancerSummary<E> {
    /// A load balancer from its parts; `requested` is the id that was asked for.
    pub(crate) fn assemble(
        requested: &LoadBalancerId,
        state: LoadBalancerState,
        rules: Vec<Value>,
        probes: Vec<Value>,
        pools: Vec<PoolSummary<E>>,
    ) -> Self {
        let pools = pools.into_iter().map(|pool| pool.with_etag(state.etag.clone()));
        let id = state.id.as_deref().and_then(|id| LoadBalancerId::parse(id).ok());
        Self {
            pools: pools.collect(),
            // In the document's case, if it is this load balancer's.
            provisioning_state: state.provisioning_state(),
            id: id.filter(|id| id == requested).unwrap_or_else(|| requested.clone()),
            etag: state.etag,
            rules: Value::from_iter([("loadBalancingRules", rules), ("probes", probes)]),
        }
    }
}

struct InterfacesReader(Vec<(NetworkInterfaceId, String)>);

impl Items for InterfacesReader {
    fn item<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        // A document of some 2 KB, of which two texts are kept.
        let Some(interface) = seq.next_element::<Value>()? else {
            return Ok(false);
        };
        let id = interface.get("id").and_then(Value::as_str);
        let id = id.and_then(|id| NetworkInterfaceId::parse(id).ok());
        self.0.extend(id.zip(virtual_machine_of(&interface)));
        Ok(true)
    }
}

impl Fields for LoadBalancerState {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "id" => self.id = read_text(map)?,
            "etag" => self.etag = read_text(map)?.as_deref().and_then(Etag::new),
            "properties" => drop(map.next_value_seed(Lenient(Object(&mut PropertiesStateReader(&mut self.state))))?),
            _ => skip_value(map)?,
        }
        Ok(())
    }
}

struct PropertiesStateReader<'a>(&'a mut Option<String>);

impl Fields for PropertiesStateReader<'_> {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        if name != "provisioningState" {
            return skip_value(map);
        }
        *self.0 = Some(read_text(map)?.unwrap_or_default());
        Err(A::Error::custom("the rest is not needed"))
    }
}
