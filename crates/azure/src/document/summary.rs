//! Load balancers as far as plans need them, read element by element, also from text that still arrives.
//!
//! Each pool entry is converted as soon as it is read, so the memory for a list is that of the converted entries. A JSON value
//! of an unexpected type is an empty object or array, as in the whole documents. Documents that are written are read whole.

use serde::de::{DeserializeSeed as _, Error as _, IgnoredAny, MapAccess, SeqAccess};
use serde_json::{Deserializer, Value, json};

use super::address::AddressReader;
use super::lenient::{Array, Fields, Items, Lenient, Object, Shape, read_text, skip_value};
use super::{BackendAddress, ProvisioningState};
use crate::body_stream::BodyReader;
use crate::id::{Etag, LoadBalancerId, PoolId};

pub(super) mod parts;

/// Pool entries in one response; ARM's limits allow a tenth of it.
pub(crate) const MAX_ADDRESSES: usize = 500_000;
/// Rules and probes of one load balancer; ARM allows 1,500 rules.
pub(crate) const MAX_RULES: usize = 20_000;

/// A load balancer without the documents of its pools. `E` is what a pool entry is converted to.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadBalancerSummary<E> {
    /// The resource id, from the document.
    pub id: LoadBalancerId,
    /// The version of the load balancer and its pools.
    pub etag: Option<Etag>,
    /// Whether ARM is busy with the load balancer.
    pub provisioning_state: ProvisioningState,
    /// Its `properties` with `loadBalancingRules` and `probes` only.
    pub rules: Value,
    /// In the order of the document. Omits pools without a name.
    pub pools: Vec<PoolSummary<E>>,
}

impl<E> LoadBalancerSummary<E> {
    /// The summary of a document that is in memory.
    ///
    /// # Errors
    /// When it has no id of a load balancer, or more than a response may have.
    pub fn from_document(document: &Value, convert: impl Fn(BackendAddress<'_>) -> E) -> Result<Self, String> {
        let mut reader = LoadBalancerReader::new(&|_| true, &convert);
        Lenient(Object(&mut reader))
            .deserialize(document)
            .map_err(|error| error.to_string())?;
        reader.finish()
    }

    /// Replaces the etag of the document by that of the headers, if they have one.
    pub(crate) fn set_etag(&mut self, header: Option<Etag>) {
        let Some(header) = header else { return };
        for pool in &mut self.pools {
            if !pool.has_own_etag {
                pool.etag = Some(header.clone());
            }
        }
        self.etag = Some(header);
    }
}

/// A pool without its document.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolSummary<E> {
    /// The pool's resource id.
    pub id: PoolId,
    /// The version that was read.
    pub etag: Option<Etag>,
    /// Whether ARM is busy with the pool.
    pub provisioning_state: ProvisioningState,
    /// The converted pool entries, in the document's order.
    pub addresses: Vec<E>,
    /// Whether the document shows IP configurations of the pool, and not the pool entries that they are.
    pub are_addresses_missing: bool,
    /// Whether the etag is not that of the load balancer.
    has_own_etag: bool,
}

impl<E> PoolSummary<E> {
    /// What the pool counts towards the limit of pool entries in memory; empty pools count as well.
    pub(crate) fn weight(&self) -> usize {
        self.addresses.len().max(1)
    }
}

/// One page of a list.
pub(crate) struct ListPage<E> {
    pub(crate) load_balancers: Vec<LoadBalancerSummary<E>>,
    /// Those that were not selected.
    pub(crate) others: Vec<LoadBalancerId>,
    pub(crate) next_link: Option<String>,
}

/// Reads a page of a list. Omits, and logs, an item that is not a load balancer.
pub(crate) fn read_page<E>(
    body: BodyReader,
    select: &dyn Fn(&LoadBalancerId) -> bool,
    convert: &dyn Fn(BackendAddress<'_>) -> E,
) -> Result<ListPage<E>, String> {
    let mut reader = PageReader::new(ItemsReader {
        select,
        convert,
        addresses: 0,
        load_balancers: Vec::new(),
        others: Vec::new(),
    });
    let next_link = reader.read(body)?;
    Ok(ListPage {
        load_balancers: reader.items.load_balancers,
        others: reader.items.others,
        next_link,
    })
}

/// Reads one load balancer.
pub(crate) fn read_load_balancer<E>(
    body: BodyReader,
    convert: &dyn Fn(BackendAddress<'_>) -> E,
) -> Result<LoadBalancerSummary<E>, String> {
    let mut reader = LoadBalancerReader::new(&|_| true, convert);
    read_object(body, &mut reader)?;
    reader.finish()
}

/// Reads a body to its end.
fn read_object<F: Fields>(body: BodyReader, fields: &mut F) -> Result<(), String> {
    fn read<'de, R: serde_json::de::Read<'de>>(
        mut json: Deserializer<R>,
        fields: &mut impl Fields,
    ) -> serde_json::Result<()> {
        Lenient(Object(fields)).deserialize(&mut json).and_then(|_| json.end())
    }
    let read = match body.text() {
        Some(text) => read(Deserializer::from_slice(text), fields),
        None => read(Deserializer::from_reader(body), fields),
    };
    read.map_err(|error| format!("it is not JSON: {error}"))
}

/// Reads a page of a list, its items with `I`.
struct PageReader<I> {
    items: I,
    has_items: bool,
    next_link: Option<String>,
}

impl<I: Items> PageReader<I> {
    fn new(items: I) -> Self {
        Self {
            items,
            has_items: false,
            next_link: None,
        }
    }

    /// Reads the body of a response. Returns the link to the next page.
    fn read(&mut self, body: BodyReader) -> Result<Option<String>, String> {
        read_object(body, self)?;
        if !self.has_items {
            return Err("a list without value".to_owned());
        }
        Ok(self.next_link.take().filter(|link| !link.is_empty()))
    }
}

impl<I: Items> Fields for PageReader<I> {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "value" => self.has_items = map.next_value_seed(Lenient(Array(&mut self.items)))? == Shape::Read,
            "nextLink" => self.next_link = read_text(map)?,
            _ => skip_value(map)?,
        }
        Ok(())
    }
}

