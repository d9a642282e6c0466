//! Whose event it is, when two of them are the same notice, and how long one counts. Pure.
//!
//! A document goes to every VM of a placement group, so an event counts only where it names this VM, as
//! Azure names it: by the Node's `providerID`, never by host name. A notice is an id and a time, and
//! either match makes it the same: the time goes when the event starts, and an id may be replaced.

use std::time::Duration;

use headgate_clock::Moment;
use jiff::Timestamp;
use tokio::time::Instant;

use super::document::{Document, Event, Kind};

/// The name by which Azure knows a VM in events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceName(String);

impl ResourceName {
    /// From a Node's `providerID`; none if it is not that of an Azure VM. An instance of a uniform scale
    /// set is called `SET_INSTANCE`, any other VM by its name.
    #[must_use]
    pub fn from_provider_id(provider_id: &str) -> Option<Self> {
        let (scheme, path) = provider_id.split_once("://")?;
        let mut segments = path
            .split('/')
            .skip_while(|segment| !segment.eq_ignore_ascii_case("Microsoft.Compute"));
        segments.next()?;
        let rest: Vec<&str> = segments.collect();
        let (set, vm) = match rest[..] {
            [vms, vm] => (None, (vms, vm)),
            [sets, set, vms, vm] if sets.eq_ignore_ascii_case("virtualMachineScaleSets") => (Some(set), (vms, vm)),
            _ => return None,
        };
        let good = scheme.eq_ignore_ascii_case("azure")
            && vm.0.eq_ignore_ascii_case("virtualMachines")
            && !vm.1.is_empty()
            && set.is_none_or(|set| !set.is_empty());
        good.then(|| Self(set.map_or_else(|| vm.1.to_owned(), |set| format!("{set}_{}", vm.1))))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the event names this VM, in whatever letter case.
    #[must_use]
    pub fn is_in(&self, event: &Event) -> bool {
        event.resources.iter().any(|name| name.eq_ignore_ascii_case(&self.0))
    }

    /// The events that name this VM.
    #[must_use]
    pub fn events_of(&self, document: &Document) -> Vec<Event> {
        document
            .events
            .iter()
            .filter(|event| self.is_in(event))
            .cloned()
            .collect()
    }
}

/// What tells one eviction from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The event's id.
    pub event_id: String,
    /// When it may begin at the earliest, as long as it has not begun.
    pub not_before: Option<Timestamp>,
}

impl Notice {
    /// Whether both are notices of one eviction.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        self.event_id.eq_ignore_ascii_case(&other.event_id)
            || (self.not_before.is_some() && self.not_before == other.not_before)
    }
}

/// A notice that is being followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// As it was first seen.
    pub first: Notice,
    /// As it was last seen.
    pub latest: Notice,
    /// When it was first seen.
    pub since: Timestamp,
    /// Whether the last document lists it; if not, it goes on for the grace.
    pub listed: bool,
}

impl Followed {
    /// Whether it is this notice, by its first or by its last appearance.
    #[must_use]
    pub fn is(&self, notice: &Notice) -> bool {
        self.first.same(notice) || self.latest.same(notice)
    }

    /// The notice with all that is known of it: a start takes the time away.
    #[must_use]
    pub fn known(&self) -> Notice {
        Notice {
            event_id: self.latest.event_id.clone(),
            not_before: self.latest.not_before.or(self.first.not_before),
        }
    }
}

/// What the documents so far say about an eviction of this VM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Follow {
    /// The eviction, if there is one.
    pub notice: Option<Followed>,
    /// Whether documents have listed none for the whole grace.
    pub clear: bool,
    /// Since when they have listed none.
    pub(super) clear_since: Option<Instant>,
}

