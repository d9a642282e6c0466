//! How far a drill is: a bar on a terminal, a line for each step elsewhere. Both go to standard error, which may be closed.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::report::name;
use crate::strategy::Strategy;

/// Between two updates of the bar.
pub const UPDATE_INTERVAL: Duration = Duration::from_millis(200);
/// The bar, the share that is done, the step, and the time that runs will take. It fits into 80 columns.
const TEMPLATE: &str = "{bar:30} {percent:>3} %  {msg}  ({prefix} left)";

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
        /// How long its clients will connect, really.
        length: Duration,
    },
}

impl Progress {
    fn text(self) -> String {
        match self {
            Self::Starting(strategy) => format!("starting for {}", name(&strategy)),
            Self::Run {
                strategy, number, runs, ..
            } => format!("{}, run {number} of {runs}", name(&strategy)),
        }
    }
}

/// Shows progress.
#[derive(Debug)]
pub struct ProgressDisplay {
    /// None where standard error is no terminal.
    bar: Option<ProgressBar>,
    /// The real time of all runs.
    total: Duration,
    /// The real time of the runs that have ended.
    done: Duration,
    /// When the present run started, and how long it takes.
    run: Option<(Instant, Duration)>,
}

impl ProgressDisplay {
    /// For a drill whose runs take this long together, really.
    pub fn new(total: Duration) -> Self {
        let bar = io::stderr().is_terminal().then(|| ProgressBar::new(millis(total)));
        Self::with(bar, total)
    }

    fn with(bar: Option<ProgressBar>, total: Duration) -> Self {
        if let (Some(bar), Ok(style)) = (&bar, ProgressStyle::with_template(TEMPLATE)) {
            bar.set_style(style);
            bar.set_prefix(clock(total));
            bar.set_message("starting");
        }
        Self {
            bar,
            total,
            done: Duration::ZERO,
            run: None,
        }
    }

    /// The drill begins a step.
    pub fn show(&mut self, progress: Progress, now: Instant) {
        // What is between two runs takes no time of the bar.
        if let Some((_, length)) = self.run.take() {
            self.done += length;
        }
        if let Progress::Run { length, .. } = progress {
            self.run = Some((now, length));
        }
        if let Some(bar) = &self.bar {
            self.update(now);
            bar.set_message(progress.text());
        } else {
            print_line(&progress.text());
        }
    }

    /// Moves the bar on.
    pub fn update(&self, now: Instant) {
        if let Some(bar) = &self.bar {
            let of_run = self.run.map_or(Duration::ZERO, |(start, length)| {
                now.saturating_duration_since(start).min(length)
            });
            let done = self.done + of_run;
            bar.set_position(millis(done));
            // The lengths of runs are known: no estimate from what went before.
            bar.set_prefix(clock(self.total.saturating_sub(done)));
        }
    }

    /// Prints a line that stays.
    pub fn print(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| print_line(text)),
            None => print_line(text),
        }
    }
}

impl Drop for ProgressDisplay {
    /// Leaves nothing of the bar on the terminal.
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn print_line(text: &str) {
    let _ = writeln!(io::stderr(), "headgate-lab drill: {}", text.trim_end());
}

/// Minutes and seconds, rounded up.
fn clock(time: Duration) -> String {
    let seconds = time.as_millis().div_ceil(1000);
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use indicatif::{InMemoryTerm, ProgressDrawTarget};

    use super::*;

    #[test]
    fn the_bar_moves_with_the_runs_and_leaves_nothing_behind() {
        let terminal = InMemoryTerm::new(10, 100);
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let bar = ProgressBar::with_draw_target(Some(20_000), target);
        let mut display = ProgressDisplay::with(Some(bar.clone()), Duration::from_secs(20));
        let start = Instant::now();
        let run = |number| Progress::Run {
            strategy: Strategy::AdminState,
            number,
            runs: 2,
            length: Duration::from_secs(10),
        };
        display.show(Progress::Starting(Strategy::AdminState), start);
        assert_eq!(bar.position(), 0);
        display.show(run(1), start);
        display.update(start + Duration::from_secs(5));
        assert_eq!(bar.position(), 5_000);
        assert!(
            terminal
                .contents()
                .contains("25 %  admin-state, run 1 of 2  (0:15 left)"),
            "{}",
            terminal.contents()
        );
        display.update(start + Duration::from_mins(1));
        assert_eq!(bar.position(), 10_000, "a run that takes longer does not run ahead");
        display.show(run(2), start + Duration::from_mins(1));
        assert_eq!(bar.position(), 10_000);
        assert_eq!(clock(Duration::from_millis(125_001)), "2:06");
        drop(display);
        assert!(!terminal.contents().contains("admin-state"), "{}", terminal.contents());
    }
}
