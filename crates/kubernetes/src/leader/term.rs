//! A term, its permits, and what its work reports to the election.
//!
//! Invariants: a user of a term sees its end by the own monotonic clock, even if the election's task
//! stands still: the deadline is part of the term. The deadline only moves forward, and an ended term stays ended. The
//! monotonic clock of a virtual machine may stop while the machine is frozen; then it disagrees with the wall clock about the
//! time since the last renewal, and no permit is issued until the next one.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::changed;
use headgate_core::clock::{Clock, Moment};
use headgate_core::throttle::ThrottledUntil;
use jiff::SignedDuration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::fleet::NodeSummary;
use super::successor_request::Inability;
use super::timing::MAX_CLOCK_DIVERGENCE;
use crate::node_writer::MaySend;

/// The validity of a term.
#[derive(Clone, Copy, Debug)]
struct Validity {
    /// The deadline; `None` when the election has ended the term.
    until: Option<Instant>,
    /// The start of the last renewal.
    renewed: Moment,
    handover_requested: Option<Instant>,
}

impl Validity {
    fn is_valid(self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }

    /// By how much the clocks disagree about the time since the last renewal.
    fn clock_divergence(self, now: Moment) -> SignedDuration {
        let mono = now.mono.saturating_duration_since(self.renewed.mono);
        let mono = SignedDuration::try_from(mono).unwrap_or(SignedDuration::MAX);
        now.wall.duration_since(self.renewed.wall).saturating_sub(mono).abs()
    }
}

/// What the work of a term reports to the election.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reports {
    pub(super) nodes: Option<NodeSummary>,
    pub(super) unable: Option<Inability>,
    pub(super) throttle: ThrottledUntil,
}

/// A term handle: by it the work of a term learns whether the term is still valid. Clones belong to the same term.
#[derive(Clone, Debug)]
pub struct Term {
    number: i32,
    validity: watch::Receiver<Validity>,
    reports: watch::Sender<Reports>,
    clock: Clock,
}

/// The right to send one write now.
///
/// Request it right before sending, after everything that has to be waited for. It is not `Send`, so a task cannot hold
/// it while it waits for something else:
///
/// ```compile_fail
/// # async fn wait() {}
/// async fn late(term: headgate_kubernetes::leader::Term) {
///     let Ok(permit) = term.permit() else { return };
///     wait().await;
///     drop(permit);
/// }
/// fn spawn(term: headgate_kubernetes::leader::Term) {
///     tokio::spawn(late(term));
/// }
/// ```
///
/// ```
/// # fn send(permit: headgate_kubernetes::leader::Permit<'_>) -> impl Future<Output = ()> + use<> { drop(permit); async {} }
/// async fn at_once(term: headgate_kubernetes::leader::Term) {
///     let Ok(permit) = term.permit() else { return };
///     let response = send(permit);
///     response.await;
/// }
/// fn spawn(term: headgate_kubernetes::leader::Term) {
///     tokio::spawn(at_once(term));
/// }
/// ```
#[derive(Debug)]
#[must_use = "a permit is for the write that is sent now"]
pub struct Permit<'term> {
    term: PhantomData<&'term Term>,
    not_send: PhantomData<*const ()>,
}

/// Why nothing may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PermitError {
    /// The term has ended, so nothing more may be sent in it.
    #[error("term {number} has ended: this instance is no longer the leader")]
    TermEnded {
        /// The number of the term.
        number: i32,
    },
    /// The machine may have stood still. After the next renewal the term goes on.
    #[error(
        "wall clock and monotonic clock diverge by {seconds} s since the last renewal of term {number}: this machine may have stood still"
    )]
    ClocksDiverge {
        /// The number of the term.
        number: i32,
        /// By how much the clocks disagree.
        seconds: i64,
    },
    /// Too little is left of the handover for a write.
    #[error("term {number} is handed over: the next leader writes")]
    HandingOver {
        /// The number of the term.
        number: i32,
    },
}

impl Term {
    /// The number of the term: `leaseTransitions` of the Lease. Each has a higher one than the term before, but for the highest `i32`, after
    /// which comes 1. After a deletion of the Lease, numbers continue from the highest one that the creator of the new Lease has observed.
    pub fn number(&self) -> i32 {
        self.number
    }

