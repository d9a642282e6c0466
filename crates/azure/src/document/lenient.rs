//! Reads JSON objects and arrays element by element. A value of another type is skipped, as if it had no elements.

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Something that reads the fields of an object.
pub(super) trait Fields {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error>;
}

/// Something that reads the items of an array.
pub(super) trait Items {
    /// Returns false after the last one.
    fn item<'de, A: SeqAccess<'de>>(&mut self, seq: &mut A) -> Result<bool, A::Error>;
}

/// Reads an object with `F`; any other value is skipped.
pub(super) struct Object<'a, F>(pub(super) &'a mut F);

/// Reads an array with `I`. Returns whether the value is one; any other value is skipped.
pub(super) struct Array<'a, I>(pub(super) &'a mut I);

/// What a value was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// What was expected.
    Read,
    Null,
    Other,
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
        fn visit_unit<E>(self) -> Result<$value, E> {
            Ok($null)
        }
    };
}

macro_rules! skip_texts {
    ($value:ty, $skipped:expr) => {
        fn visit_str<E>(self, _: &str) -> Result<$value, E> {
            Ok($skipped)
        }
    };
}

macro_rules! skip_objects {
    ($value:ty, $skipped:expr) => {
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<$value, A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            Ok($skipped)
        }
    };
}

macro_rules! skip_arrays {
    ($value:ty, $skipped:expr) => {
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<$value, A::Error> {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok($skipped)
        }
    };
}

/// Reads a text into one that is used again; any other value is skipped.
pub(super) struct Text<'a>(pub(super) &'a mut String);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = Shape;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shape, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Text<'_> {
    type Value = Shape;

    skip_scalars!(Shape, Shape::Other, Shape::Null);
    skip_objects!(Shape, Shape::Other);
    skip_arrays!(Shape, Shape::Other);

    fn visit_str<E>(self, text: &str) -> Result<Shape, E> {
        self.0.clear();
        self.0.push_str(text);
        Ok(Shape::Read)
    }
}

impl<'de, F: Fields> DeserializeSeed<'de> for Object<'_, F> {
    type Value = Shape;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shape, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: Fields> Visitor<'de> for Object<'_, F> {
    type Value = Shape;

    skip_scalars!(Shape, Shape::Other, Shape::Null);
    skip_texts!(Shape, Shape::Other);
    skip_arrays!(Shape, Shape::Other);

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
        let mut name = String::new();
        while map.next_key_seed(Text(&mut name))?.is_some() {
            self.0.field(&name, &mut map)?;
        }
        Ok(Shape::Read)
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
    skip_texts!(bool, false);
    skip_objects!(bool, false);

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<bool, A::Error> {
        while self.0.item(&mut seq)? {}
        Ok(true)
    }
}

/// Reads a text; `None` for any other value.
pub(super) fn read_text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<String>, A::Error> {
    let mut text = String::new();
    let shape = map.next_value_seed(Text(&mut text))?;
    Ok((shape == Shape::Read).then_some(text))
}

pub(super) fn skip_value<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>().map(drop)
}
