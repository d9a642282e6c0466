//! Which events are about this VM, which of them are the same notice, and when a notice ends. Pure.
//!
//! A document goes to every VM of a placement group, so an event counts only if it names this VM. Azure's name for
//! the VM follows from the Node's `providerID`, never from the host name. A notice has an id and a time; either one
//! identifies it, because the time disappears when the event starts and the id may be replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use headgate_core::clock::Moment;
use headgate_core::node::AzureNotice;
use jiff::Timestamp;
use tokio::time::Instant;

use super::document::{EventsDocument, ScheduledEvent};

/// The name of a VM in events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmName(String);

impl VmName {
    /// The name that follows from a Node's `providerID`; `None` if that is not the ID of an Azure VM. The name of an
    /// instance of a uniform scale set is `SET_INSTANCE`.
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
        let is_valid = scheme.eq_ignore_ascii_case("azure")
            && vm.0.eq_ignore_ascii_case("virtualMachines")
            && !vm.1.is_empty()
            && set.is_none_or(|set| !set.is_empty());
        is_valid.then(|| Self(set.map_or_else(|| vm.1.to_owned(), |set| format!("{set}_{}", vm.1))))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the event names this VM, in any letter case.
    pub(crate) fn is_named_in(&self, event: &ScheduledEvent) -> bool {
        event.resources.iter().any(|name| name.eq_ignore_ascii_case(&self.0))
    }

    /// The events of the document that name this VM.
    pub fn own_events(&self, document: &EventsDocument) -> Vec<ScheduledEvent> {
        document
            .events
            .iter()
            .filter(|event| self.is_named_in(event))
            .cloned()
            .collect()
    }
}

/// What identifies a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What Azure announces.
    pub event_type: AzureNotice,
    /// The id of the event; empty if a Node event does not have it.
    pub event_id: String,
    /// The earliest start, until the event has started.
    pub not_before: Option<Timestamp>,
}

impl Notice {
    /// Whether both are notices of the same event.
    pub fn is_same_event(&self, other: &Self) -> bool {
        let has_same_id = !self.event_id.is_empty() && self.event_id.eq_ignore_ascii_case(&other.event_id);
        let has_same_time = self.not_before.is_some() && self.not_before == other.not_before;
        self.event_type == other.event_type && (has_same_id || has_same_time)
    }
}

/// A notice over several documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackedNotice {
    /// The notice in the first document that listed it.
    pub first: Notice,
    /// The notice in the latest document that listed it.
    pub latest: Notice,
    /// The time of the first document that listed it.
    pub since: Timestamp,
    /// Whether the latest document lists it. If not, the notice stays for the grace.
    pub is_listed: bool,
}

impl TrackedNotice {
    /// Whether `notice` is of the same event as the first or the latest form of this one.
    pub fn matches(&self, notice: &Notice) -> bool {
        self.first.is_same_event(notice) || self.latest.is_same_event(notice)
    }

    /// The latest id with the latest time that is known: an event that has started has none.
    pub fn merged(&self) -> Notice {
        Notice {
            event_type: self.latest.event_type,
            event_id: self.latest.event_id.clone(),
            not_before: self.latest.not_before.or(self.first.not_before),
        }
    }
}

/// What the documents so far show of events of one type, or of those of several, as [`NoticeTrackers::gravest`] says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoticeTracker {
    /// The event, until its notice has been gone for the grace.
    pub notice: Option<TrackedNotice>,
    /// Whether no document has listed such an event for the whole grace, and the latest poll was one of them.
    pub is_clear: bool,
    /// How old headgate's taint must be before `is_clear` removes it: a younger one may be of a notice that only its writer has read yet.
    pub(super) grace: Duration,
    /// Whether no document has shown for [`CONFIRMATION_TIMEOUT`] what is announced, or nothing asks for documents.
    pub is_unconfirmed: bool,
    /// The time of the first of the latest documents without such an event.
    pub(super) empty_since: Option<Instant>,
    /// The time of the first of the latest polls that did not show what is announced.
    pub(super) unconfirmed_since: Option<Instant>,
}

/// A notice ends so long after its `NotBefore` if no document confirms it: Azure evicts within minutes.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_mins(15);

/// Since when a notice with this time counts no longer unless a document confirms it.
pub(super) fn confirmation_deadline(not_before: Timestamp) -> Timestamp {
    not_before.checked_add(CONFIRMATION_TIMEOUT).unwrap_or(Timestamp::MAX)
}

