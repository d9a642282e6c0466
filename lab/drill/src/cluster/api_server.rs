//! The control plane's processes, and an API server that comes back while a run goes on.
//!
//! Its invariant: a step of a timeline never waits for an API server that starts, which takes seconds at any speed.

use std::task::Poll;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use headgate_sandbox::control_plane::{ControlPlane as Processes, ControlPlaneError};

use super::ClusterError;

/// etcd and the API server; one of the two fields has them.
pub(super) struct ApiServer {
    processes: Option<Processes>,
    starting: Option<LocalBoxFuture<'static, (Processes, Result<(), ControlPlaneError>)>>,
}

impl ApiServer {
    /// Of these processes.
    pub(super) fn new(processes: Processes) -> Self {
        Self {
            processes: Some(processes),
            starting: None,
        }
    }

    /// Ends it at once.
    ///
    /// # Errors
    /// It was started before, and did not get ready.
    pub(super) async fn kill(&mut self) -> Result<(), ClusterError> {
        self.wait().await?;
        if let Some(processes) = &mut self.processes {
            processes.kill_apiserver().await;
        }
        Ok(())
    }

    /// Starts it, if it does not run, and does not wait until it is ready.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) async fn start(&mut self) -> Result<(), ClusterError> {
        let Some(mut processes) = self.processes.take() else {
            return Ok(());
        };
        let mut starting = async move {
            let started = processes.start_apiserver().await;
            (processes, started)
        }
        .boxed_local();
        // The first poll starts the process. The others, in `wait`, see that it is ready.
        match futures::poll!(&mut starting) {
            Poll::Ready((processes, started)) => {
                self.processes = Some(processes);
                Ok(started?)
            }
            Poll::Pending => {
                self.starting = Some(starting);
                Ok(())
            }
        }
    }

    /// Waits until one that was started is ready.
    ///
    /// # Errors
    /// It did not get ready within a minute.
    pub(super) async fn wait(&mut self) -> Result<(), ClusterError> {
        let Some(starting) = &mut self.starting else {
            return Ok(());
        };
        let (processes, started) = starting.await;
        self.starting = None;
        self.processes = Some(processes);
        Ok(started?)
    }
}