impl Follow {
    /// The next state, after a document with these events of this VM; `complete` if it has no others
    /// that could not be read.
    #[must_use]
    pub fn next(&self, events: &[Event], complete: bool, grace: Duration, now: Moment) -> Self {
        let listed: Vec<Notice> = events
            .iter()
            .filter(|event| event.kind == Kind::Preempt)
            .map(|event| Notice {
                event_id: event.event_id.clone(),
                not_before: event.not_before,
            })
            .collect();
        if listed.is_empty() {
            return if complete {
                self.without(grace, now)
            } else {
                self.clone()
            };
        }
        let same = |followed: &Followed| listed.iter().find(|notice| followed.is(notice)).cloned();
        let going_on = self.notice.as_ref().and_then(|followed| {
            Some(Followed {
                latest: same(followed)?,
                listed: true,
                ..followed.clone()
            })
        });
        let new = || {
            listed.first().map(|notice| Followed {
                first: notice.clone(),
                latest: notice.clone(),
                since: now.wall,
                listed: true,
            })
        };
        Self {
            notice: going_on.or_else(new),
            clear: false,
            clear_since: None,
        }
    }

    fn without(&self, grace: Duration, now: Moment) -> Self {
        let since = self.clear_since.unwrap_or(now.mono);
        let clear = now.mono.saturating_duration_since(since) >= grace;
        let notice = self.notice.clone().filter(|_| !clear);
        Self {
            notice: notice.map(|followed| Followed {
                listed: false,
                ..followed
            }),
            clear,
            clear_since: Some(since),
        }
    }
}

#[cfg(test)]
mod tests {
    use headgate_clock::Clock;

    use super::super::document::State;
    use super::*;

    const GRACE: Duration = Duration::from_mins(1);
    const SET: &str = "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/aks-spot-1-vmss/virtualMachines/3";

    #[test]
    fn names_come_from_the_provider_id() {
        let lower = SET.to_ascii_lowercase();
        for (provider_id, want) in [
            (SET, Some("aks-spot-1-vmss_3")),
            (&lower, Some("aks-spot-1-vmss_3")),
            (
                "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/vm-a",
                Some("vm-a"),
            ),
            // A set that is called as a segment is.
            (
                "azure:///subscriptions/s/resourceGroups/virtualMachines/providers/Microsoft.Compute/virtualMachineScaleSets/virtualMachines/virtualMachines/0",
                Some("virtualMachines_0"),
            ),
            (
                "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/",
                None,
            ),
            (
                "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/a",
                None,
            ),
            (
                "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/a",
                None,
            ),
            ("aws:///eu-west-1a/i-0123", None),
            ("kind://docker/kind/kind-worker", None),
            ("azure://", None),
            ("", None),
        ] {
            let name = ResourceName::from_provider_id(provider_id);
            assert_eq!(name.as_ref().map(ResourceName::as_str), want, "{provider_id}");
        }
    }

