//! What the sandbox is doing, line by line on standard error, with the seconds since it began.

use std::fmt::Display;
use std::io::{self, Write as _};
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
        // Nobody may be reading; then there is nobody to tell either.
        let _ = writeln!(io::stderr(), "{:>5.1} s  {what}", self.began.elapsed().as_secs_f32());
    }
}
