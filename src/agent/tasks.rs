//! The tasks of an agent: each is named, owned and joined. A task that ends unexpectedly ends the agent.

use std::future::Future;
use std::time::Duration;

use headgate_core::clock::Clock;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio::time::timeout;
use tokio_util::task::JoinMap;

use super::AgentError;
use crate::agent_status::TaskStatus;

/// Time for stoppable tasks to end after the stop. Their own limits are shorter.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How a task ended.
enum TaskEnd {
    /// A task that should not end has returned.
    Endless,
    /// A stoppable task was stopped or has failed.
    Stoppable(Result<(), AgentError>),
}

/// The tasks on the agent's runtime, by name.
pub(super) struct Tasks {
    running: JoinMap<&'static str, TaskEnd>,
    stoppable: usize,
    started: watch::Sender<Vec<TaskStatus>>,
    clock: Clock,
}

impl Tasks {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            running: JoinMap::new(),
            stoppable: 0,
            started: watch::Sender::default(),
            clock,
        }
    }

    /// Starts a task that runs until it is aborted.
    pub(super) fn spawn_endless(&mut self, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.spawn(name, async move {
            work.await;
            TaskEnd::Endless
        });
    }

    /// Starts a task that ends by itself when the agent stops, and that [`Tasks::stop`] waits for.
    pub(super) fn spawn_stoppable(
        &mut self,
        name: &'static str,
        work: impl Future<Output = Result<(), AgentError>> + Send + 'static,
    ) {
        self.stoppable += 1;
        self.spawn(name, async move { TaskEnd::Stoppable(work.await) });
    }

    fn spawn(&mut self, name: &'static str, work: impl Future<Output = TaskEnd> + Send + 'static) {
        self.running.spawn(name, work);
        self.announce(name);
    }

    /// Adds a task to the list that is owned elsewhere.
    pub(super) fn announce(&self, name: &'static str) {
        let since = self.clock.now().wall;
        self.started
            .send_modify(|started| started.push(TaskStatus { name, since }));
    }

    /// The tasks that were started so far.
    pub(super) fn started(&self) -> watch::Receiver<Vec<TaskStatus>> {
        self.started.subscribe()
    }

    /// Waits for a task to end unexpectedly.
    pub(super) async fn failed(&mut self) -> AgentError {
        let Some((task, ended)) = self.running.join_next().await else {
            return std::future::pending().await;
        };
        if let Ok(TaskEnd::Stoppable(_)) = ended {
            self.stoppable -= 1;
        }
        match ended {
            Ok(TaskEnd::Endless | TaskEnd::Stoppable(Ok(()))) => AgentError::Task {
                task,
                why: "it should not end by itself".to_owned(),
            },
            Ok(TaskEnd::Stoppable(Err(error))) => error,
            Err(error) => join_error(task, &error),
        }
    }

    /// Waits for the stoppable tasks, which have to be stopped before, then aborts the others.
    pub(super) async fn stop(&mut self) -> Result<(), AgentError> {
        let join_stoppable = async {
            while self.stoppable > 0 {
                let Some((task, ended)) = self.running.join_next().await else {
                    break;
                };
                match ended {
                    Ok(TaskEnd::Stoppable(outcome)) => {
                        self.stoppable -= 1;
                        outcome?;
                    }
                    Ok(TaskEnd::Endless) => {}
                    Err(error) => return Err(join_error(task, &error)),
                }
            }
            Ok(())
        };
        let stopped = timeout(STOP_TIMEOUT, join_stoppable).await.unwrap_or_else(|_| {
            tracing::warn!(timeout = ?STOP_TIMEOUT, "tasks aborted that did not stop in time");
            Ok(())
        });
        self.running.shutdown().await;
        stopped
    }
}

fn join_error(task: &'static str, error: &JoinError) -> AgentError {
    AgentError::Task {
        task,
        why: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn task_that_panics_or_returns_is_named() {
        let mut tasks = Tasks::new(Clock::System);
        tasks.spawn_endless("endless", std::future::pending());
        tasks.spawn_endless("panics", async { panic!("boom") });
        let error = tasks.failed().await.to_string();
        assert!(error.contains("panics") && error.contains("boom"), "{error}");
        tasks.spawn_endless("returns", async {});
        assert!(tasks.failed().await.to_string().contains("returns"));
    }

    #[tokio::test(start_paused = true)]
    async fn stop_does_not_wait_for_a_task_that_has_failed() {
        let mut tasks = Tasks::new(Clock::System);
        tasks.spawn_endless("endless", std::future::pending());
        tasks.spawn_stoppable("stoppable", async { Err(AgentError::HealthThread("e".to_owned())) });
        tasks.failed().await;
        let began = tokio::time::Instant::now();
        tasks.stop().await.unwrap();
        assert_eq!(began.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn stop_waits_for_stoppable_tasks_and_aborts_the_others() {
        let mut tasks = Tasks::new(Clock::System);
        let stop = CancellationToken::new();
        tasks.spawn_endless("endless", std::future::pending());
        let stopped = stop.clone();
        tasks.spawn_stoppable("stoppable", async move {
            stopped.cancelled().await;
            Ok(())
        });
        stop.cancel();
        tasks.stop().await.unwrap();
        assert!(tasks.running.is_empty());
    }
}
