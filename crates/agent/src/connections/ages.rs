//! How long flows have been open, at least. Pure.
//!
//! The kernel tells when a flow began only while the sysctl `net.netfilter.nf_conntrack_timestamp` is on, which nobody sets. So the
//! numbers of the flows of one count are remembered until the next, with the time at which each was first seen. That is 9 bytes a
//! flow; beyond [`MAX_FLOWS`] only those that were known already are remembered, which are the oldest.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The table of these takes 300 KiB, and there are two of them during a count.
const MAX_FLOWS: usize = 28_000;

/// When flows were first seen.
#[derive(Debug)]
pub(crate) struct Ages {
    epoch: Instant,
    /// By the kernel's number of the flow, the second after `epoch`.
    first_seen: HashMap<u32, u32>,
}

impl Ages {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            epoch: now,
            first_seen: HashMap::new(),
        }
    }

    /// Begins a count. One that fails is dropped, and changes nothing.
    pub(crate) fn observe(&self, now: Instant) -> Observation<'_> {
        let seconds = now.saturating_duration_since(self.epoch).as_secs();
        Observation {
            known: &self.first_seen,
            now: u32::try_from(seconds).unwrap_or(u32::MAX),
            seen: HashMap::new(),
            oldest: None,
        }
    }

    /// Adopts what [`Observation::finish`] gave.
    pub(crate) fn adopt(&mut self, first_seen: HashMap<u32, u32>) {
        self.first_seen = first_seen;
    }
}

/// One count.
pub(crate) struct Observation<'a> {
    known: &'a HashMap<u32, u32>,
    now: u32,
    seen: HashMap<u32, u32>,
    oldest: Option<Duration>,
}

impl Observation<'_> {
    /// Takes a flow of the kernel's number `id`, which began `age` ago if the kernel tells.
    pub(crate) fn see(&mut self, id: Option<u32>, age: Option<Duration>) {
        let mut age = age.unwrap_or_default();
        if let Some(id) = id {
            let known = self.known.get(&id).copied();
            let first = known.unwrap_or(self.now);
            if known.is_some() || self.seen.len() + self.known.len() < MAX_FLOWS {
                self.seen.insert(id, first);
            }
            age = age.max(Duration::from_secs(self.now.saturating_sub(first).into()));
        }
        self.oldest = self.oldest.max(Some(age));
    }

    /// The least age of the oldest flow, `None` without any flow, and what the next count needs.
    pub(crate) fn finish(self) -> (Option<Duration>, HashMap<u32, u32>) {
        (self.oldest, self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(ages: &mut Ages, now: Instant, flows: &[(u32, Option<u64>)]) -> Option<u64> {
        let mut observation = ages.observe(now);
        for (id, age) in flows {
            observation.see(Some(*id), age.map(Duration::from_secs));
        }
        let (oldest, seen) = observation.finish();
        ages.adopt(seen);
        oldest.map(|age| age.as_secs())
    }

    #[test]
    fn ages_begin_when_a_flow_is_first_seen() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut ages = Ages::new(start);
        for (seconds, flows, expected) in [
            (1, vec![], None),
            (10, vec![(1, None), (2, None)], Some(0)),
            (30, vec![(2, None), (3, None)], Some(20)),
            (40, vec![(3, None), (1, None)], Some(10)),
            (50, vec![(3, Some(90))], Some(90)),
            (60, vec![(4, Some(2))], Some(2)),
            (70, vec![], None),
            (80, vec![(4, None)], Some(0)),
        ] {
            assert_eq!(count(&mut ages, at(seconds), &flows), expected, "at {seconds}");
        }
    }

    #[test]
    fn count_that_fails_changes_nothing() {
        let start = Instant::now();
        let mut ages = Ages::new(start);
        count(&mut ages, start, &[(1, None)]);
        ages.observe(start + Duration::from_secs(5)).see(Some(2), None);
        assert_eq!(count(&mut ages, start + Duration::from_secs(9), &[(1, None)]), Some(9));
    }

    #[test]
    fn known_flows_stay_when_there_are_too_many() {
        let start = Instant::now();
        let many = |range: std::ops::Range<u32>| range.map(|id| (id, None)).collect::<Vec<_>>();
        let mut ages = Ages::new(start);
        let limit = u32::try_from(MAX_FLOWS).unwrap();
        count(&mut ages, start, &many(0..10));
        // The known ones come last.
        let mut flows = many(100..100 + 2 * limit);
        flows.extend(many(0..10));
        assert_eq!(count(&mut ages, start + Duration::from_secs(7), &flows), Some(7));
        assert_eq!(ages.first_seen.len(), MAX_FLOWS);
        assert_eq!(count(&mut ages, start + Duration::from_secs(9), &many(0..1)), Some(9));
    }
}
