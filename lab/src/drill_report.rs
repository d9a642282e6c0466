//! `headgate-lab drill-report`: saved results of drills to a page or picture; and the files that `headgate-lab drill` itself writes.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use headgate::cli::Failure;
use headgate_drill::report::comparison::comparison;
use headgate_drill::report::page::{page, picture, propagation_picture};
use headgate_drill::report::saved::{SavedRun, parse};

/// Make a page or a picture of drills that were run before
///
/// Reads what `headgate-lab drill -o json` printed, of one drill or of several, and draws it again without running anything.
/// The page contains everything that it shows: it needs no network and runs no script.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Files with the output of `headgate-lab drill -o json`
    #[arg(required = true, value_name = "RESULTS")]
    results: Vec<PathBuf>,

    #[command(flatten)]
    outputs: Outputs,
}

/// The files to write.
#[derive(Debug, Args)]
pub(super) struct Outputs {
    /// Write an HTML page to this file: figures, plots, events, and what they assume
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the plot of new connections to this file, as an SVG picture; of several scenarios the first
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Write the plot of new connections that failed over the time until an admin state takes effect to this file, as an SVG
    /// picture, from results with several such times; of several scenarios the first
    #[arg(long, value_name = "FILE")]
    propagation_svg: Option<PathBuf>,

    /// Write a table of Markdown to this file: a row for each kind of conditions, a column for each strategy
    #[arg(long, value_name = "FILE")]
    comparison: Option<PathBuf>,
}

impl Outputs {
    pub(super) const fn are_none(&self) -> bool {
        self.html.is_none() && self.svg.is_none() && self.propagation_svg.is_none() && self.comparison.is_none()
    }

    /// Writes them.
    pub(super) fn write(&self, runs: &[SavedRun]) -> Result<(), Failure> {
        if let Some(path) = &self.html {
            write(path, &page(runs).map_err(Failure::runtime)?)?;
        }
        if let (Some(path), Some(picture)) = (&self.svg, picture(runs).map_err(Failure::runtime)?) {
            write(path, &picture)?;
        }
        if let (Some(path), Some(picture)) = (
            &self.propagation_svg,
            propagation_picture(runs).map_err(Failure::runtime)?,
        ) {
            write(path, &picture)?;
        }
        if let Some(path) = &self.comparison {
            write(path, &comparison(runs).map_err(Failure::runtime)?)?;
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let written = std::fs::write(path, text);
    written
        .with_context(|| format!("cannot write {}", path.display()))
        .map_err(Failure::runtime)
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.outputs.are_none() {
        return Err(Failure::settings(anyhow::anyhow!(
            "there is nothing to write; give --html, --svg, --propagation-svg or --comparison FILE"
        )));
    }
    let mut runs = Vec::new();
    for path in &arguments.results {
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
        let parsed = parse(&text.map_err(Failure::settings)?);
        let parsed = parsed.with_context(|| format!("cannot use {}", path.display()));
        runs.extend(parsed.map_err(Failure::settings)?);
    }
    arguments.outputs.write(&runs)
}
