//! The body of a PUT: a pool's document without the fields that only ARM writes, in the pool and in each address.
//!
//! It serializes from the document, or from the texts of its addresses, without a copy of the values, because a pool may have thousands of them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde::ser::{Error as _, Serialize, SerializeMap as _, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

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
    /// The texts of the addresses, where the document has none.
    texts: Option<&'a [Bytes]>,
}

/// The part of a pool's document that a value is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
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
    pub(super) fn child(self, name: &str) -> Option<Self> {
        match (self, name) {
            (Self::Pool, "properties") => Some(Self::PoolProperties),
            (Self::PoolProperties, "loadBalancerBackendAddresses") => Some(Self::Addresses),
            (Self::Address, "properties") => Some(Self::AddressProperties),
            _ => None,
        }
    }
}

impl<'a> PutBody<'a> {
    /// `texts`: those of the addresses, if the document has none.
    pub(super) fn new(document: &'a Value, texts: Option<&'a [Bytes]>) -> Self {
        Self {
            part: Part::Pool,
            value: document,
            texts,
        }
    }
}

impl Serialize for PutBody<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.value, self.part) {
            (Value::Array(addresses), Part::Addresses) => {
                if let Some(texts) = self.texts {
                    return serializer.collect_seq(texts.iter().map(|text| PutText(Part::Address, text)));
                }
                let part = Part::Address;
                serializer.collect_seq(addresses.iter().map(|value| Self { part, value, ..*self }))
            }
            (value, Part::Addresses) => value.serialize(serializer),
            (Value::Object(fields), part) => {
                let mut map = serializer.serialize_map(None)?;
                for (name, value) in fields {
                    if part.read_only().contains(&name.as_str()) {
                        continue;
                    }
                    match part.child(name) {
                        Some(part) => map.serialize_entry(name, &Self { part, value, ..*self })?,
                        None => map.serialize_entry(name, value)?,
                    }
                }
                map.end()
            }
            (value, _) => value.serialize(serializer),
        }
    }
}

/// Serializes the text of an address, or of its properties, without building values from it.
struct PutText<'a>(Part, &'a [u8]);

impl Serialize for PutText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(part, text) = *self;
        if !text.starts_with(b"{") {
            let value: &RawValue = serde_json::from_slice(text).map_err(S::Error::custom)?;
            return value.serialize(serializer);
        }
        let fields: BTreeMap<Name<'_>, &RawValue> = serde_json::from_slice(text).map_err(S::Error::custom)?;
        let fields = fields
            .iter()
            .filter(|(Name(name), _)| !part.read_only().contains(&name.as_ref()));
        let mut map = serializer.serialize_map(None)?;
        for (Name(name), value) in fields {
            match part.child(name) {
                Some(part) => map.serialize_entry(name, &Self(part, value.get().as_bytes()))?,
                None => map.serialize_entry(name, value)?,
            }
        }
        map.end()
    }
}

/// A name that is copied only where it has escapes.
#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);