    /// Requests the right to send one write now.
    ///
    /// # Errors
    /// If the term has ended, or the clocks disagree about the time since its last renewal.
    pub fn permit(&self) -> Result<Permit<'_>, PermitError> {
        let (validity, number) = (*self.validity.borrow(), self.number);
        if !validity.is_valid() {
            return Err(PermitError::TermEnded { number });
        }
        let divergence = validity.clock_divergence(self.clock.now());
        if divergence > SignedDuration::try_from(MAX_CLOCK_DIVERGENCE).unwrap_or(SignedDuration::MAX) {
            let seconds = divergence.as_secs();
            return Err(PermitError::ClocksDiverge { number, seconds });
        }
        Ok(Permit {
            term: PhantomData,
            not_send: PhantomData,
        })
    }

    /// The same for a write that may take long: not later than `window` after a handover was requested.
    ///
    /// # Errors
    /// As [`Term::permit`], and after the window.
    pub fn permit_within(&self, window: Duration) -> Result<Permit<'_>, PermitError> {
        let requested = self.validity.borrow().handover_requested;
        if requested.is_some_and(|requested| requested.elapsed() >= window) {
            return Err(PermitError::HandingOver { number: self.number });
        }
        self.permit()
    }

    /// The same question for the writer of Nodes, which asks it right before each write.
    pub(crate) fn may_send(&self) -> MaySend {
        let term = self.clone();
        Arc::new(move || term.permit().map(drop).map_err(|error| error.to_string()))
    }

    /// Waits until [`Term::permit`] has no reason to wait: while the clocks diverge, for a renewal or the end of the term.
    pub async fn clocks_agree(&self) {
        let mut validity = self.validity.clone();
        loop {
            validity.borrow_and_update();
            if !matches!(self.permit(), Err(PermitError::ClocksDiverge { .. })) {
                return;
            }
            tokio::select! {
                changed = validity.changed() => if changed.is_err() { return },
                () = self.ended() => return,
            }
        }
    }

    /// Waits until a handover is requested, because the own node has a signal or the process stops, or the term has
    /// ended. The work then has 3 s for its last writes; the next leader starts when it ends.
    pub async fn handover_requested(&self) {
        let mut validity = self.validity.clone();
        // An error means that the election has ended.
        let _ = validity
            .wait_for(|validity| validity.handover_requested.is_some() || validity.until.is_none())
            .await;
    }

    /// Waits until the term has ended.
    pub async fn ended(&self) {
        let mut validity = self.validity.clone();
        loop {
            let Some(until) = validity.borrow_and_update().until else {
                return;
            };
            if Instant::now() >= until {
                return;
            }
            tokio::select! {
                changed = validity.changed() => if changed.is_err() { return },
                () = sleep_until(until) => {}
            }
        }
    }

    /// Reports what the work observes of the Nodes; `None` while it observes nothing. The report ends with the term.
    pub fn report_nodes(&self, nodes: Option<NodeSummary>) {
        self.report(|reports| reports.nodes = nodes);
    }

    /// Reports that the work cannot be done on this instance; `None` once it can. The election then looks for a candidate
    /// that volunteers and requests a handover when it finds one. Until then the term goes on.
    pub fn report_inability(&self, unable: Option<Inability>) {
        self.report(|reports| reports.unable = unable);
    }

    /// Reports until when ARM throttles requests. The Lease has it from the next renewal on, for the next leader.
    pub fn report_throttle(&self, throttle: ThrottledUntil) {
        self.report(|reports| reports.throttle = throttle);
    }

    /// Until when ARM throttles requests, as reported last in this term or by the leader before.
    pub fn throttle(&self) -> ThrottledUntil {
        self.reports.borrow().throttle
    }

    fn report(&self, change: impl FnOnce(&mut Reports)) {
        self.reports.send_if_modified(|reports| {
            let before = *reports;
            change(reports);
            *reports != before
        });
    }
}

/// The election's side of a term. Dropping it ends the term.
#[derive(Debug)]
pub(super) struct TermOwner {
    number: i32,
    validity: watch::Sender<Validity>,
    reports: watch::Receiver<Reports>,
}

