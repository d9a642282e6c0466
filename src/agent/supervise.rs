//! The agent's tasks: each named, owned, and joined; one that ends of itself ends the agent.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use headgate_clock::Clock;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::timeout;

use super::AgentError;

/// How long listeners may take to close once told; their own bounds are shorter.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How a task ended that was allowed to.
enum End {
    /// It was an endless one.
    Unexpected,
    /// It was a listener: told to close, or failed.
    Listener(Result<(), AgentError>),
}

/// The tasks on the agent's runtime.
pub(super) struct Tasks {
    set: JoinSet<End>,
    names: HashMap<Id, &'static str>,
    listeners: usize,
    listed: watch::Sender<Vec<TaskInfo>>,
    clock: Clock,
}

/// A task for `/statusz`: its name and its start.
pub(super) type TaskInfo = (&'static str, Timestamp);

impl Tasks {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            set: JoinSet::new(),
            names: HashMap::new(),
            listeners: 0,
            listed: watch::Sender::default(),
            clock,
        }
    }

    /// A task that must run until it is aborted.
    pub(super) fn endless(&mut self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.spawn(name, async move {
            work.await;
            End::Unexpected
        });
    }

    /// A task that ends when it is told to close.
    pub(super) fn listener(
        &mut self,
        name: &'static str,
        work: impl Future<Output = Result<(), AgentError>> + Send + 'static,
    ) {
        self.listeners += 1;
        self.spawn(name, async move { End::Listener(work.await) });
    }

    fn spawn(&mut self, name: &'static str, work: impl Future<Output = End> + Send + 'static) {
        let id = self.set.spawn(work).id();
        self.names.insert(id, name);
        self.list(name);
    }

    /// Lists a task that is owned elsewhere.
    pub(super) fn list(&self, name: &'static str) {
        let since = self.clock.now().wall;
        self.listed.send_modify(|listed| listed.push((name, since)));
    }

    /// The tasks started so far.
    pub(super) fn listed(&self) -> watch::Receiver<Vec<TaskInfo>> {
        self.listed.subscribe()
    }

    /// Waits for a task to end that should not have.
    pub(super) async fn failed(&mut self) -> AgentError {
        let Some(ended) = self.set.join_next_with_id().await else {
            return std::future::pending().await;
        };
        match self.outcome(ended) {
            (task, Ok(End::Unexpected | End::Listener(Ok(())))) => AgentError::Task {
                task,
                why: "it should not end of itself".to_owned(),
            },
            (_, Ok(End::Listener(Err(error))) | Err(error)) => error,
        }
    }

    /// Waits for the listeners, which were told to close, then ends the rest.
    pub(super) async fn stop(&mut self) -> Result<(), AgentError> {
        let close = async {
            while self.listeners > 0 {
                let Some(ended) = self.set.join_next_with_id().await else {
                    break;
                };
                match self.outcome(ended) {
                    (_, Ok(End::Listener(outcome))) => {
                        self.listeners -= 1;
                        outcome?;
                    }
                    (_, Ok(End::Unexpected)) => {}
                    (_, Err(error)) => return Err(error),
                }
            }
            Ok(())
        };
        let closed = timeout(CLOSE_TIMEOUT, close).await.unwrap_or(Ok(()));
        self.set.shutdown().await;
        closed
    }

    fn outcome(&self, ended: Result<(Id, End), JoinError>) -> (&'static str, Result<End, AgentError>) {
        let name = |id| self.names.get(&id).copied().unwrap_or("unknown");
        match ended {
            Ok((id, end)) => (name(id), Ok(end)),
            Err(error) => {
                let task = name(error.id());
                (
                    task,
                    Err(AgentError::Task {
                        task,
                        why: error.to_string(),
                    }),
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_or_ends_is_named() {
        let mut tasks = Tasks::new(Clock::System);
        tasks.endless("endless", std::future::pending());
        tasks.endless("panics", async { panic!("boom") });
        let error = tasks.failed().await.to_string();
        assert!(error.contains("panics") && error.contains("boom"), "{error}");
        tasks.endless("returns", async {});
        assert!(tasks.failed().await.to_string().contains("returns"));
    }

    #[tokio::test]
    async fn listeners_are_waited_for_and_the_rest_is_ended() {
        let mut tasks = Tasks::new(Clock::System);
        let (told, mut close) = watch::channel(false);
        tasks.endless("endless", std::future::pending());
        tasks.listener("listener", async move {
            let _ = close.wait_for(|close| *close).await;
            Ok(())
        });
        told.send_replace(true);
        tasks.stop().await.unwrap();
        assert!(tasks.set.is_empty());
    }
}
