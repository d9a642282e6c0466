//! Reads JSON objects and arrays element by element. A value of another type is skipped, as if it had no elements.

use serde::Deserialize as _;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Something that reads the fields of an object.
pub(super) trait Fields {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error>;
}

/// Something that reads the items of an array.
pub(super) trait Items {
    /// Returns false after the last one.
    fn item<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error>;
}

/// Reads an object with `F`. Returns whether the value is one; any other value is skipped.
pub(super) struct Object<'a, F>(pub(super) &'a mut F);

/// Reads an array with `I`. Returns whether the value is one; any other value is skipped.
pub(super) struct Array<'a, I>(pub(super) &'a mut I);

/// What is kept of a value that is in memory only until it is converted.
pub(super) enum Kept {
    All,
    /// Of an object these fields. Nothing of any other value, but whether it is null.
    Fields(&'static [(&'static str, Self)]),
}

macro_rules! skip_scalars {
    ($value:ty, $skipped:expr, $null:expr) => {
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a JSON value")
        }
        fn visit_bool<E>(self, _: bool) -> Result<$value, E> {
            Ok($skipped)
        }
        fn visit_i64<E>(self, _: i64) -> Result<$value, E> {
            Ok($skipped)
        }
        fn visit_u64<E>(self, _: u64) -> Result<$value, E> {
            Ok($skipped)
        }
        fn visit_f64<E>(self, _: f64) -> Result<$value, E> {
            Ok($skipped)
        }
        fn visit_str<E>(self, _: &str) -> Result<$value, E> {
            Ok($skipped)
        }
        fn visit_unit<E>(self) -> Result<$value, E> {
            Ok($null)
        }
    };
}

/// Reads the name of a field into a text that all names of an object share.
struct Name<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E>(self, name: &str) -> Result<(), E> {
        self.0.clear();
        self.0.push_str(name);
        Ok(())
    }
}

impl<'de, F: Fields> DeserializeSeed<'de> for Object<'_, F> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: Fields> Visitor<'de> for Object<'_, F> {
    type Value = bool;

    skip_scalars!(bool, false, false);

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut name = String::new();
        while map.next_key_seed(Name(&mut name))?.is_some() {
            self.0.field(&name, &mut map)?;
        }
        Ok(true)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(false)
    }
}

impl<'de, I: Items> DeserializeSeed<'de> for Array<'_, I> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, I: Items> Visitor<'de> for Array<'_, I> {
    type Value = bool;

    skip_scalars!(bool, false, false);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        while self.0.item(&mut seq)? {}
        Ok(true)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(false)
    }
}

impl<'de> DeserializeSeed<'de> for &Kept {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            Kept::All => Value::deserialize(deserializer),
            Kept::Fields(fields) => deserializer.deserialize_any(KeptFields(fields)),
        }
    }
}

struct KeptFields(&'static [(&'static str, Kept)]);

impl<'de> Visitor<'de> for KeptFields {
    type Value = Value;

    skip_scalars!(Value, Value::Bool(false), Value::Null);

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let (mut object, mut name) = (Map::new(), String::new());
        while map.next_key_seed(Name(&mut name))?.is_some() {
            match self.0.iter().find(|(known, _)| *known == name) {
                Some((_, kept)) => drop(object.insert(name.clone(), map.next_value_seed(kept)?)),
                None => skip_value(&mut map)?,
            }
        }
        Ok(Value::Object(object))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Bool(false))
    }
}

/// Reads a text; `None` for any other value.
pub(super) fn read_text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<String>, A::Error> {
    Ok(match map.next_value::<Value>()? {
        Value::String(text) => Some(text),
        _ => None,
    })
}

pub(super) fn skip_value<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>().map(drop)
}
