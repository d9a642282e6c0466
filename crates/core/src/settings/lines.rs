//! The line of a key or of a list's item in a YAML text. Pure.
//!
//! The values of `serde_yaml` have no positions, but its errors have that of what was read last: a visitor walks to the key and fails
//! there. At a scalar serde's own error does.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// The mistakes in a file that get a line. Each costs a walk through the file.
pub const MAX_LINES: usize = 100;

/// The line, from 1, of what is at `path`: at each level the number, from 0, of an entry of a section or of an item of a list. That of an
/// entry is the line of its key.
pub fn line_at(text: &str, path: &[usize]) -> Option<usize> {
    if text.trim().is_empty() {
        return None;
    }
    let walked = Walk(path).deserialize(serde_yaml::Deserializer::from_str(text));
    Some(walked.err()?.location()?.line())
}

/// Goes to the end of the path, and fails there.
struct Walk<'a>(&'a [usize]);

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what is at the path")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((number, rest)) = self.0.split_first() else {
            return Err(A::Error::custom("found"));
        };
        for _ in 0..*number {
            map.next_entry::<IgnoredAny, IgnoredAny>()?;
        }
        if rest.is_empty() {
            map.next_key_seed(Walk(rest))?;
        } else {
            map.next_key::<IgnoredAny>()?;
            map.next_value_seed(Walk(rest))?;
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Some((number, rest)) = self.0.split_first() else {
            return Err(A::Error::custom("found"));
        };
        for _ in 0..*number {
            items.next_element::<IgnoredAny>()?;
        }
        items.next_element_seed(Walk(rest))?;
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_items_have_lines() {
        let text = "# first\na: 1\nb:\n  c:\n    - x\n    - {y: 1}\n\n  d: [1,\n    2]\n7: z\ne: &e {f: 1}\ng: *e\nh: !t 1\ni:\n";
        for (path, line) in [
            (&[0][..], 2),
            (&[1], 3),
            (&[1, 0], 4),
            (&[1, 0, 0], 5),
            (&[1, 0, 1], 6),
            (&[1, 0, 1, 0], 6),
            (&[1, 1], 8),
            (&[1, 1, 1], 9),
            (&[2], 10),
            (&[3, 0], 11),
            (&[4], 12),
            (&[5], 13),
            (&[6], 14),
        ] {
            assert_eq!(line_at(text, path), Some(line), "{path:?}");
        }
        for (text, path) in [("", &[0][..]), ("a: 1\n", &[1])] {
            assert_eq!(line_at(text, path), None, "{text:?} {path:?}");
        }
    }
}
