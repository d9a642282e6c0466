//! The versions of resources that were replaced, for reads that lag writes. A deleted resource is gone at once, and nothing is kept
//! without a lag.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::resource::Resource;

/// By the key of the resource, the oldest first: until when the version was there.
#[derive(Debug, Default)]
pub(super) struct EarlierVersions(BTreeMap<String, VecDeque<(Instant, Resource)>>);

impl EarlierVersions {
    /// Keeps a version that is replaced now, and none that no read can show any more.
    pub(super) fn keep(&mut self, replaced: &Resource, now: Instant, lag: Duration) {
        if lag.is_zero() {
            self.0.clear();
            return;
        }
        let versions = self.0.entry(replaced.id.key()).or_default();
        versions.retain(|(until, _)| *until + lag > now);
        versions.push_back((now, replaced.clone()));
    }

    /// The version of this long ago, unless it is the current one.
    pub(super) fn at(&self, key: &str, now: Instant, lag: Duration) -> Option<&Resource> {
        let mut versions = self.0.get(key)?.iter();
        versions
            .find(|(until, _)| *until + lag > now)
            .map(|(_, version)| version)
    }
}
