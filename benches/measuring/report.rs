//! Results against their budgets: a table, and a JSON file for each row.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::{Map, Value};

use super::conditions::conditions;
use super::cores::load_average;
use super::figures::rounded;
use super::output::say;

/// The bound of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Budget {
    /// At most this value.
    Most(f64),
    /// At most this share of the peer's figure.
    ShareAtMost(f64),
    /// At least this share of the peer's figure.
    ShareAtLeast(f64),
    /// At most the peer's figure; a difference up to this value is noise.
    PeerWithin(f64),
    /// No bound; the figure is only shown.
    None,
}

/// One figure, its peer's, and its budget.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    /// The name of the figure.
    pub(crate) figure: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    /// The peer's figure, in the same unit.
    pub(crate) peer: Option<f64>,
    /// The peer's name.
    pub(crate) peer_name: Option<&'static str>,
    /// The ratio of the figure to the peer's; the median of the ratios of several rounds.
    pub(crate) ratio: Option<f64>,
    /// The budget in words, if there is one.
    pub(crate) budget: Option<String>,
    /// Whether the figure is within its budget.
    pub(crate) pass: Option<bool>,
}

/// A figure compared with that of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerComparison {
    pub(crate) peer_name: &'static str,
    pub(crate) peer: f64,
    pub(crate) ratio: f64,
}

impl PeerComparison {
    /// Compares one figure with one of a peer.
    pub(crate) fn one(peer_name: &'static str, value: f64, peer: f64) -> Self {
        Self {
            peer_name,
            peer,
            ratio: value / peer,
        }
    }
}

impl Check {
    /// Compares a figure with its budget.
    pub(crate) fn new(
        figure: impl Into<String>,
        value: f64,
        unit: &'static str,
        beside: Option<PeerComparison>,
        budget: Budget,
    ) -> Self {
        let ratio = beside.map(|beside| beside.ratio);
        let peer_name = beside.map(|beside| beside.peer_name);
        let who = peer_name.unwrap_or("?");
        let held = match budget {
            Budget::None => None,
            Budget::Most(most) => Some((format!("≤ {most} {unit}"), value <= most)),
            Budget::ShareAtMost(most) => {
                Some((format!("≤ {most:.2} × {who}"), ratio.is_some_and(|ratio| ratio <= most)))
            }
            Budget::ShareAtLeast(least) => Some((
                format!("≥ {least:.2} × {who}"),
                ratio.is_some_and(|ratio| ratio >= least),
            )),
            Budget::PeerWithin(error) => {
                let pass = beside.is_some_and(|beside| value <= beside.peer + error);
                Some((format!("≤ {who} (± {error:.2} {unit})"), pass))
            }
        };
        let (budget, pass) = held.unzip();
        Self {
            figure: figure.into(),
            value: rounded(value),
            unit,
            peer: beside.map(|beside| rounded(beside.peer)),
            peer_name,
            ratio: ratio.map(rounded),
            budget,
            pass,
        }
    }
}

/// The result of a row: its figures with budgets, the row's own first, and all other figures.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) checks: Vec<Check>,
    pub(crate) raw: Value,
}

/// The results of the rows so far.
pub(crate) struct Report {
    directory: PathBuf,
    conditions: Map<String, Value>,
    table: Table,
    kept: usize,
    missed: usize,
    failed: Vec<&'static str>,
}

impl Report {
    /// A report into a directory of the commit in `directory`.
    pub(crate) fn new(precedence: bool, directory: &Path) -> anyhow::Result<Self> {
        let mut conditions = conditions();
        conditions.insert("precedence".to_owned(), precedence.into());
        let directory = directory.join(conditions["commit"].as_str().unwrap_or("not-stated"));
        fs::create_dir_all(&directory).with_context(|| format!("{} cannot be made", directory.display()))?;
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(["benchmark", "figure", "headgate", "peer", "ratio", "budget", "within"]);
        Ok(Self {
            directory,
            conditions,
            table,
            kept: 0,
            missed: 0,
            failed: Vec::new(),
        })
    }

    /// Adds a row and writes its file.
    pub(crate) fn add(&mut self, name: &'static str, measured: anyhow::Result<Row>) -> anyhow::Result<()> {
        let row = match measured {
            Ok(row) => row,
            Err(error) => {
                say(&format!("{name} could not be measured: {error:#}"));
                self.table
                    .add_row([name, "could not be measured", "", "", "", "", "no"]);
                self.failed.push(name);
                return Ok(());
            }
        };
        for (index, check) in row.checks.iter().enumerate() {
            match check.pass {
                Some(true) => self.kept += 1,
                Some(false) => self.missed += 1,
                None => {}
            }
            let peer = check.peer.zip(check.peer_name);
            self.table.add_row([
                if index == 0 { name.to_owned() } else { String::new() },
                check.figure.clone(),
                format!("{} {}", shown(check.value), check.unit),
                peer.map_or_else(String::new, |(peer, who)| {
                    format!("{} {} ({who})", shown(peer), check.unit)
                }),
                check.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                check.budget.clone().unwrap_or_default(),
                check.pass.map_or("", |pass| if pass { "yes" } else { "NO" }).to_owned(),
            ]);
        }
        let mut file = Map::new();
        if let Some(Value::Object(first)) = row.checks.first().map(serde_json::to_value).transpose()? {
            file.extend(first);
        }
        file.insert("name".to_owned(), name.into());
        file.insert(
            "pass".to_owned(),
            row.checks.iter().all(|check| check.pass != Some(false)).into(),
        );
        file.insert("checks".to_owned(), serde_json::to_value(&row.checks)?);
        file.insert("raw".to_owned(), row.raw);
        self.conditions.insert("loadAverage".to_owned(), load_average().into());
        file.insert("conditions".to_owned(), self.conditions.clone().into());
        // Each run keeps its file: `benches/table.py` puts them together.
        let mut free = (1..).map(|run: u32| self.directory.join(format!("{name}-{run}.json")));
        let path = free.find(|path| !path.exists()).context("a free name")?;
        fs::write(&path, serde_json::to_string_pretty(&file)? + "\n")
            .with_context(|| format!("{} cannot be written", path.display()))
    }

    /// Prints the table; returns whether every budget was kept.
    ///
    /// # Errors
    /// When a row could not be measured.
    pub(crate) fn finish(self) -> anyhow::Result<bool> {
        say(&self.table.to_string());
        let (kept, all) = (self.kept, self.kept + self.missed);
        let budgets = if all == 0 {
            String::new()
        } else {
            format!("{kept} of {all} budgets kept; ")
        };
        say(&format!(
            "{budgets}{} cores, load average {}; figures in {}",
            self.conditions.get("cores").unwrap_or(&Value::Null),
            load_average(),
            self.directory.display()
        ));
        if !self.failed.is_empty() {
            anyhow::bail!("could not be measured: {}", self.failed.join(", "));
        }
        Ok(self.missed == 0)
    }
}

/// A figure with three or four significant digits.
fn shown(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
