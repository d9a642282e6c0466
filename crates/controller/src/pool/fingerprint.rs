//! A number that stands for a text: equal texts have equal ones. It is computed once, when the text is read, and lies beside the
//! other fields, so that a plan can pass over thousands of pool entries without reading a text of each.

use std::hash::{DefaultHasher, Hasher as _};

/// The fingerprint of one text, the same in every process of one build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of a text.
    pub fn of(text: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(text.as_bytes());
        Self(hasher.finish())
    }
}

/// The fingerprints of some texts, for a first answer to whether a text is one of them.
#[derive(Clone, Debug, Default)]
pub struct FingerprintSet(Vec<Fingerprint>);

impl FingerprintSet {
    /// Whether the text with this fingerprint may be in the set: `false` is certain, `true` is to be verified.
    pub(crate) fn may_contain(&self, fingerprint: Fingerprint) -> bool {
        self.0.binary_search(&fingerprint).is_ok()
    }
}

impl<'a> FromIterator<&'a str> for FingerprintSet {
    fn from_iter<I: IntoIterator<Item = &'a str>>(texts: I) -> Self {
        texts.into_iter().map(Fingerprint::of).collect()
    }
}

impl FromIterator<Fingerprint> for FingerprintSet {
    fn from_iter<I: IntoIterator<Item = Fingerprint>>(fingerprints: I) -> Self {
        let mut fingerprints: Vec<_> = fingerprints.into_iter().collect();
        fingerprints.sort_unstable();
        Self(fingerprints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_may_contain_what_was_added_and_nothing_else_here() {
        let texts = ["b", "a", "", "a"];
        let set: FingerprintSet = texts.into_iter().collect();
        assert!(texts.into_iter().all(|text| set.may_contain(Fingerprint::of(text))));
        assert!(!set.may_contain(Fingerprint::of("c")));
        assert!(!FingerprintSet::default().may_contain(Fingerprint::of("")));
    }
}
