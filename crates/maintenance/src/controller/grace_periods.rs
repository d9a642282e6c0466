//! The grace period of a pod whose node is gone before it is over.

use jiff::{SignedDuration, Timestamp};

use crate::deadline::cut_grace_period;
use crate::snapshot::PodFacts;

/// A pod gets less time to end than it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GracePeriodCut {
    /// What it gets, in seconds.
    pub(super) seconds: u32,
    /// What it asks for.
    pub(super) asked: SignedDuration,
    /// When its node is expected to be gone.
    pub(super) deadline: Timestamp,
}

impl GracePeriodCut {
    /// The cut of a pod's grace period; `None` where there is time for all of it.
    pub(super) fn of(pod: &PodFacts, deadline: Option<Timestamp>, now: Timestamp) -> Option<Self> {
        Some(Self {
            seconds: cut_grace_period(pod.grace_period, deadline, now)?,
            asked: pod.grace_period,
            deadline: deadline?,
        })
    }

    /// What the pod gets.
    pub(super) fn granted(self) -> SignedDuration {
        SignedDuration::from_secs(i64::from(self.seconds))
    }
}
