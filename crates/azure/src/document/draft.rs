//! Pools for writes: their entries stay text until they change, because a pool may have thousands, and a write changes a few of them.

use std::fmt;

use bytes::Bytes;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::lenient::{Array, Fields, Items, Lenient, Object, read_text, skip_value};
use super::put_body::{Part, PutBody};
use super::{AdminState, Pool, entries_mut, etag_of, set_admin_state};
use crate::client::EncodedPool;
use crate::error::ArmError;
use crate::id::{Etag, LoadBalancerId, PoolId};

/// A pool that is changed and written.
#[derive(Clone, Debug)]
pub struct PoolDraft {
    /// Its document has no entries while they are text.
    pool: Pool,
    /// The texts of the entries, which are parts of the load balancer's text until they change.
    texts: Option<Vec<Bytes>>,
}

impl From<Pool> for PoolDraft {
    fn from(pool: Pool) -> Self {
        Self { pool, texts: None }
    }
}

impl PoolDraft {
    /// The pools in the text of a load balancer, without those that have no name. The text has their etags if the headers (`etag`) do not.
    ///
    /// # Errors
    /// When the text is not JSON.
    pub fn all_of(text: &Bytes, id: &LoadBalancerId, etag: Option<&Etag>) -> serde_json::Result<Vec<Self>> {
        let mut found = Found {
            text: text.clone(),
            ..Found::default()
        };
        Lenient(Object(&mut found)).deserialize(&mut serde_json::Deserializer::from_slice(text))?;
        let etag = etag.cloned().or(found.etag);
        let draft = |(document, texts): (Value, Option<Vec<Bytes>>)| {
            let name = document.get("name").and_then(Value::as_str)?;
            let pool = Pool {
                id: id.pool(name).ok()?,
                etag: etag_of(&document).or_else(|| etag.clone()),
                document,
            };
            Some(Self { pool, texts })
        };
        Ok(found.pools.into_iter().filter_map(draft).collect())
    }

    /// The pool's resource id.
    pub fn id(&self) -> &PoolId {
        &self.pool.id
    }

    /// The pool with its whole document, for any change.
    pub fn pool(&mut self) -> &mut Pool {
        if let Some(texts) = self.texts.take()
            && let Some(entries) = entries_mut(&mut self.pool.document)
        {
            entries.extend(texts.iter().map(parsed));
        }
        &mut self.pool
    }

    /// As [`Self::pool`].
    pub fn into_pool(mut self) -> Pool {
        self.pool();
        self.pool
    }

    /// As [`Pool::set_admin_state`].
    pub fn set_admin_state(&mut self, index: usize, state: AdminState) -> bool {
        let Some(texts) = &mut self.texts else {
            return self.pool.set_admin_state(index, state);
        };
        let Some(text) = texts.get_mut(index) else {
            return false;
        };
        let mut entry = parsed(text);
        let is_changed = set_admin_state(&mut entry, state);
        if is_changed {
            *text = entry.to_string().into();
        }
        is_changed
    }

    /// As [`Pool::encode`].
    ///
    /// # Errors
    /// As there.
    pub fn encode(&self) -> Result<EncodedPool, ArmError> {
        self.pool.encode_body(self.put_body())
    }

    /// As [`Pool::put_body`].
    pub fn put_body(&self) -> PutBody<'_> {
        PutBody::new(&self.pool.document, self.texts.as_deref())
    }
}

/// A pool entry from its text, whose syntax was checked when it was read.
fn parsed(text: &Bytes) -> Value {
    serde_json::from_slice(text).unwrap_or_default()
}

/// What is read of a load balancer.
#[derive(Default)]
struct Found {
    text: Bytes,
    etag: Option<Etag>,
    /// The documents of pools, and the texts of their entries.
    pools: Vec<(Value, Option<Vec<Bytes>>)>,
}

impl Fields for Found {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "etag" => self.etag = read_text(map)?.as_deref().and_then(Etag::new),
            "properties" => drop(map.next_value_seed(Lenient(Object(&mut Properties(self))))?),
            _ => skip_value(map)?,
        }
        Ok(())
    }
}

struct Properties<'a>(&'a mut Found);

impl Fields for Properties<'_> {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        match name {
            "backendAddressPools" => drop(map.next_value_seed(Lenient(Array(&mut *self.0)))?),
            _ => skip_value(map)?,
        }
        Ok(())
    }
}

impl Items for Found {
    fn item<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error> {
        let mut texts = None;
        let seed = PartSeed {
            part: Part::Pool,
            source: &self.text,
            texts: &mut texts,
        };
        let pool = seq.next_element_seed(seed)?;
        let is_some = pool.is_some();
        self.pools.extend(pool.map(|pool| (pool, texts)));
        Ok(is_some)
    }
}

/// Reads a part of a pool, with everything in it but the entries, whose texts it takes from `source`.
struct PartSeed<'a> {
    part: Part,
    source: &'a Bytes,
    texts: &'a mut Option<Vec<Bytes>>,
}

impl<'de> DeserializeSeed<'de> for PartSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PartSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let Self { part, source, texts } = self;
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = match part.child(&name) {
                Some(part) => {
                    let texts = &mut *texts;
                    map.next_value_seed(PartSeed { part, source, texts })?
                }
                None => map.next_value()?,
            };
            fields.insert(name, value);
        }
        Ok(fields.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items: Vec<Value> = Vec::new();
        if let Part::Addresses = self.part {
            let texts = self.texts.insert(Vec::new());
            while let Some(text) = seq.next_element::<&RawValue>()? {
                texts.push(self.source.slice_ref(text.get().as_bytes()));
            }
        } else {
            while let Some(item) = seq.next_element()? {
                items.push(item);
            }
        }
        Ok(items.into())
    }
}
