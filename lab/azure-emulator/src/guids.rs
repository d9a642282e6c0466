//! GUIDs: random ones from a seeded generator, so that a test in paused time can be replayed, and ones derived from a
//! name.

use fastrand::Rng;
use uuid::{Builder, Uuid};

/// A generator of random GUIDs.
#[derive(Clone, Debug)]
pub(super) struct GuidGenerator(Rng);

impl GuidGenerator {
    pub(super) fn new(seed: u64) -> Self {
        Self(Rng::with_seed(seed))
    }

    /// A random GUID of version 4.
    pub(super) fn next(&mut self) -> Uuid {
        Builder::from_random_bytes(self.0.u128(..).to_be_bytes()).into_uuid()
    }

    /// A generator for another part of the emulator.
    pub(super) fn fork(&mut self) -> Self {
        Self(self.0.fork())
    }
}

/// The GUID of a name, always the same one.
pub(super) fn guid_for_name(name: &str) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes())
}

/// A string of base64url characters in place of a signature, derived from a GUID and a salt.
pub(super) fn signature(guid: Uuid, salt: u64, characters: usize) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (high, low) = guid.as_u64_pair();
    let mut rng = Rng::with_seed(high ^ low.rotate_left(32) ^ salt);
    (0..characters)
        .map(|_| char::from(ALPHABET[rng.usize(..ALPHABET.len())]))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn signatures_differ_by_either_half_of_the_guid_and_by_the_salt() {
        // High and low half; the low one counts rotated.
        let guids = [(1280, 256 << 32), (1280, 0), (4097, 0)].map(|(high, low)| Uuid::from_u64_pair(high, low));
        let signed = guids
            .iter()
            .flat_map(|guid| [0, 1, 2].map(|salt| signature(*guid, salt, 43)));
        let signed: Vec<_> = signed.collect();
        assert!(signed.iter().all(|text| text.len() == 43));
        assert_eq!(signature(guids[1], 1, 43), signed[4], "always the same one");
        assert_eq!(signed.iter().collect::<HashSet<_>>().len(), signed.len());
    }

    #[test]
    fn guids_repeat_with_their_seed_alone() {
        let three = |seed: u64| {
            let mut generator = GuidGenerator::new(seed);
            [generator.next(), generator.fork().next(), generator.next()]
        };
        assert_eq!(three(1), three(1));
        let different: HashSet<_> = three(1).into_iter().chain(three(2)).collect();
        assert_eq!(different.len(), 6);
        assert!(different.iter().all(|guid| guid.get_version_num() == 4));
    }
}
