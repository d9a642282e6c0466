//! Runs of stories with faults: one without counts the points of a story, then each run disturbs one of them, or two.
//!
//! A story is a future in paused time that ends when its end state is reached and panics if an invariant is broken or it does not get
//! there. Every run has the same random numbers, as far as they come from `fastrand`; what `select!` picks among branches that are ready
//! at once differs, so a point of a run may not be reached in another one, which is then tried again. Few are not reached at last, and are
//! counted as such.
//!
//! - `HEADGATE_FAULT_POINTS=all` runs every point, a number that many of each story and pattern; the default is a sample.
//! - `HEADGATE_FAULT_STORIES=restore` leaves out the stories without this in their names, `HEADGATE_FAULT_PATTERN='older version'` the other
//!   patterns.
//! - `HEADGATE_FAULT_PAIRS=2000` runs so many pairs of points of each story that has them, or all if there are no more; of the points of
//!   one pattern where it is given.
//! - `HEADGATE_FAULT_SEED=17` repeats a sample; without it the seed is new and printed.
//! - `HEADGATE_FAULT_POINT='drain and return: crash after 17'` runs one point, or with a comma a pair, and fails if it is not reached: with
//!   `cargo test -p` of the package that has the story.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use futures::future::LocalBoxFuture;

use crate::fault_points::{FaultPoint, FaultPoints, Pattern};
use crate::random::{Random, in_paused_time, number_from, seed_from, test_command};

/// Points of each story and pattern in a sample.
const DEFAULT_SAMPLE: usize = 1;
/// Pairs of each story that has them in a sample.
const DEFAULT_PAIRS: usize = 1;
/// How often a run is tried that does not reach its points.
const TRIES: usize = 3;
/// From one line about the progress of many runs to the next.
const REPORT_INTERVAL: Duration = Duration::from_secs(30);

/// What is run with faults.
#[derive(Clone, Copy)]
pub struct Story {
    /// Its name in the table.
    pub name: &'static str,
    /// A run whose processes are disturbed at these points.
    pub run: fn(FaultPoints) -> LocalBoxFuture<'static, ()>,
    /// Whether it is short enough for pairs of points.
    pub has_pairs: bool,
}

/// One run: the place of its story, and its faults.
type Run = (usize, Vec<FaultPoint>);

/// A run that failed: what it was, what it disturbed, and the panic.
#[derive(Debug)]
pub struct Failure {
    /// The value of `HEADGATE_FAULT_POINT` that repeats it.
    pub point: String,
    /// The requests and events that were disturbed.
    pub disturbed: Vec<String>,
    /// The message of the panic.
    pub message: String,
}

/// The results of one pattern, or of pairs, of a story.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    points: usize,
    runs: usize,
    unreached: usize,
    failures: usize,
}

impl Row {
    fn cell(&self) -> String {
        let mut text = self.points.to_string();
        if self.runs != self.points {
            text = format!("{} of {text}", self.runs);
        }
        if self.failures > 0 {
            let _ = write!(text, ", {} failed", self.failures);
        }
        text
    }
}

enum Outcome {
    Passed,
    /// It passed, and had fewer points than the run that counted them.
    Unreached,
    Failed(Failure),
}

/// Runs the points that the environment asks for, prints a table of story and pattern, and fails if a run did.
pub fn run_fault_points(stories: &[Story]) {
    let failures = if let Some(text) = variable("HEADGATE_FAULT_POINT") {
        let outcomes = run_all(stories, &[parse_run(stories, &text)]);
        let is_unreached = outcomes
            .iter()
            .any(|(_, outcome)| matches!(outcome, Outcome::Unreached));
        assert!(
            !is_unreached,
            "HEADGATE_FAULT_POINT: {TRIES} runs did not reach {text:?}"
        );
        outcomes
    } else {
        run_selection(stories)
    };
    let failures: Vec<_> = failures
        .into_iter()
        .filter_map(|(_, outcome)| failure(outcome))
        .collect();
    assert!(
        failures.is_empty(),
        "{} runs failed:\n{}",
        failures.len(),
        describe(&failures)
    );
}

/// A run of the story that one point of this pattern makes fail, if there is one; only points that are `about` this count.
pub fn find_failure(story: Story, pattern: Pattern, about: &str) -> Option<Failure> {
    let reached = count(story).remove(&pattern).unwrap_or_default();
    let points = (0..reached.len()).filter(|index| reached[*index].contains(about));
    let mut runs = points.map(|index| run_one(&[story], &(0, vec![FaultPoint { pattern, index }])));
    runs.find_map(failure)
}

