//! The signals that end a command.

use std::io;

use anyhow::Context as _;
use futures::future::select_all;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM, SIGINT, and perhaps others.
pub(super) struct Termination(Vec<Signal>);

impl Termination {
    /// Listens for them from now on.
    pub(super) fn new(others: &[SignalKind]) -> anyhow::Result<Self> {
        let kinds = [SignalKind::terminate(), SignalKind::interrupt()];
        let signals = kinds.iter().chain(others).map(|kind| signal(*kind));
        let signals: io::Result<_> = signals.collect();
        signals.map(Self).context("listening for signals")
    }

    /// The next one.
    pub(super) async fn received(&mut self) {
        select_all(self.0.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
    }
}

/// Ends with Ctrl-C.
pub(super) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
