//! Interrupts: Ctrl-C, SIGTERM, and the hangup of the terminal. Each one stops the program.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Handlers of the three signals. While it exists, none of them ends the process by itself.
#[derive(Debug)]
pub struct Interrupts([Signal; 3]);

impl Interrupts {
    /// Installs the handlers.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn listen() -> io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    /// Waits for the next interrupt.
    pub async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
