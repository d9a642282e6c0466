//! A pool's document as a PUT sends it: what only ARM writes is left out, in the pool and in each address, and nothing
//! else. It is written from what was read, without a copy of it: a pool may have thousands of addresses.

use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::Value;

/// Written by ARM only, in a pool's and in an address's envelope.
const READ_ONLY: &[&str] = &["type", "etag"];
/// The same, among a pool's properties.
const READ_ONLY_OF_POOL: &[&str] = &[
    "provisioningState",
    "backendIPConfigurations",
    "loadBalancingRules",
    "outboundRule",
    "outboundRules",
    "inboundNatRules",
];
/// The same, among an address's.
const READ_ONLY_OF_ADDRESS: &[&str] = &[
    "provisioningState",
    "networkInterfaceIPConfiguration",
    "inboundNatRulesPortMapping",
];

/// A pool for a PUT.
#[derive(Clone, Copy, Debug)]
pub struct PutBody<'a> {
    part: Part,
    value: &'a Value,
}

/// Where in a pool's document something stands.
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
            Self::PoolProperties => READ_ONLY_OF_POOL,
            Self::AddressProperties => READ_ONLY_OF_ADDRESS,
            Self::Addresses => &[],
        }
    }

    /// The field of this name, where something below it is read-only.
    fn field(self, name: &str) -> Option<Self> {
        match (self, name) {
            (Self::Pool, "properties") => Some(Self::PoolProperties),
            (Self::PoolProperties, "loadBalancerBackendAddresses") => Some(Self::Addresses),
            (Self::Address, "properties") => Some(Self::AddressProperties),
            _ => None,
        }
    }
}

impl<'a> PutBody<'a> {
    /// Of a pool's document.
    pub(super) fn pool(document: &'a Value) -> Self {
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
                    match part.field(name) {
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
