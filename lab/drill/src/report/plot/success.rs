//! New connections that succeeded over time: a panel for each strategy, all with the same axes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plotters::element::{PathElement, Text};
use plotters::prelude::{AreaSeries, Color, LineSeries, RGBColor};
use plotters::style::text_anchor::HPos;

use super::{
    Area, BLUE, DrawError, INK, Labels, PlotError, SKY, TEXT_SIZE, VERMILION, anchored, draw_panels, faint,
    height_of_panels, mesh, panel_chart, svg,
};
use crate::report::saved::{ScenarioRuns, StrategyRuns};

/// No plot has more points in a panel; seconds are joined until there are fewer.
const MAX_BINS: u32 = 160;
const PANEL_HEIGHT: u32 = 150;

/// The events that are marked, with their names and colours, from the lowest label to the highest.
const MARKS: [(&str, &str, RGBColor); 3] = [
    ("nodeGone", "node gone", INK),
    ("outOfRotation", "out of rotation", BLUE),
    ("signal", "signal", SKY),
];

/// The share of new connections that succeeded in a few seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bin {
    start: f64,
    end: f64,
    /// Over all runs.
    succeeded: f64,
    /// In the run with most failures in these seconds.
    worst: f64,
}

/// The shares over time, from the seconds of all runs. Seconds without connections are left out.
fn bins(strategy: &StrategyRuns<'_>, width: u32) -> Vec<Bin> {
    let mut counts: BTreeMap<u32, (u64, u64, f64)> = BTreeMap::new();
    for run in &strategy.runs {
        let mut own: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for second in &run.per_second {
            let count = own.entry(second.t / width).or_default();
            count.0 += u64::from(second.attempted);
            count.1 += u64::from(second.failed);
        }
        for (index, (attempted, failed)) in own {
            let count = counts.entry(index).or_insert((0, 0, 1.0));
            count.0 += attempted;
            count.1 += failed;
            count.2 = count.2.min(succeeded(attempted, failed));
        }
    }
    let bin = |(index, (attempted, failed, worst))| Bin {
        start: f64::from(index) * f64::from(width),
        end: (f64::from(index) + 1.0) * f64::from(width),
        succeeded: succeeded(attempted, failed),
        worst,
    };
    counts.into_iter().map(bin).collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts of connections are far below 2^52")]
fn succeeded(attempted: u64, failed: u64) -> f64 {
    if attempted == 0 {
        1.0
    } else {
        1.0 - failed as f64 / attempted as f64
    }
}

/// The picture.
///
/// # Errors
/// It cannot be drawn.
pub(in super::super) fn success(id: &str, runs: &ScenarioRuns<'_>) -> Result<String, PlotError> {
    let end = runs.end();
    let width = bin_width(end);
    let labels = Labels {
        id,
        title: format!("New connections that succeeded over time, scenario {}", runs.scenario),
        description: description(runs),
    };
    let heights = vec![PANEL_HEIGHT; runs.strategies.len()];
    svg(&labels, height_of_panels(&heights), |root| {
        draw_panels(root, &heights, |index, panel, is_last| {
            draw_panel(panel, &runs.strategies[index], end, width, is_last)
        })
    })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saved times are from 0 to a million seconds"
)]
fn bin_width(end: f64) -> u32 {
    (end / f64::from(MAX_BINS)).ceil().max(1.0) as u32
}

fn draw_panel(
    panel: &Area<'_>,
    strategy: &StrategyRuns<'_>,
    end: f64,
    width: u32,
    is_last: bool,
) -> Result<(), DrawError> {
    let mut chart = panel_chart(panel, heading(strategy), 60, (end, 1.0), is_last)?;
    let mut mesh = mesh(&mut chart);
    mesh.disable_x_mesh()
        .x_labels(12)
        .y_labels(3)
        .y_label_formatter(&|share: &f64| format!("{:.0} %", share * 100.0));
    if is_last {
        mesh.x_desc("seconds of the scenario");
    }
    mesh.draw()?;
    let bins = bins(strategy, width);
    let steps = |value: fn(&Bin) -> f64| {
        let corners = bins
            .iter()
            .flat_map(move |bin| [(bin.start, value(bin)), (bin.end, value(bin))]);
        corners.map(|(at, share)| (at.min(end), share)).collect::<Vec<_>>()
    };
    if strategy.runs.len() > 1 {
        chart.draw_series(AreaSeries::new(steps(|bin| bin.worst), 1.0, faint(VERMILION, 0.2)))?;
    }
    chart.draw_series(AreaSeries::new(steps(|bin| bin.succeeded), 1.0, faint(VERMILION, 0.5)))?;
    chart.draw_series(LineSeries::new(steps(|bin| bin.succeeded), BLUE.stroke_width(2)))?;
    for (row, (event, label, color)) in (0_u8..).zip(MARKS) {
        let Some(at) = strategy.first.first_event(event) else {
            continue;
        };
        let line = PathElement::new(vec![(at, 0.0), (at, 1.0)], color.stroke_width(2));
        chart.draw_series(std::iter::once(line))?;
        let is_left = at > end * 0.85 || (event == "signal" && at > end * 0.07);
        let (x, side) = if is_left {
            (at - end * 0.005, HPos::Right)
        } else {
            (at + end * 0.005, HPos::Left)
        };
        let label = Text::new(label, (x, 0.12 + 0.2 * f64::from(row)), anchored(TEXT_SIZE, side));
        chart.draw_series(std::iter::once(label))?;
    }
    Ok(())
}

/// The strategy and its figures in a line.
fn heading(strategy: &StrategyRuns<'_>) -> String {
    let (attempted, failed) = strategy.connections();
    let runs = match strategy.runs.len() {
        1 => String::new(),
        runs => format!(" in {runs} runs"),
    };
    let bound = strategy.bound().map(|bound| format!(": {bound}")).unwrap_or_default();
    format!(
        "{}: {failed} of {attempted} new connections failed{runs}{bound}",
        strategy.strategy
    )
}

fn description(runs: &ScenarioRuns<'_>) -> String {
    let mut text = format!(
        "One panel for each strategy over {:.0} seconds of the scenario.",
        runs.end()
    );
    for strategy in &runs.strategies {
        text.push(' ');
        text.push_str(&heading(strategy));
        let first = |name: &str| strategy.first.first_event(name);
        for (event, label, _) in MARKS.iter().rev() {
            if let Some(at) = first(event) {
                // Writing to a String does not fail.
                let _ = write!(text, ", {label} at {at:.1} s");
            }
        }
        text.push('.');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::saved::{group, tests::runs};

    #[test]
    fn bins_have_the_share_of_all_runs_and_of_the_worst() {
        let runs = runs();
        let groups = group(&runs);
        let bins = bins(&groups[0].strategies[0], 1);
        assert_eq!(bins.len(), 40);
        assert!(bins[..10].iter().all(|bin| bin.succeeded > 0.999 && bin.worst > 0.999));
        // Of two runs with 10 connections each, numbers 102 and 108 fail in both.
        assert!((bins[10].succeeded - 0.8).abs() < 1e-9, "{:?}", bins[10]);
        // From second 16 on only the first run has failures.
        assert!((bins[18].succeeded - 0.9).abs() < 1e-9 && (bins[18].worst - 0.8).abs() < 1e-9);
        assert_eq!((bins[18].start, bins[18].end), (18.0, 19.0));
    }

    #[test]
    fn seconds_are_joined_in_a_long_scenario() {
        assert_eq!(bin_width(40.0), 1);
        assert_eq!(bin_width(320.0), 2);
        assert_eq!(bin_width(1e6), 6250);
    }
}
