//! A term, its permits, and what its work reports to the election.
//!
//! Invariant: a user of a term sees its end by the own monotonic clock, even if the election's task
//! stands still: the deadline is part of the term. The deadline only moves forward, and an ended term stays ended.

use std::marker::PhantomData;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::fleet::NodeSummary;
use super::successor_request::{Inability, ThrottleDeadlines};

/// The validity of a term.
#[derive(Clone, Copy, Debug)]
struct Validity {
    /// The deadline; `None` when the election has ended the term.
    until: Option<Instant>,
    is_handover_requested: bool,
}

impl Validity {
    fn is_valid(self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}

/// What the work of a term reports to the election.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reports {
    pub(super) nodes: Option<NodeSummary>,
    pub(super) unable: Option<Inability>,
    pub(super) throttle: ThrottleDeadlines,
}

/// A term handle: by it the work of a term learns whether the term is still valid. Clones belong to the same term.
#[derive(Clone, Debug)]
pub struct Term {
    number: i32,
    validity: watch::Receiver<Validity>,
    reports: watch::Sender<Reports>,
}

/// The right to send one write now.
///
/// Request it right before sending, after everything that has to be waited for. It is not `Send`, so a task cannot hold
/// it while it waits for something else:
///
/// ```compile_fail
/// # async fn wait() {}
/// async fn late(term: headgate_leader::Term) {
///     let Ok(permit) = term.permit() else { return };
///     wait().await;
///     drop(permit);
/// }
/// fn spawn(term: headgate_leader::Term) {
///     tokio::spawn(late(term));
/// }
/// ```
///
/// ```
/// # fn send(permit: headgate_leader::Permit<'_>) -> impl Future<Output = ()> + use<> { drop(permit); async {} }
/// async fn at_once(term: headgate_leader::Term) {
///     let Ok(permit) = term.permit() else { return };
///     let response = send(permit);
///     response.await;
/// }
/// fn spawn(term: headgate_leader::Term) {
///     tokio::spawn(at_once(term));
/// }
/// ```
#[derive(Debug)]
#[must_use = "a permit is for the write that is sent now"]
pub struct Permit<'term> {
    term: PhantomData<&'term Term>,
    not_send: PhantomData<*const ()>,
}

/// The term has ended, so nothing more may be sent in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("term {number} has ended: this instance is no longer the leader")]
pub struct TermEnded {
    /// The number of the term.
    pub number: i32,
}

impl Term {
    /// The number of the term: `leaseTransitions` of the Lease. No two terms of one Lease have the same. After a deletion
    /// of the Lease, numbers continue from the highest one that the creator of the new Lease has observed.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.number
    }

    /// Requests the right to send one write now.
    ///
    /// # Errors
    /// If the term has ended.
    pub fn permit(&self) -> Result<Permit<'_>, TermEnded> {
        if self.validity.borrow().is_valid() {
            Ok(Permit {
                term: PhantomData,
                not_send: PhantomData,
            })
        } else {
            Err(TermEnded { number: self.number })
        }
    }

    /// Waits until a handover is requested, because the own node has a signal or the process stops, or the term has
    /// ended. The work then has 3 s for its last writes; the next leader starts when it ends.
    pub async fn handover_requested(&self) {
        let mut validity = self.validity.clone();
        // An error means that the election has ended.
        let _ = validity
            .wait_for(|validity| validity.is_handover_requested || validity.until.is_none())
            .await;
    }

    /// Whether [`Term::handover_requested`] would return at once.
    #[must_use]
    pub fn is_handover_requested(&self) -> bool {
        let validity = *self.validity.borrow();
        validity.is_handover_requested || validity.until.is_none()
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
    pub fn report_throttle(&self, throttle: ThrottleDeadlines) {
        self.report(|reports| reports.throttle = throttle);
    }

    /// Until when ARM throttles requests, as reported last in this term or by the leader before.
    #[must_use]
    pub fn throttle(&self) -> ThrottleDeadlines {
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
    /// A term that ends at `until` unless it is renewed. `throttle` is what the leader before left.
    pub(super) fn new(number: i32, until: Instant, throttle: ThrottleDeadlines) -> (Self, Term) {
        let (validity, receiver) = watch::channel(Validity {
            until: Some(until),
            is_handover_requested: false,
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
        };
        (owner, term)
    }

    pub(super) fn number(&self) -> i32 {
        self.number
    }

    /// Moves the deadline to `until`, if that is later, and requests a handover where `handover` is set. Returns whether
    /// the term is valid. A term that had ended by the clock before its renewal stays ended: its work may have noticed.
    #[must_use]
    pub(super) fn renew(&self, until: Instant, handover: bool) -> bool {
        self.validity.send_if_modified(|validity| {
            let before = (validity.until, validity.is_handover_requested);
            let valid_until = validity.until.filter(|until| Instant::now() < *until);
            validity.until = valid_until.map(|before| before.max(until));
            validity.is_handover_requested |= handover;
            before != (validity.until, validity.is_handover_requested)
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
        if self.reports.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for TermOwner {
    fn drop(&mut self) {
        self.validity.send_modify(|validity| validity.until = None);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{advance, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_term_ends_by_the_clock_of_its_user() {
        let (owner, term) = TermOwner::new(7, Instant::now() + SECOND, ThrottleDeadlines::default());
        assert!(term.permit().is_ok());
        assert_eq!(term.number(), 7);
        advance(Duration::from_millis(999)).await;
        assert!(term.permit().is_ok());
        advance(Duration::from_millis(1)).await;
        let error = term.permit().unwrap_err().to_string();
        assert_eq!(error, "term 7 has ended: this instance is no longer the leader");
        timeout(SECOND, term.ended()).await.unwrap();
        // No renewal restores it.
        assert!(!owner.renew(Instant::now() + SECOND, false));
        assert!(term.permit().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_only_prolongs_a_term() {
        let (owner, term) = TermOwner::new(7, Instant::now() + SECOND, ThrottleDeadlines::default());
        let ended = tokio::spawn({
            let term = term.clone();
            async move { term.ended().await }
        });
        assert!(owner.renew(Instant::now() + 3 * SECOND, false));
        assert!(owner.renew(Instant::now() + 2 * SECOND, false));
        tokio::time::sleep(2 * SECOND + SECOND / 2).await;
        assert!(term.permit().is_ok() && !ended.is_finished());
        tokio::time::sleep(SECOND).await;
        assert!(ended.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_handover_is_requested_in_a_valid_term_and_dropping_the_owner_ends_it() {
        let (owner, term) = TermOwner::new(7, Instant::now() + SECOND, ThrottleDeadlines::default());
        assert!(timeout(SECOND / 10, term.handover_requested()).await.is_err());
        assert!(!term.is_handover_requested());
        assert!(owner.renew(Instant::now() + SECOND, true));
        term.handover_requested().await;
        assert!(term.is_handover_requested());
        assert!(term.permit().is_ok());
        drop(owner);
        assert!(term.permit().is_err());
        term.ended().await;
        term.handover_requested().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_of_the_nodes_belongs_to_one_term() {
        let (mut owner, term) = TermOwner::new(7, Instant::now() + SECOND, ThrottleDeadlines::default());
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
        let (mut next, _term) = TermOwner::new(8, Instant::now() + SECOND, ThrottleDeadlines::default());
        assert_eq!(next.reports().nodes, None);
    }
}
