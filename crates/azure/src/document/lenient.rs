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

/// Reads an array with `I`; any other value is skipped.
pub(super) struct Array<'a, I>(pub(super) &'a mut I);

/// Reads a text into one that is used again; any other value is skipped.
pub(super) struct Text<'a>(pub(super) &'a mut String);

/// What a value was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// What was expected.
    Read,
    Null,
    Other,
}

/// Something that reads a value of one type, and skips others.
pub(super) trait Read: Sized {
    fn text(self, _: &str) -> Shape {
        Shape::Other
    }
    fn object<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Shape::Other)
    }
    fn array<'de, A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Shape::Other)
    }
}

impl Read for Text<'_> {
    fn text(self, text: &str) -> Shape {
        self.0.clear();
        self.0.push_str(text);
        Shape::Read
    }
}

impl<F: Fields> Read for Object<'_, F> {
    fn object<'de, A: MapAccess<'de>>(self, mut map: A) -> Result<Shape, A::Error> {
        let mut name = String::new();
        while map.next_key_seed(Lenient(Text(&mut name)))?.is_some() {
            self.0.field(&name, &mut map)?;
        }
        Ok(Shape::Read)
    }
}

impl<I: Items> Read for Array<'_, I> {
    fn array<'de, A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
        while self.0.item(&mut seq)? {}
        Ok(Shape::Read)
    }
}

/// Reads any value with `R`.
pub(super) struct Lenient<R>(pub(super) R);

impl<'de, R: Read> DeserializeSeed<'de> for Lenient<R> {
    type Value = Shape;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Shape, D::Error> {
        deserializer.deserialize_any(self)
    }
}

macro_rules! skip_scalars {
    ($($visit:ident: $scalar:ty,)*) => {$(
        fn $visit<E>(self, _: $scalar) -> Result<Shape, E> {
            Ok(Shape::Other)
        }
    )*};
}

impl<'de, R: Read> Visitor<'de> for Lenient<R> {
    type Value = Shape;

    skip_scalars!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64,);

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Shape, E> {
        Ok(Shape::Null)
    }

    fn visit_str<E>(self, text: &str) -> Result<Shape, E> {
        Ok(self.0.text(text))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Shape, A::Error> {
        self.0.object(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Shape, A::Error> {
        self.0.array(seq)
    }
}

/// Reads a text; `None` for any other value.
pub(super) fn read_text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<String>, A::Error> {
    let mut text = String::new();
    let shape = map.next_value_seed(Lenient(Text(&mut text)))?;
    Ok((shape == Shape::Read).then_some(text))
}

pub(super) fn skip_value<'de, A: MapAccess<'de>>(map: &mut A) -> Result<(), A::Error> {
    map.next_value::<IgnoredAny>().map(drop)
}