struct ItemsReader<'a, E> {
    select: &'a dyn Fn(&LoadBalancerId) -> bool,
    convert: &'a dyn Fn(BackendAddress<'_>) -> E,
    /// The pool entries so far.
    addresses: usize,
    load_balancers: Vec<LoadBalancerSummary<E>>,
    others: Vec<LoadBalancerId>,
}

impl<E> Items for ItemsReader<'_, E> {
    fn item<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        let mut reader = LoadBalancerReader::new(self.select, self.convert);
        reader.properties.pools.addresses = self.addresses;
        if seq.next_element_seed(Lenient(Object(&mut reader)))?.is_none() {
            return Ok(false);
        }
        match reader.id() {
            Some(Ok(id)) if (self.select)(&id) => {
                self.addresses = reader.properties.pools.addresses;
                self.load_balancers.push(reader.summary(id));
            }
            Some(Ok(id)) => self.others.push(id),
            Some(Err(error)) => tracing::warn!(error, "load balancer in ARM's list ignored"),
            None => tracing::warn!(
                error = "a load balancer without id",
                "load balancer in ARM's list ignored"
            ),
        }
        Ok(true)
    }
}

struct LoadBalancerReader<'a, E> {
    select: &'a dyn Fn(&LoadBalancerId) -> bool,
    id: Option<String>,
    etag: Option<Etag>,
    properties: PropertiesReader<'a, E>,
}

impl<'a, E> LoadBalancerReader<'a, E> {
    fn new(select: &'a dyn Fn(&LoadBalancerId) -> bool, convert: &'a dyn Fn(BackendAddress<'_>) -> E) -> Self {
        Self {
            select,
            id: None,
            etag: None,
            properties: PropertiesReader {
                provisioning_state: ProvisioningState::Settled,
                rules: Value::Null,
                probes: Value::Null,
                pools: PoolsReader::new(convert),
            },
        }
    }

    fn id(&self) -> Option<Result<LoadBalancerId, String>> {
        let id = LoadBalancerId::parse(self.id.as_deref()?);
        Some(id.map_err(|error| error.to_string()))
    }

    /// Whether the properties are not needed. ARM writes the id before them.
    fn is_skipped(&self) -> bool {
        self.id().is_some_and(|id| !id.is_ok_and(|id| (self.select)(&id)))
    }

    fn finish(self) -> Result<LoadBalancerSummary<E>, String> {
        let id = self.id().ok_or("a load balancer without id")??;
        Ok(self.summary(id))
    }

    fn summary(self, id: LoadBalancerId) -> LoadBalancerSummary<E> {
        let PropertiesReader {
            provisioning_state,
            rules,
            probes,
            pools,
        } = self.properties;
        let pools = pools.pools.into_iter();
        let pools = pools.filter_map(|pool| pool.finish(&id, self.etag.as_ref()));
        LoadBalancerSummary {
            provisioning_state,
            rules: json!({"loadBalancingRules": rules, "probes": probes}),
            pools: pools.collect(),
            etag: self.etag,
            id,
        }
    }
}

impl<E> Fields for LoadBalancerReader<'_, E> {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "id" => self.id = read_text(map)?,
            "etag" => self.etag = read_text(map)?.as_deref().and_then(Etag::new),
            "properties" if !self.is_skipped() => drop(map.next_value_seed(Lenient(Object(&mut self.properties)))?),
            _ => skip_value(map)?,
        }
        Ok(())
    }
}

struct PropertiesReader<'a, E> {
    provisioning_state: ProvisioningState,
    rules: Value,
    probes: Value,
    pools: PoolsReader<'a, E>,
}

impl<E> Fields for PropertiesReader<'_, E> {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "provisioningState" => {
                self.provisioning_state = ProvisioningState::from_text(read_text(map)?.as_deref());
            }
            "loadBalancingRules" => self.rules = read_values(map)?,
            "probes" => self.probes = read_values(map)?,
            "backendAddressPools" => drop(map.next_value_seed(Lenient(Array(&mut self.pools)))?),
            _ => skip_value(map)?,
        }
        Ok(())
    }
}

