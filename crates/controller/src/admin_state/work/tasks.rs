//! The tasks of a term: each named, and ended with it.

use std::collections::HashMap;
use std::future::Future;

use tokio::task::{AbortHandle, Id, JoinSet};

use super::WorkError;

/// The tasks of a term: they end with it.
#[derive(Default)]
pub(super) struct Tasks {
    set: JoinSet<()>,
    names: HashMap<Id, String>,
}

impl Tasks {
    pub(super) fn spawn(&mut self, name: String, work: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        let handle = self.set.spawn(work);
        self.names.insert(handle.id(), name);
        handle
    }

    /// Takes in one that ended; the failure, if it was not told to end.
    fn ended(&mut self, id: Id, why: Option<String>) -> Option<WorkError> {
        let task = self.names.remove(&id).unwrap_or_default();
        why.map(|why| WorkError::Task { task, why })
    }

    /// Waits for one to end that was not told to.
    pub(super) async fn failed(&mut self) -> WorkError {
        loop {
            let failure = match self.set.join_next_with_id().await {
                Some(Ok((id, ()))) => self.ended(id, Some("of itself".to_owned())),
                Some(Err(error)) if error.is_cancelled() => self.ended(error.id(), None),
                Some(Err(error)) => self.ended(error.id(), Some(error.to_string())),
                None => std::future::pending().await,
            };
            if let Some(failure) = failure {
                return failure;
            }
        }
    }
}
