//! How far a drill is: a line for each step on standard error, which may be closed.

use std::fmt::{self, Display, Formatter};
use std::io::{self, Write as _};

use crate::report::name;
use crate::strategy::Strategy;

/// What a drill is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A strategy's world is started.
    Starting(Strategy),
    /// The start of a run.
    Run {
        /// The strategy of the run.
        strategy: Strategy,
        /// Its number, from 1.
        number: usize,
        /// How many there are.
        runs: usize,
    },
}

impl Display for Progress {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting(strategy) => write!(f, "starting for {}", name(strategy)),
            Self::Run { strategy, number, runs } => write!(f, "{}, run {number} of {runs}", name(strategy)),
        }
    }
}

/// Prints a line about the drill.
pub fn print_line(text: &str) {
    let _ = writeln!(io::stderr(), "headgate-lab drill: {}", text.trim_end());
}
