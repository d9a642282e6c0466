//! The sizes of the buckets, which tests make small.

use serde::{Deserialize, Serialize};

use super::Kind;
use super::bucket::RateLimit;

/// The sizes of all buckets; as documented unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ThrottleSettings {
    /// Whether anything is ever refused.
    pub enabled: bool,
    /// A principal's reads of a subscription.
    pub reads: RateLimit,
    /// Its writes.
    pub writes: RateLimit,
    /// Its deletes.
    pub deletes: RateLimit,
    /// How many times that all principals of a subscription have together.
    pub global_factor: u32,
    /// A principal's reads of the network provider in a subscription.
    pub network_reads: RateLimit,
    /// Its writes and deletes there.
    pub network_writes: RateLimit,
}

impl Default for ThrottleSettings {
    fn default() -> Self {
        let five_minutes = 300.0;
        Self {
            enabled: true,
            reads: RateLimit::new(250, 25.0),
            writes: RateLimit::new(200, 10.0),
            deletes: RateLimit::new(200, 10.0),
            global_factor: 15,
            // A guess: that these numbers "per five minutes" are buckets too, and not windows.
            network_reads: RateLimit::new(10_000, 10_000.0 / five_minutes),
            network_writes: RateLimit::new(1000, 1000.0 / five_minutes),
        }
    }
}

impl ThrottleSettings {
    /// A principal's, for this kind of request.
    pub(super) fn of(&self, kind: Kind) -> RateLimit {
        match kind {
            Kind::Read => self.reads,
            Kind::Write => self.writes,
            Kind::Delete => self.deletes,
        }
    }
}