/// Reads an array as it is.
fn read_values<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Value, A::Error> {
    let mut values = ValuesReader(Vec::new());
    map.next_value_seed(Lenient(Array(&mut values)))?;
    Ok(Value::Array(values.0))
}

struct ValuesReader(Vec<Value>);

impl Items for ValuesReader {
    fn item<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        if self.0.len() >= MAX_RULES {
            return Err(A::Error::custom(format!("more than {MAX_RULES} rules or probes")));
        }
        let value = seq.next_element()?;
        let is_some = value.is_some();
        self.0.extend(value);
        Ok(is_some)
    }
}

struct PoolsReader<'a, E> {
    convert: &'a dyn Fn(BackendAddress<'_>) -> E,
    addresses: usize,
    pools: Vec<PoolReader<'a, E>>,
}

impl<'a, E> PoolsReader<'a, E> {
    fn new(convert: &'a dyn Fn(BackendAddress<'_>) -> E) -> Self {
        Self {
            convert,
            addresses: 0,
            pools: Vec::new(),
        }
    }
}

impl<E> Items for PoolsReader<'_, E> {
    fn item<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        let mut pool = PoolReader::new(self.convert, MAX_ADDRESSES.saturating_sub(self.addresses));
        if seq.next_element_seed(Lenient(Object(&mut pool)))?.is_none() {
            return Ok(false);
        }
        pool.properties.addresses.shrink_to_fit();
        self.addresses += pool.properties.addresses.len();
        self.pools.push(pool);
        Ok(true)
    }
}

struct PoolReader<'a, E> {
    name: Option<String>,
    etag: Option<Etag>,
    properties: PoolPropertiesReader<'a, E>,
}

impl<'a, E> PoolReader<'a, E> {
    fn new(convert: &'a dyn Fn(BackendAddress<'_>) -> E, max_addresses: usize) -> Self {
        Self {
            name: None,
            etag: None,
            properties: PoolPropertiesReader {
                convert,
                max_addresses,
                provisioning_state: ProvisioningState::Settled,
                has_addresses: false,
                has_configurations: HasItems(false),
                addresses: Vec::new(),
                address: AddressReader::default(),
            },
        }
    }

    /// The pool, with the etag of its load balancer if it has none of its own; `None` if it has no name.
    fn finish(self, load_balancer: &LoadBalancerId, etag: Option<&Etag>) -> Option<PoolSummary<E>> {
        Some(PoolSummary {
            id: load_balancer.pool(self.name.as_deref()?).ok()?,
            has_own_etag: self.etag.is_some(),
            etag: self.etag.or_else(|| etag.cloned()),
            provisioning_state: self.properties.provisioning_state,
            are_addresses_missing: self.properties.has_configurations.0 && !self.properties.has_addresses,
            addresses: self.properties.addresses,
        })
    }
}

impl<E> Fields for PoolReader<'_, E> {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "name" => self.name = read_text(map)?,
            "etag" => self.etag = read_text(map)?.as_deref().and_then(Etag::new),
            "properties" => drop(map.next_value_seed(Lenient(Object(&mut self.properties)))?),
            _ => skip_value(map)?,
        }
        Ok(())
    }
}

struct PoolPropertiesReader<'a, E> {
    convert: &'a dyn Fn(BackendAddress<'_>) -> E,
    max_addresses: usize,
    provisioning_state: ProvisioningState,
    /// Whether the pool entries are there, even if there are none.
    has_addresses: bool,
    has_configurations: HasItems,
    addresses: Vec<E>,
    address: AddressReader,
}

impl<E> Fields for PoolPropertiesReader<'_, E> {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "provisioningState" => {
                self.provisioning_state = ProvisioningState::from_text(read_text(map)?.as_deref());
            }
            "loadBalancerBackendAddresses" => {
                self.has_addresses = map.next_value_seed(Lenient(Array(self)))? == Shape::Read;
            }
            "backendIPConfigurations" => drop(map.next_value_seed(Lenient(Array(&mut self.has_configurations)))?),
            _ => skip_value(map)?,
        }
        Ok(())
    }
}

impl<E> Items for PoolPropertiesReader<'_, E> {
    fn item<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        self.address.reset();
        let Some(shape) = seq.next_element_seed(Lenient(Object(&mut self.address)))? else {
            return Ok(false);
        };
        if self.addresses.len() >= self.max_addresses {
            return Err(A::Error::custom(format!("more than {MAX_ADDRESSES} pool entries")));
        }
        self.addresses.push((self.convert)(self.address.address(shape)));
        Ok(true)
    }
}

/// Whether an array has items.
struct HasItems(bool);

impl Items for HasItems {
    fn item<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        let is_item = seq.next_element::<IgnoredAny>()?.is_some();
        self.0 |= is_item;
        Ok(is_item)
    }
}

#[cfg(test)]
mod tests;
