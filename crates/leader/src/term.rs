//! A term, and the permit to send one write in it.
//!
//! Invariant: whoever asks learns that a term has ended by his own monotonic clock, even if everything that was to
//! tell him stood still: the deadline is part of the term. It moves only forward, and an ended term stays ended.

use std::marker::PhantomData;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// What has become of a term.
#[derive(Clone, Copy, Debug)]
struct Present {
    /// `None`: it has ended.
    until: Option<Instant>,
    /// It is about to be given back.
    leaving: bool,
}

fn lasts(present: Present) -> bool {
    present.until.is_some_and(|until| Instant::now() < until)
}

/// One leader's time in office. Clones are the same term.
#[derive(Clone, Debug)]
pub struct Term {
    number: i32,
    present: watch::Receiver<Present>,
}

/// Leave to send one write now.
///
/// It is asked for right before sending, after whatever has to be waited for, and handed to what sends. It is not
/// `Send`, so that a task cannot keep it while it waits for something:
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
///     let answer = send(permit);
///     answer.await;
/// }
/// fn spawn(term: headgate_leader::Term) {
///     tokio::spawn(at_once(term));
/// }
/// ```
#[derive(Debug)]
#[must_use = "a permit is for the write that is sent now"]
pub struct Permit<'term> {
    term: &'term Term,
    not_send: PhantomData<*const ()>,
}

impl Permit<'_> {
    /// The number of the term that the write is sent in, for logs and request ids.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.term.number
    }
}

/// The term has ended: nothing more may be sent in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("term {number} has ended: this instance is no longer the leader")]
pub struct TermEnded {
    /// The term.
    pub number: i32,
}

impl Term {
    /// Its number: `leaseTransitions` of the Lease, which gives none twice. Where somebody deleted the Lease, whoever
    /// made it anew went on from the highest that it had seen.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.number
    }

    /// Leave to send one write, now.
    ///
    /// # Errors
    /// When the term has ended.
    pub fn permit(&self) -> Result<Permit<'_>, TermEnded> {
        if lasts(*self.present.borrow()) {
            Ok(Permit {
                term: self,
                not_send: PhantomData,
            })
        } else {
            Err(TermEnded { number: self.number })
        }
    }

    /// Waits until the term is about to be given back: the own node has a signal, or the process is to stop. There
    /// are some 3 s for what has to be written yet; the sooner the work ends, the sooner somebody else begins.
    pub async fn handover_requested(&self) {
        let mut present = self.present.clone();
        // Gone is leaving too.
        let _ = present
            .wait_for(|present| present.leaving || present.until.is_none())
            .await;
    }

    /// Waits until the term has ended.
    pub async fn ended(&self) {
        let mut present = self.present.clone();
        loop {
            let Some(until) = present.borrow_and_update().until else {
                return;
            };
            if Instant::now() >= until {
                return;
            }
            tokio::select! {
                changed = present.changed() => if changed.is_err() { return },
                () = sleep_until(until) => {}
            }
        }
    }
}

/// The elector's side of a term, which ends with it.
#[derive(Debug)]
pub(super) struct Tenure {
    present: watch::Sender<Present>,
}

impl Tenure {
    /// A term that ends at `until` if nothing else is said.
    pub(super) fn begin(number: i32, until: Instant) -> (Self, Term) {
        let (sender, present) = watch::channel(Present {
            until: Some(until),
            leaving: false,
        });
        (Self { present: sender }, Term { number, present })
    }

    /// Says until when the term lasts now, and whether it is about to be given back; whether it still lasted. What
    /// had ended by the clock before it was renewed has ended: somebody may have asked.
    #[must_use]
    pub(super) fn goes_on(&self, until: Instant, leaving: bool) -> bool {
        self.present.send_if_modified(|present| {
            let was = (present.until, present.leaving);
            let lasts = present.until.filter(|before| Instant::now() < *before);
            present.until = lasts.map(|before| before.max(until));
            present.leaving |= leaving;
            was != (present.until, present.leaving)
        });
        self.lasts()
    }

    /// Whether the term has not ended yet.
    pub(super) fn lasts(&self) -> bool {
        lasts(*self.present.borrow())
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        self.present.send_modify(|present| present.until = None);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{advance, timeout};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_term_ends_by_the_clock_of_who_asks() {
        let (tenure, term) = Tenure::begin(7, Instant::now() + SECOND);
        assert_eq!(term.permit().unwrap().number(), 7);
        advance(Duration::from_millis(999)).await;
        assert!(term.permit().is_ok());
        advance(Duration::from_millis(1)).await;
        let told = term.permit().unwrap_err().to_string();
        assert_eq!(told, "term 7 has ended: this instance is no longer the leader");
        timeout(SECOND, term.ended()).await.unwrap();
        // Nobody brings it back.
        assert!(!tenure.goes_on(Instant::now() + SECOND, false));
        assert!(term.permit().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_only_prolongs() {
        let (tenure, term) = Tenure::begin(7, Instant::now() + SECOND);
        let ended = tokio::spawn({
            let term = term.clone();
            async move { term.ended().await }
        });
        assert!(tenure.goes_on(Instant::now() + 3 * SECOND, false));
        assert!(tenure.goes_on(Instant::now() + 2 * SECOND, false));
        tokio::time::sleep(2 * SECOND + SECOND / 2).await;
        assert!(term.permit().is_ok() && !ended.is_finished());
        tokio::time::sleep(SECOND).await;
        assert!(ended.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn leaving_is_told_while_the_term_lasts_and_dropping_ends_it() {
        let (tenure, term) = Tenure::begin(7, Instant::now() + SECOND);
        assert!(timeout(SECOND / 10, term.handover_requested()).await.is_err());
        assert!(tenure.goes_on(Instant::now() + SECOND, true));
        term.handover_requested().await;
        assert!(term.permit().is_ok());
        drop(tenure);
        assert!(term.permit().is_err());
        term.ended().await;
        term.handover_requested().await;
    }
}
