//! GUIDs: fresh ones from one seeded source, so that a story in paused time can be replayed, and
//! those that follow from a name.

use uuid::{Builder, Uuid};

/// Fresh GUIDs.
#[derive(Clone, Debug)]
pub(super) struct Guids(u64);

impl Guids {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A GUID that was not given before.
    pub(super) fn next(&mut self) -> Uuid {
        let (high, low) = (self.word(), self.word());
        Builder::from_random_bytes(((u128::from(high) << 64) | u128::from(low)).to_be_bytes()).into_uuid()
    }

    /// `SplitMix64`: each state occurs once in 2^64 words.
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }
}

/// The GUID of a name.
pub(super) fn named(name: &str) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_URL, name.as_bytes())
}

/// This many characters of base64url that follow from a GUID, such as a signature is made of.
pub(super) fn signature(of: Uuid, salt: u64, characters: usize) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let (high, low) = of.as_u64_pair();
    let mut state = high ^ mixed(low ^ salt);
    let mut word = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ALPHABET[usize::try_from(mixed(state) & 63).unwrap_or(0)]
    };
    (0..characters).map(|_| char::from(word())).collect()
}

fn mixed(state: u64) -> u64 {
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