impl NoticeTracker {
    /// The state after a document with these events of this VM, of which those of one type count. `is_complete` is false if the
    /// document has events that are not readable; it then ends no notice.
    #[must_use]
    pub fn next(
        &self,
        events: &[ScheduledEvent],
        event_type: AzureNotice,
        is_complete: bool,
        grace: Duration,
        now: Moment,
    ) -> Self {
        let of_type = events
            .iter()
            .filter(|event| event.event_type.notice() == Some(event_type));
        let notices = of_type.map(|event| Notice {
            event_type,
            event_id: event.event_id.clone(),
            not_before: event.not_before,
        });
        let listed: Vec<Notice> = notices.collect();
        if listed.is_empty() {
            return if is_complete {
                self.after_empty_document(grace, now)
            } else {
                self.after_unconfirmed_poll(now)
            };
        }
        let find_same = |tracked: &TrackedNotice| listed.iter().find(|notice| tracked.matches(notice)).cloned();
        let continued = self.notice.as_ref().and_then(|tracked| {
            Some(TrackedNotice {
                latest: find_same(tracked)?,
                is_listed: true,
                ..tracked.clone()
            })
        });
        let new = || {
            listed.first().map(|notice| TrackedNotice {
                first: notice.clone(),
                latest: notice.clone(),
                since: now.wall,
                is_listed: true,
            })
        };
        Self {
            notice: continued.or_else(new),
            ..Self::default()
        }
    }

    /// The state after a poll that did not show what is announced. A notice ends [`CONFIRMATION_TIMEOUT`] after its `NotBefore`, and
    /// not before polls have failed for as long.
    pub(crate) fn after_unconfirmed_poll(&self, now: Moment) -> Self {
        let since = self.unconfirmed_since.unwrap_or(now.mono);
        let is_unconfirmed = now.mono.saturating_duration_since(since) >= CONFIRMATION_TIMEOUT;
        let may_still_come = |tracked: &TrackedNotice| {
            let not_before = tracked.merged().not_before;
            not_before.is_some_and(|at| now.wall < confirmation_deadline(at))
        };
        let notice = self.notice.clone();
        Self {
            notice: notice.filter(|tracked| !is_unconfirmed || may_still_come(tracked)),
            is_clear: false,
            is_unconfirmed,
            unconfirmed_since: Some(since),
            ..self.clone()
        }
    }

    fn after_empty_document(&self, grace: Duration, now: Moment) -> Self {
        let since = self.empty_since.unwrap_or(now.mono);
        let is_clear = now.mono.saturating_duration_since(since) >= grace;
        let notice = self.notice.clone().filter(|_| !is_clear);
        Self {
            notice: notice.map(|tracked| TrackedNotice {
                is_listed: false,
                ..tracked
            }),
            is_clear,
            grace,
            empty_since: Some(since),
            ..Self::default()
        }
    }
}

/// What the documents so far show of this VM, by the type of the event. A notice of one type neither ends nor hides another's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoticeTrackers(BTreeMap<AzureNotice, NoticeTracker>);

impl NoticeTrackers {
    /// Where nothing asks for documents: none confirms a notice that the Node has recorded.
    pub fn without_documents() -> Self {
        let tracker = NoticeTracker {
            is_unconfirmed: true,
            ..NoticeTracker::default()
        };
        Self([(AzureNotice::default(), tracker)].into())
    }

    /// The state of the types `chosen`, each after a change.
    #[must_use]
    pub(super) fn map(
        &self,
        chosen: &BTreeSet<AzureNotice>,
        change: impl Fn(AzureNotice, &NoticeTracker) -> NoticeTracker,
    ) -> Self {
        let initial = NoticeTracker::default();
        let changed = |notice: &AzureNotice| (*notice, change(*notice, self.0.get(notice).unwrap_or(&initial)));
        Self(chosen.iter().map(changed).collect())
    }

    /// The notices of all types.
    pub fn notices(&self) -> impl Iterator<Item = &TrackedNotice> {
        self.0.values().filter_map(|tracker| tracker.notice.as_ref())
    }

