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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etag::Etag;
    use crate::id::ResourceId;
    use crate::resource::{Object, ProvisioningState};

    const LAG: Duration = Duration::from_secs(2);

    fn version(number: u128) -> Resource {
        let id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb";
        Resource {
            id: ResourceId::parse(id).unwrap(),
            document: Object::new(),
            etag: Etag(uuid::Uuid::from_u128(number)),
            state: ProvisioningState::Succeeded,
            operation: None,
        }
    }

    #[test]
    fn a_read_shows_what_was_there_a_lag_ago_and_nothing_older_is_kept() {
        let (mut versions, start) = (EarlierVersions::default(), Instant::now());
        let key = version(0).id.key();
        let at = |milliseconds: u64| start + Duration::from_millis(milliseconds);
        // Version 1 was there until 1 s, version 2 until 2 s; the third one is current.
        versions.keep(&version(1), at(1000), LAG);
        versions.keep(&version(2), at(2000), LAG);
        for (now, expected) in [
            (2000, Some(1)),
            (2999, Some(1)),
            (3000, Some(2)),
            (3999, Some(2)),
            (4000, None),
        ] {
            let shown = versions.at(&key, at(now), LAG);
            let number = shown.map(|version| version.etag.0.as_u128());
            assert_eq!(number, expected, "after {now} ms");
        }
        let kept = |versions: &EarlierVersions| versions.0.values().map(VecDeque::len).sum::<usize>();
        versions.keep(&version(3), at(3000), LAG);
        assert_eq!(kept(&versions), 2, "version 1 can be shown no more");
        versions.keep(&version(4), at(3001), Duration::ZERO);
        assert_eq!(kept(&versions), 0);
    }
}