impl TermOwner {
    /// A term that ends at `until` unless it is renewed; `renewed` is the start of the write that acquired it. `throttle` is
    /// what the leader before left.
    pub(super) fn new(
        number: i32,
        until: Instant,
        renewed: Moment,
        throttle: ThrottledUntil,
        clock: Clock,
    ) -> (Self, Term) {
        let (validity, receiver) = watch::channel(Validity {
            until: Some(until),
            renewed,
            handover_requested: None,
        });
        let (sender, reports) = watch::channel(Reports {
            throttle,
            ..Reports::default()
        });
        let owner = Self {
            number,
            validity,
            reports,
        };
        let term = Term {
            number,
            validity: receiver,
            reports: sender,
            clock,
        };
        (owner, term)
    }

    pub(super) fn number(&self) -> i32 {
        self.number
    }

    /// Moves the deadline to `until`, if that is later, after a renewal that began at `renewed`, and requests a handover where `handover`
    /// is set. Returns whether the term is valid. A term that had ended by the clock before its renewal stays ended: its work may have
    /// noticed.
    pub(super) fn renew(&self, until: Instant, renewed: Moment, handover: bool) -> bool {
        self.validity.send_if_modified(|validity| {
            let before = (validity.until, validity.handover_requested, validity.renewed);
            let valid_until = validity.until.filter(|until| Instant::now() < *until);
            validity.until = valid_until.map(|before| before.max(until));
            if handover {
                validity.handover_requested.get_or_insert_with(Instant::now);
            }
            if renewed.mono > validity.renewed.mono {
                validity.renewed = renewed;
            }
            before != (validity.until, validity.handover_requested, validity.renewed)
        });
        self.is_valid()
    }

    /// Whether the term has not ended.
    pub(super) fn is_valid(&self) -> bool {
        self.validity.borrow().is_valid()
    }

    /// The latest reports of the work.
    pub(super) fn reports(&mut self) -> Reports {
        *self.reports.borrow_and_update()
    }

    /// Waits for a report that [`TermOwner::reports`] has not returned; forever if all handles are gone.
    pub(super) async fn reports_changed(&mut self) {
        changed(&mut self.reports).await;
    }
}