    /// The notice of the gravest type; what else is true of every type.
    pub(crate) fn gravest(&self) -> NoticeTracker {
        let is_true_of_all = |is: fn(&NoticeTracker) -> bool| !self.0.is_empty() && self.0.values().all(is);
        NoticeTracker {
            notice: self.notices().next().cloned(),
            is_clear: is_true_of_all(|tracker| tracker.is_clear),
            grace: self.0.values().map(|tracker| tracker.grace).max().unwrap_or_default(),
            is_unconfirmed: is_true_of_all(|tracker| tracker.is_unconfirmed),
            ..NoticeTracker::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use headgate_core::clock::Clock;

    use super::super::document::{EventStatus, EventType};
    use super::*;

    const GRACE: Duration = Duration::from_mins(1);
    const PROVIDERS: &str = "azure:///subscriptions/s/resourceGroups/g/providers/";
    const SET: &str = "azure:///subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachineScaleSets/aks-spot-1-vmss/virtualMachines/3";

    #[test]
    fn names_follow_from_the_provider_id() {
        let of = |resource: &str| format!("{PROVIDERS}Microsoft.Compute/{resource}");
        // A scale set with the name of a path segment.
        let named_as_segment = of("virtualMachineScaleSets/virtualMachines/virtualMachines/0");
        for (provider_id, want) in [
            (SET, Some("aks-spot-1-vmss_3")),
            (&SET.to_ascii_lowercase(), Some("aks-spot-1-vmss_3")),
            (&of("virtualMachines/vm-a"), Some("vm-a")),
            (
                &named_as_segment.replace("resourceGroups/g", "resourceGroups/virtualMachines"),
                Some("virtualMachines_0"),
            ),
            (&of("virtualMachines/"), None),
            (&of("virtualMachineScaleSets/a"), None),
            (&of("disks/a"), None),
            (&of("cloudServices/a/virtualMachines/0"), None),
            (&of("virtualMachines/vm-a").replace("azure", "aws"), None),
            ("aws:///eu-west-1a/i-0123", None),
            ("kind://docker/kind/kind-worker", None),
            ("azure://", None),
            ("", None),
        ] {
            let name = VmName::from_provider_id(provider_id);
            assert_eq!(name.as_ref().map(VmName::as_str), want, "{provider_id}");
        }
    }

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-01T00:10:00Z";

    /// A Preempt event that names no VM.
    fn preempt(id: &str, not_before: &str) -> ScheduledEvent {
        event(EventType::Preempt, id, not_before, &[])
    }

    fn event(event_type: EventType, id: &str, not_before: &str, resources: &[&str]) -> ScheduledEvent {
        ScheduledEvent {
            event_id: id.to_owned(),
            event_type,
            status: EventStatus::Scheduled,
            not_before: not_before.parse().ok(),
            description: String::new(),
            resources: resources.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn only_events_that_name_this_vm_are_its_own() {
        let name = VmName::from_provider_id(SET).unwrap();
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
            let event = event(EventType::Preempt, "a", "", resources);
            assert_eq!(name.is_named_in(&event), ours, "{resources:?}");
        }
    }

    #[test]
    fn notice_is_the_same_by_id_or_by_time() {
        let notice = |id: &str, time: &str| Notice {
            event_type: AzureNotice::Preempt,
            event_id: id.to_owned(),
            not_before: time.parse().ok(),
        };
        for (a, b, same) in [
            (notice("a", EARLY), notice("a", EARLY), true),
            (notice("a", EARLY), notice("A", LATE), true),
            (notice("a", EARLY), notice("b", EARLY), true),
            (notice("a", EARLY), notice("a", ""), true),
            (notice("a", EARLY), notice("b", LATE), false),
            (notice("a", ""), notice("b", ""), false),
            (notice("a", EARLY), notice("b", ""), false),
            (notice("", ""), notice("", ""), false),
            (notice("", EARLY), notice("a", EARLY), true),
            (notice("", EARLY), notice("", LATE), false),
        ] {
            assert_eq!((a.is_same_event(&b), b.is_same_event(&a)), (same, same), "{a:?} {b:?}");
        }
    }

    fn after(start: Moment, second: u64) -> Moment {
        let after = Duration::from_secs(second);
        Moment {
            wall: start.wall + after,
            mono: start.mono + after,
        }
    }

    /// Applies documents: seconds after the start, events, and whether the document is complete.
    fn walk(steps: &[(u64, &[ScheduledEvent], bool)]) -> Vec<NoticeTracker> {
        let start = Clock::System.now();
        let mut tracker = NoticeTracker::default();
        let step = |&(second, events, complete): &(u64, &[ScheduledEvent], bool)| {
            let now = after(start, second);
            tracker = tracker.next(events, AzureNotice::Preempt, complete, GRACE, now);
            tracker.clone()
        };
        steps.iter().map(step).collect()
    }

    fn is_clear(trackers: &[NoticeTracker]) -> Vec<bool> {
        trackers.iter().map(|tracker| tracker.is_clear).collect()
    }

    fn has_notice(trackers: &[NoticeTracker]) -> Vec<bool> {
        trackers.iter().map(|tracker| tracker.notice.is_some()).collect()
    }

    #[test]
    fn notice_stays_for_the_grace_after_it_is_no_longer_listed() {
        let a = [preempt("a", EARLY)];
        let states = walk(&[(0, &a, true), (1, &[], true), (60, &[], true), (61, &[], true)]);
        assert_eq!(has_notice(&states), [true, true, true, false]);
        assert_eq!(is_clear(&states), [false, false, false, true]);
        // Listed again within the grace it is the same notice, and the grace starts again.
        let (first, again) = ((0, &a[..], true), (50, &a[..], true));
        let states = walk(&[first, (1, &[], true), again, (70, &[], true), (129, &[], true)]);
        let notices: Vec<_> = states.iter().map(|tracker| tracker.notice.as_ref().unwrap()).collect();
        let listed: Vec<_> = notices.iter().map(|notice| notice.is_listed).collect();
        assert_eq!(listed, [true, false, true, false, false]);
        assert_eq!(notices[0].since, notices[4].since);
    }

    #[test]
    fn document_with_unreadable_events_ends_no_notice() {
        let a = [preempt("a", "")];
        let (first, unreadable) = ((0, &a[..], true), (1, &[][..], false));
        let states = walk(&[first, unreadable, (100, &[], false), (200, &[], true), (259, &[], true)]);
        assert_eq!(has_notice(&states), [true; 5]);
    }

    #[test]
    fn notice_ends_15_minutes_after_its_time_without_confirmation() {
        const MINUTE: u64 = 60;
        let start = Clock::System.now();
        let at = |second| after(start, second);
        let listed = |not_before: Option<u64>| {
            let mut preempt = preempt("a", "");
            preempt.not_before = not_before.map(|second| at(second).wall);
            let events = [preempt];
            move |second| NoticeTracker::default().next(&events, AzureNotice::Preempt, true, GRACE, at(second))
        };
        // The time of the notice, and the seconds of the failed polls: after the last one it counts no more.
        for (not_before, still, still_then, no_more) in [
            (Some(30), 1, 15 * MINUTE + 29, 15 * MINUTE + 30),
            // Its time has passed, but the first failure is recent.
            (Some(0), 20 * MINUTE, 35 * MINUTE - 1, 35 * MINUTE),
            (None, 1, 15 * MINUTE, 15 * MINUTE + 1),
            (Some(100 * MINUTE), 1, 114 * MINUTE, 115 * MINUTE),
        ] {
            let mut tracker = listed(not_before)(0);
            for (second, counts) in [(still, true), (still_then, true), (no_more, false)] {
                tracker = tracker.after_unconfirmed_poll(at(second));
                assert_eq!(tracker.notice.is_some(), counts, "{not_before:?} {second}");
            }
            assert!(tracker.is_unconfirmed && !tracker.is_clear);
        }
        // Any document that lists it starts the time again.
        let mut tracker = listed(Some(30))(0).after_unconfirmed_poll(at(1));
        tracker = tracker.after_unconfirmed_poll(at(14 * MINUTE));
        let again = preempt("a", "");
        tracker = tracker.next(&[again], AzureNotice::Preempt, true, GRACE, at(15 * MINUTE));
        assert!(!tracker.after_unconfirmed_poll(at(29 * MINUTE)).is_unconfirmed);
    }

    #[test]
    fn empty_documents_are_clear_after_the_grace() {
        let states = walk(&[(0, &[], true), (59, &[], true), (60, &[], true)]);
        assert_eq!(is_clear(&states), [false, false, true]);
        // What an unconfirmed poll does not show may be announced; the next empty document is clear again.
        let clear = states[2].clone();
        let now = Clock::System.now();
        let unconfirmed = clear.after_unconfirmed_poll(now);
        assert!(!unconfirmed.is_clear);
        let later = Moment {
            mono: now.mono + GRACE,
            ..now
        };
        assert!(unconfirmed.next(&[], AzureNotice::Preempt, true, GRACE, later).is_clear);
    }

    #[test]
    fn notice_stays_the_same_when_it_starts_or_gets_a_new_id() {
        let scheduled = [preempt("a", EARLY)];
        let renamed = [preempt("b", EARLY)];
        let started = [preempt("b", "")];
        let states = walk(&[(0, &scheduled, true), (5, &renamed, true), (9, &started, true)]);
        let last = states[2].notice.clone().unwrap();
        assert_eq!(last.since, states[0].notice.as_ref().unwrap().since);
        // The start does not remove the time.
        assert_eq!(last.merged().not_before, scheduled[0].not_before);
        assert!(last.matches(&states[0].notice.as_ref().unwrap().first));
    }

    #[test]
    fn another_eviction_replaces_the_notice_at_once() {
        let a = [preempt("a", EARLY)];
        let b = [preempt("b", LATE)];
        let both = [b[0].clone(), a[0].clone()];
        let states = walk(&[(0, &a, true), (1, &both, true), (2, &b, true)]);
        let notices = states.iter().map(|tracker| tracker.notice.as_ref().unwrap());
        let ids: Vec<_> = notices.map(|notice| notice.latest.event_id.as_str()).collect();
        assert_eq!(ids, ["a", "a", "b"]);
    }

    #[test]
    fn only_the_chosen_types_are_tracked() {
        let now = Clock::System.now();
        for event_type in EventType::ALL {
            let events = [event(event_type, "a", "", &[])];
            let is_tracked = has_notice(&walk(&[(0, &events, true)]));
            assert_eq!(is_tracked, [event_type == EventType::Preempt], "{event_type:?}");
            let next = |notice, tracker: &NoticeTracker| tracker.next(&events, notice, true, GRACE, now);
            let tracker = NoticeTrackers::default().map(&AzureNotice::ALL.into(), next).gravest();
            let event_name = tracker.notice.map(|notice| notice.latest.event_type.as_str());
            let is_shown_only = [EventType::Freeze, EventType::Other].contains(&event_type);
            assert_eq!(event_name, (!is_shown_only).then_some(event_type.as_str()));
        }
    }

    #[test]
    fn a_graver_event_that_is_no_longer_listed_has_its_grace_beside_another() {
        let start = Clock::System.now();
        let (reboot, preempt) = (event(EventType::Reboot, "r", LATE, &[]), preempt("p", LATE));
        let both = [preempt.clone(), reboot.clone()];
        let (only_preempt, only_reboot) = (slice::from_ref(&preempt), slice::from_ref(&reboot));
        let at = |second| after(start, second);
        let mut trackers = NoticeTrackers::default();
        // The second, the document, whether it is complete, the gravest notice, whether it is listed, and all notices.
        for (second, events, is_complete, gravest, is_listed, all) in [
            (0, only_reboot, true, "r", true, 1),
            (1, &[reboot.clone(), preempt.clone()], true, "p", true, 2),
            (2, &both, true, "p", true, 2),
            (3, only_reboot, false, "p", true, 2),
            (4, only_reboot, true, "p", false, 2),
            (63, only_reboot, true, "p", false, 2),
            (64, only_reboot, true, "r", true, 1),
            (65, only_preempt, true, "p", true, 2),
            (125, only_preempt, true, "p", true, 1),
        ] {
            let next = |notice, tracker: &NoticeTracker| tracker.next(events, notice, is_complete, GRACE, at(second));
            trackers = trackers.map(&AzureNotice::ALL.into(), next);
            let tracker = trackers.gravest();
            let notice = tracker.notice.as_ref().unwrap();
            let found = (notice.latest.event_id.as_str(), notice.is_listed);
            assert_eq!(found, (gravest, is_listed), "{second}");
            assert_eq!(trackers.notices().count(), all, "{second}");
            assert!(!tracker.is_clear && !tracker.is_unconfirmed);
        }
        for (second, is_clear) in [(130, false), (189, false), (190, true)] {
            let next = |notice, tracker: &NoticeTracker| tracker.next(&[], notice, true, GRACE, at(second));
            trackers = trackers.map(&AzureNotice::ALL.into(), next);
            assert_eq!(trackers.gravest().is_clear, is_clear, "no type is listed: {second}");
        }
    }
}