fn failure(outcome: Outcome) -> Option<Failure> {
    match outcome {
        Outcome::Failed(failure) => Some(failure),
        Outcome::Passed | Outcome::Unreached => None,
    }
}

fn describe(failures: &[Failure]) -> String {
    let mut text = String::new();
    for Failure {
        point,
        disturbed,
        message,
    } in failures
    {
        let command = test_command();
        let _ = writeln!(
            text,
            "HEADGATE_FAULT_POINT='{point}' {command} repeats it; disturbed: {disturbed:?}\n  {message:.600}"
        );
    }
    text
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// The points of a story's undisturbed run.
fn count(story: Story) -> BTreeMap<Pattern, Vec<String>> {
    let points = FaultPoints::default();
    play(story, &points);
    points.reached()
}

fn play(story: Story, points: &FaultPoints) {
    fastrand::seed(1);
    in_paused_time((story.run)(points.clone()));
}

fn all_points(reached: &BTreeMap<Pattern, Vec<String>>, pattern: Pattern) -> impl Iterator<Item = FaultPoint> + use<> {
    let end = reached.get(&pattern).map_or(0, Vec::len);
    (0..end).map(move |index| FaultPoint { pattern, index })
}

/// As many as are asked for, in no order.
fn sample<T>(random: &mut Random, mut all: Vec<T>, size: usize) -> Vec<T> {
    let mut chosen = Vec::new();
    while chosen.len() < size && !all.is_empty() {
        let place = random.below(all.len() as u64);
        chosen.push(all.swap_remove(usize::try_from(place).unwrap()));
    }
    chosen
}

fn run_selection(stories: &[Story]) -> Vec<(Run, Outcome)> {
    let seed = seed_from("HEADGATE_FAULT_SEED", "this sample of fault points");
    let size = match variable("HEADGATE_FAULT_POINTS").as_deref() {
        Some("all") => usize::MAX,
        None => DEFAULT_SAMPLE,
        Some(_) => number_from("HEADGATE_FAULT_POINTS").map_or(DEFAULT_SAMPLE, |size| usize::try_from(size).unwrap()),
    };
    let pairs = number_from("HEADGATE_FAULT_PAIRS").map_or(DEFAULT_PAIRS, |pairs| usize::try_from(pairs).unwrap());
    let (mut random, mut runs) = (Random::new(seed), Vec::<Run>::new());
    let mut rows = BTreeMap::<(usize, Option<Pattern>), Row>::new();
    let (only_stories, only_pattern) = (
        variable("HEADGATE_FAULT_STORIES").unwrap_or_default(),
        variable("HEADGATE_FAULT_PATTERN"),
    );
    if let Some(only) = &only_pattern {
        let allowed = Pattern::ALL.map(|pattern| pattern.to_string());
        assert!(
            allowed.contains(only),
            "HEADGATE_FAULT_PATTERN: {only:?} is no pattern; allowed: {allowed:?}"
        );
    }
    let is_selected = |pattern: &Pattern| only_pattern.as_ref().is_none_or(|only| *only == pattern.to_string());
    for (number, story) in stories.iter().enumerate() {
        if !story.name.contains(&only_stories) {
            continue;
        }
        let reached = count(*story);
        for pattern in Pattern::ALL.into_iter().filter(is_selected) {
            let points: Vec<_> = all_points(&reached, pattern).collect();
            rows.entry((number, Some(pattern))).or_default().points = points.len();
            let chosen = sample(&mut random, points, size).into_iter();
            runs.extend(chosen.map(|point| (number, vec![point])));
        }
        if story.has_pairs {
            let selected = Pattern::ALL.into_iter().filter(is_selected);
            let every: Vec<_> = selected.flat_map(|pattern| all_points(&reached, pattern)).collect();
            let all_pairs: Vec<_> = every
                .iter()
                .enumerate()
                .flat_map(|(place, one)| every[place + 1..].iter().map(|other| vec![*one, *other]))
                .collect();
            rows.entry((number, None)).or_default().points = all_pairs.len();
            let chosen = sample(&mut random, all_pairs, pairs).into_iter();
            runs.extend(chosen.map(|pair| (number, pair)));
        }
    }
    let outcomes = run_all(stories, &runs);
    let is_unreached = |(_, outcome): &(_, Outcome)| matches!(outcome, Outcome::Unreached);
    // The stories that are chosen may be another package's.
    let may_be_empty = !stories.iter().any(|story| story.name.contains(&only_stories));
    assert!(
        may_be_empty || !outcomes.iter().all(is_unreached),
        "{} runs, and none reached its points",
        outcomes.len()
    );
    for ((number, faults), outcome) in &outcomes {
        let pattern = match faults[..] {
            [point] => Some(point.pattern),
            _ => None,
        };
        let row = rows.entry((*number, pattern)).or_default();
        row.runs += 1;
        row.unreached += usize::from(matches!(outcome, Outcome::Unreached));
        row.failures += usize::from(matches!(outcome, Outcome::Failed(_)));
    }
    report(&table(stories, &rows));
    outcomes
}

/// A row for each story, and a column for each pattern: its points, how many of them were run if not all, and how many failed.
fn table(stories: &[Story], rows: &BTreeMap<(usize, Option<Pattern>), Row>) -> String {
    let patterns = || Pattern::ALL.map(Some).into_iter().chain([None]);
    let name = |pattern: Option<Pattern>| pattern.map_or("pairs".to_owned(), |pattern| pattern.to_string());
    let titles: Vec<_> = patterns().map(name).collect();
    let mut text = format!(
        "| story | {} |\n|---|{}\n",
        titles.join(" | "),
        "---|".repeat(titles.len())
    );
    for (number, story) in stories.iter().enumerate() {
        if rows.keys().all(|(listed, _)| *listed != number) {
            continue;
        }
        let cells = patterns().map(|pattern| rows.get(&(number, pattern)).map(Row::cell).unwrap_or_default());
        let _ = writeln!(text, "| {} | {} |", story.name, cells.collect::<Vec<_>>().join(" | "));
    }
    let sum = |count: fn(&Row) -> usize| rows.values().map(count).sum::<usize>();
    let (runs, failures, unreached) = (sum(|row| row.runs), sum(|row| row.failures), sum(|row| row.unreached));
    let _ = writeln!(
        text,
        "{runs} runs: {failures} failed, and {unreached} did not reach their points"
    );
    text
}

/// To stderr itself, because the harness captures what is printed.
fn report(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Runs all of these, on all cores.
fn run_all(stories: &[Story], runs: &[Run]) -> Vec<(Run, Outcome)> {
    let (next, outcomes, start) = (AtomicUsize::new(0), Mutex::new(Vec::new()), std::time::Instant::now());
    let reported = Mutex::new(start);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = run_one(stories, run);
                    let done = {
                        let mut outcomes = outcomes.lock().unwrap();
                        outcomes.push((run.clone(), outcome));
                        outcomes.len()
                    };
                    let mut reported = reported.lock().unwrap();
                    if reported.elapsed() > REPORT_INTERVAL {
                        *reported = std::time::Instant::now();
                        report(&format!(
                            "{done} of {} runs done in {:.0?}",
                            runs.len(),
                            start.elapsed()
                        ));
                    }
                }
            });
        }
    });
    outcomes.into_inner().unwrap()
}

