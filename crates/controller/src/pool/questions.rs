//! The questions to ARM about network interfaces that are under way, beside whatever else is done.
//!
//! Invariants: no more than some at a time, each with an end; whoever stops waiting loses no answer, and an answer counts
//! only once it is taken in.

use std::collections::{HashSet, VecDeque};
use std::future::{Future, pending};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use headgate_azure::{ArmClient, ArmError, NetworkInterfaceId};
use tokio::time::{Instant, timeout};

use super::interfaces::Interfaces;
use super::inventory::View;

/// Questions at a time.
const AT_ONCE: usize = 16;
/// Answers that come within so long after one are taken in with it, so that a pool is not written for each.
const TOGETHER: Duration = Duration::from_millis(200);

type Answer = (NetworkInterfaceId, Result<Option<String>, ArmError>);

/// What is asked.
pub(super) struct Questions {
    arm: ArmClient,
    /// Not sent yet, with the end of each.
    waiting: VecDeque<(NetworkInterfaceId, Instant)>,
    under_way: FuturesUnordered<BoxFuture<'static, Answer>>,
    /// About these.
    sent: HashSet<NetworkInterfaceId>,
    /// Not taken in yet.
    answers: Vec<Answer>,
}

impl Questions {
    pub(super) fn new(arm: ArmClient) -> Self {
        Self {
            arm,
            waiting: VecDeque::new(),
            under_way: FuturesUnordered::new(),
            sent: HashSet::new(),
            answers: Vec::new(),
        }
    }

    /// Asks about what is not known of these pools' interfaces, until then; what left the pools is not asked about.
    pub(super) fn ask(&mut self, interfaces: &mut Interfaces, view: &View, deadline: Instant) {
        let mut due = interfaces.due(view, Instant::now());
        self.waiting.retain(|(id, _)| due.remove(id));
        let new = due.into_iter().filter(|id| !self.sent.contains(id));
        self.waiting.extend(new.map(|id| (id, deadline)));
        self.send();
    }

    fn send(&mut self) {
        while self.under_way.len() < AT_ONCE
            && let Some((id, deadline)) = self.waiting.pop_front()
        {
            self.sent.insert(id.clone());
            let arm = self.arm.clone();
            let question = async move {
                let answer = arm.get_interface_virtual_machine(&id, deadline).await;
                (id, answer)
            };
            self.under_way.push(question.boxed());
        }
    }

    /// Waits for one more answer; whether there is one to come.
    async fn next(&mut self) -> bool {
        let Some(answer) = self.under_way.next().await else {
            return false;
        };
        self.sent.remove(&answer.0);
        self.answers.push(answer);
        self.send();
        true
    }

    /// Waits for answers, for ever where nothing is asked.
    pub(super) async fn answered(&mut self) {
        if self.answers.is_empty() && !self.next().await {
            pending::<()>().await;
        }
        // However many there are by then.
        let _ = timeout(TOGETHER, self.all()).await;
    }

    /// Waits for all answers.
    pub(super) async fn all(&mut self) {
        while self.next().await {}
    }

    /// Does this, while answers go on coming.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                more = self.next() => if !more {
                    return work.await;
                },
            }
        }
    }

    /// What was answered is known from now on.
    pub(super) fn take_in(&mut self, interfaces: &mut Interfaces) {
        for (id, answer) in self.answers.drain(..) {
            interfaces.answered(id, answer);
        }
    }
}
