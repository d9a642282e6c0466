//! Ctrl-C, SIGTERM, and the terminal going away: all ask to stop.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals listened for; from now on none of them ends the process by itself.
#[derive(Debug)]
pub struct Interrupts([Signal; 3]);

impl Interrupts {
    /// Listens for them.
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen() -> io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
