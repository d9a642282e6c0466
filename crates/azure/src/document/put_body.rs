//! The body of a PUT: a pool's document without the fields that only ARM writes, in the pool and in each address.
//!
//! It serializes from the document without a copy, because a pool may have thousands of addresses.

use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Value;

/// Fields that only ARM writes, at the top level of a pool and of an address.
const READ_ONLY: &[&str] = &["type", "etag"];
/// The same among the properties of a pool.
const READ_ONLY_POOL_PROPERTIES: &[&str] = &[
    "provisioningState",
    "backendIPConfigurations",
    "loadBalancingRules",
    "outboundRule",
    "outboundRules",
    "inboundNatRules",
];
/// The same among the properties of an address.
const READ_ONLY_ADDRESS_PROPERTIES: &[&str] = &[
    "provisioningState",
    "networkInterfaceIPConfiguration",
    "inboundNatRulesPortMapping",
];

/// Serializes a pool for a PUT.
#[derive(Clone, Copy, Debug)]
pub struct PutBody<'a> {
    part: Part,
    value: &'a Value,
}

/// The part of a pool's document that a value is.
#[derive(Clone, Copy, Debug)]
enum Part {
    Pool,
    PoolProperties,
    Addresses,
    Address,
    AddressProperties,
}

impl Part {
    fn read_only(self) -> &'static [&'static str] {
        match self {
            Self::Pool | Self::Address => READ_ONLY,
            Self::PoolProperties => READ_ONLY_POOL_PROPERTIES,
            Self::AddressProperties => READ_ONLY_ADDRESS_PROPERTIES,
            Self::Addresses => &[],
        }
    }

    /// The part that a field is, if it may contain read-only fields.
    fn child(self, name: &str) -> Option<Self> {
        match (self, name) {
            (Self::Pool, "properties") => Some(Self::PoolProperties),
            (Self::PoolProperties, "loadBalancerBackendAddresses") => Some(Self::Addresses),
            (Self::Address, "properties") => Some(Self::AddressProperties),
            _ => None,
        }
    }
}

impl<'a> PutBody<'a> {
    pub(super) fn new(document: &'a Value) -> Self {
        Self {
            part: Part::Pool,
            value: document,
        }
    }
}

impl Serialize for PutBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.value, self.part) {
            (Value::Array(addresses), Part::Addresses) => {
                let part = Part::Address;
                serializer.collect_seq(addresses.iter().map(|value| Self { part, value }))
            }
            (value, Part::Addresses) => value.serialize(serializer),
            (Value::Object(fields), part) => {
                let mut map = serializer.serialize_map(None)?;
                for (name, value) in fields {
                    if part.read_only().contains(&name.as_str()) {
                        continue;
                    }
                    match part.child(name) {
                        Some(part) => map.serialize_entry(name, &Self { part, value })?,
                        None => map.serialize_entry(name, value)?,
                    }
                }
                map.end()
            }
            (value, _) => value.serialize(serializer),
        }
    }
}