impl Drop for TermOwner {
    fn drop(&mut self) {
        self.validity.send_modify(|validity| validity.until = None);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::time::{advance, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A term that ends in a second, acquired now.
    fn new_term(number: i32, clock: &Clock) -> (TermOwner, Term) {
        let until = Instant::now() + SECOND;
        TermOwner::new(number, until, clock.now(), ThrottledUntil::default(), clock.clone())
    }

    fn anchored() -> Clock {
        Clock::anchored(jiff::Timestamp::UNIX_EPOCH)
    }

    #[tokio::test(start_paused = true)]
    async fn no_permit_is_issued_while_the_clocks_diverge() {
        let clock = anchored();
        let until = Instant::now() + 10 * SECOND;
        for (jump, is_permitted) in [(0, true), (2, true), (3, false), (-2, true), (-3, false), (3600, false)] {
            let now = clock.now();
            // The machine stood still, or its clock was set, after the renewal began.
            let (wall, mono) = (now.wall - SignedDuration::from_secs(jump), now.mono);
            let before = Moment { wall, mono };
            let (owner, term) = TermOwner::new(7, until, before, ThrottledUntil::default(), clock.clone());
            assert_eq!(term.permit().is_ok(), is_permitted, "{jump}");
            if is_permitted {
                continue;
            }
            let (number, seconds) = (7, jump.abs());
            let expected = PermitError::ClocksDiverge { number, seconds };
            assert_eq!(term.permit().unwrap_err(), expected);
            assert!(timeout(SECOND / 10, term.clocks_agree()).await.is_err());
            // A request for a handover is no renewal, and a renewal that was on its way before the jump does not help.
            assert!(owner.renew(until, before, true));
            assert!(term.permit().is_err());
            assert!(owner.renew(until, clock.now(), false));
            timeout(SECOND / 10, term.clocks_agree()).await.unwrap();
            assert!(term.permit().is_ok());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_ends_by_the_clock_of_its_user() {
        let clock = anchored();
        let (owner, term) = new_term(7, &clock);
        assert!(term.permit().is_ok());
        assert_eq!((owner.number(), term.number()), (7, 7));
        advance(Duration::from_millis(999)).await;
        assert!(term.permit().is_ok());
        advance(Duration::from_millis(1)).await;
        let error = term.permit().unwrap_err().to_string();
        assert_eq!(error, "term 7 has ended: this instance is no longer the leader");
        timeout(SECOND, term.ended()).await.unwrap();
        // No renewal restores it.
        assert!(!owner.renew(Instant::now() + SECOND, clock.now(), false));
        assert!(term.permit().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_only_prolongs_a_term() {
        let clock = anchored();
        let (owner, term) = new_term(7, &clock);
        let ended = tokio::spawn({
            let term = term.clone();
            async move { term.ended().await }
        });
        assert!(owner.renew(Instant::now() + 3 * SECOND, clock.now(), false));
        assert!(owner.renew(Instant::now() + 2 * SECOND, clock.now(), false));
        tokio::time::sleep(2 * SECOND + SECOND / 2).await;
        assert!(term.permit().is_ok() && !ended.is_finished());
        tokio::time::sleep(SECOND).await;
        assert!(ended.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_handover_is_requested_in_a_valid_term_and_dropping_the_owner_ends_it() {
        let clock = anchored();
        let (owner, term) = new_term(7, &clock);
        assert!(timeout(SECOND / 10, term.handover_requested()).await.is_err());
        assert!(term.handover_requested().now_or_never().is_none());
        let waiting = tokio::spawn({
            let term = term.clone();
            async move { term.handover_requested().await }
        });
        tokio::task::yield_now().await;
        assert!(owner.renew(Instant::now() + SECOND, clock.now(), true));
        timeout(SECOND / 10, waiting).await.unwrap().unwrap();
        assert!(term.handover_requested().now_or_never().is_some());
        assert!(term.permit().is_ok());
        drop(owner);
        assert!(term.permit().is_err());
        term.ended().await;
        term.handover_requested().await;
    }

    #[tokio::test(start_paused = true)]
    async fn no_long_write_begins_late_in_a_handover() {
        let clock = anchored();
        let (owner, term) = new_term(7, &clock);
        let permitted = || term.permit_within(SECOND / 2).map(drop);
        assert!(owner.renew(Instant::now() + 9 * SECOND, clock.now(), false));
        advance(SECOND).await;
        assert_eq!(permitted(), Ok(()), "none is requested");
        assert!(owner.renew(Instant::now() + 9 * SECOND, clock.now(), true));
        advance(SECOND / 4).await;
        assert_eq!(permitted(), Ok(()));
        // A renewal does not begin it again.
        assert!(owner.renew(Instant::now() + 9 * SECOND, clock.now(), true));
        advance(SECOND / 4).await;
        let error = permitted().unwrap_err();
        assert_eq!(error, PermitError::HandingOver { number: 7 });
        assert_eq!(error.to_string(), "term 7 is handed over: the next leader writes");
        assert!(term.permit().is_ok(), "others may be sent");
        drop(owner);
        let error = term.permit_within(9 * SECOND).unwrap_err();
        assert_eq!(error, PermitError::TermEnded { number: 7 });
    }

    #[tokio::test(start_paused = true)]
    async fn reports_belong_to_one_term() {
        let clock = anchored();
        let (mut owner, term) = new_term(7, &clock);
        assert_eq!(owner.reports().nodes, None);
        let nodes = NodeSummary {
            nodes: 3,
            has_healthy_peer: true,
        };
        term.report_nodes(Some(nodes));
        timeout(SECOND, owner.reports_changed()).await.unwrap();
        assert_eq!(owner.reports().nodes, Some(nodes));
        term.report_nodes(Some(nodes));
        assert!(timeout(SECOND, owner.reports_changed()).await.is_err(), "no change");
        let throttle = ThrottledUntil {
            reads: None,
            writes: Some(Instant::now() + 9 * SECOND),
        };
        term.report_throttle(throttle);
        assert_eq!((owner.reports().throttle, term.throttle()), (throttle, throttle));
        let unable = Some(Inability {
            reason: super::super::successor_request::InabilityReason::Lists,
            since: jiff::Timestamp::UNIX_EPOCH,
        });
        term.report_inability(unable);
        assert_eq!(owner.reports().unable, unable);
        let (mut next, _term) = new_term(8, &clock);
        assert_eq!(next.reports(), Reports::default());
    }
}