fn run_one(stories: &[Story], run: &Run) -> Outcome {
    let mut outcomes = (0..TRIES).map(|_| try_one(stories, run));
    let is_decided = |outcome: &Outcome| !matches!(outcome, Outcome::Unreached);
    outcomes.find(is_decided).unwrap_or(Outcome::Unreached)
}

fn try_one(stories: &[Story], (number, faults): &Run) -> Outcome {
    let story = stories[*number];
    let points = FaultPoints::with(faults.clone());
    match catch_unwind(AssertUnwindSafe(|| play(story, &points))) {
        Ok(()) if points.hits().len() < faults.len() => Outcome::Unreached,
        Ok(()) => Outcome::Passed,
        Err(panic) => {
            let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
            Outcome::Failed(Failure {
                point: format!("{}: {}", story.name, faults.join(", ")),
                disturbed: points.hits(),
                message: message(panic.as_ref()),
            })
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}

/// The run of a point such as `drain and return: crash after 17`.
fn parse_run(stories: &[Story], text: &str) -> Run {
    let (name, faults) = text.split_once(": ").unwrap_or((text, ""));
    let number = stories.iter().position(|story| story.name == name).unwrap_or_else(|| {
        let allowed: Vec<_> = stories.iter().map(|story| story.name).collect();
        panic!("HEADGATE_FAULT_POINT: {name:?} is no story of this package; allowed: {allowed:?}")
    });
    let point = |text: &str| {
        let (name, index) = text.rsplit_once(' ')?;
        let pattern = Pattern::ALL.into_iter().find(|pattern| pattern.to_string() == name)?;
        Some(FaultPoint {
            pattern,
            index: index.parse().ok()?,
        })
    };
    let faults = faults
        .split(", ")
        .map(|text| point(text).unwrap_or_else(|| panic!("HEADGATE_FAULT_POINT: {text:?} is no point")));
    (number, faults.collect())
}