    fn event(kind: Kind, id: &str, not_before: &str, resources: &[&str]) -> Event {
        Event {
            event_id: id.to_owned(),
            kind,
            state: State::Scheduled,
            not_before: not_before.parse().ok(),
            description: String::new(),
            resources: resources.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn only_events_that_name_this_vm_are_its() {
        let name = ResourceName::from_provider_id(SET).unwrap();
        for (resources, ours) in [
            (&["aks-spot-1-vmss_3"][..], true),
            (&["AKS-Spot-1-VMSS_3"], true),
            (&["aks-spot-1-vmss_2", "aks-spot-1-vmss_3"], true),
            (&["aks-spot-1-vmss_30"], false),
            (&["aks-spot-1-vmss_"], false),
            (&["aks-spot-1-vmss000003"], false),
            (&["3"], false),
            (&[""], false),
            (&[], false),
        ] {
            assert_eq!(
                name.is_in(&event(Kind::Preempt, "a", "", resources)),
                ours,
                "{resources:?}"
            );
        }
    }

    #[test]
    fn a_notice_is_the_same_by_its_id_or_by_its_time() {
        let notice = |id: &str, time: &str| Notice {
            event_id: id.to_owned(),
            not_before: time.parse().ok(),
        };
        let (t1, t2) = ("2026-01-01T00:00:00Z", "2026-01-01T00:10:00Z");
        for (a, b, same) in [
            (notice("a", t1), notice("a", t1), true),
            (notice("a", t1), notice("A", t2), true),
            (notice("a", t1), notice("b", t1), true),
            (notice("a", t1), notice("a", ""), true),
            (notice("a", t1), notice("b", t2), false),
            (notice("a", ""), notice("b", ""), false),
            (notice("a", t1), notice("b", ""), false),
        ] {
            assert_eq!((a.same(&b), b.same(&a)), (same, same), "{a:?} {b:?}");
        }
    }

    /// Walks through documents, each so many seconds after the start.
    fn walk(steps: &[(u64, &[Event], bool)]) -> Vec<Follow> {
        let start = Clock::System.now();
        let mut follow = Follow::default();
        let step = |&(second, events, complete): &(u64, &[Event], bool)| {
            let after = Duration::from_secs(second);
            let now = Moment {
                wall: start.wall + after,
                mono: start.mono + after,
            };
            follow = follow.next(events, complete, GRACE, now);
            follow.clone()
        };
        steps.iter().map(step).collect()
    }

    fn in_force(follows: &[Follow]) -> Vec<bool> {
        follows.iter().map(|follow| follow.notice.is_some()).collect()
    }

    #[test]
    fn a_notice_goes_on_for_the_grace_after_it_vanished() {
        let a = [event(Kind::Preempt, "a", "2026-01-01T00:00:00Z", &[])];
        let follows = walk(&[(0, &a, true), (1, &[], true), (60, &[], true), (61, &[], true)]);
        assert_eq!(in_force(&follows), [true, true, true, false]);
        assert_eq!(
            follows.iter().map(|f| f.clear).collect::<Vec<_>>(),
            [false, false, false, true]
        );
        // Back within the grace it is the same one, and the grace starts anew.
        let follows = walk(&[
            (0, &a, true),
            (1, &[], true),
            (50, &a, true),
            (70, &[], true),
            (129, &[], true),
        ]);
        assert_eq!(in_force(&follows), [true; 5]);
        assert_eq!(
            follows[0].notice.as_ref().unwrap().since,
            follows[4].notice.as_ref().unwrap().since
        );
    }

    #[test]
    fn a_document_with_unreadable_events_never_ends_a_notice() {
        let a = [event(Kind::Preempt, "a", "", &[])];
        let follows = walk(&[
            (0, &a, true),
            (1, &[], false),
            (100, &[], false),
            (200, &[], true),
            (259, &[], true),
        ]);
        assert_eq!(in_force(&follows), [true; 5]);
    }

    #[test]
    fn nothing_listed_from_the_start_is_clear_after_the_grace() {
        let follows = walk(&[(0, &[], true), (59, &[], true), (60, &[], true)]);
        assert_eq!(
            follows.iter().map(|f| f.clear).collect::<Vec<_>>(),
            [false, false, true]
        );
    }

    #[test]
    fn a_start_a_new_id_and_both_in_turn_are_one_notice() {
        let scheduled = [event(Kind::Preempt, "a", "2026-01-01T00:00:00Z", &[])];
        let renamed = [event(Kind::Preempt, "b", "2026-01-01T00:00:00Z", &[])];
        let started = [event(Kind::Preempt, "b", "", &[])];
        let follows = walk(&[(0, &scheduled, true), (5, &renamed, true), (9, &started, true)]);
        let last = follows[2].notice.clone().unwrap();
        assert_eq!(last.since, follows[0].notice.as_ref().unwrap().since);
        assert_eq!(
            last.known().not_before,
            scheduled[0].not_before,
            "the start takes nothing away"
        );
        assert!(last.is(&follows[0].notice.as_ref().unwrap().first));
    }

    #[test]
    fn another_eviction_takes_over_at_once() {
        let a = [event(Kind::Preempt, "a", "2026-01-01T00:00:00Z", &[])];
        let b = [event(Kind::Preempt, "b", "2026-01-01T00:10:00Z", &[])];
        let both = [b[0].clone(), a[0].clone()];
        let follows = walk(&[(0, &a, true), (1, &both, true), (2, &b, true)]);
        let ids: Vec<_> = follows
            .iter()
            .map(|f| f.notice.as_ref().unwrap().latest.event_id.as_str())
            .collect();
        assert_eq!(ids, ["a", "a", "b"]);
    }

    #[test]
    fn only_preempt_is_followed() {
        for kind in Kind::ALL {
            let events = [event(kind, "a", "", &[])];
            assert_eq!(
                in_force(&walk(&[(0, &events, true)])),
                [kind == Kind::Preempt],
                "{kind:?}"
            );
        }
    }
}
