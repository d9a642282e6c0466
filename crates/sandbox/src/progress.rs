//! What the sandbox is doing, line by line on standard error, with the seconds since it began.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Instant;

/// A teller of progress.
#[derive(Debug)]
pub(super) struct Progress {
    began: Instant,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { began: Instant::now() }
    }

    pub(super) fn say(&self, what: impl Display) {
        // On a terminal, over the ^C it may have echoed.
        let start = if io::stderr().is_terminal() { "\r" } else { "" };
        let seconds = self.began.elapsed().as_secs_f32();
        // Nobody may be reading; then there is nobody to tell either.
        let _ = writeln!(io::stderr(), "{start}{seconds:>5.1} s  {what}");
    }
}
