//! What happened when: a lane for each kind of event, below each other for each strategy.

use std::fmt::Write as _;

use plotters::element::{Circle, Cross, PathElement, Text};
use plotters::prelude::{Color, RGBColor};
use plotters::style::text_anchor::HPos;

use super::{
    AXIS_HEIGHT, Area, BLUE, DrawError, GRID, INK, Labels, PANEL_HEADING_HEIGHT, PlotError, SKY, TEXT_SIZE, VERMILION,
    anchored, draw_panels, faint, height_of_panels, mesh, panel_chart, svg,
};
use crate::report::saved::{SavedRun, ScenarioRuns, StrategyRuns};

const LANE_HEIGHT: u32 = 20;
const LABEL_WIDTH: u32 = 210;

/// The known events, in the order of their lanes, with their names and colours.
const LANES: [(&str, &str, RGBColor); 11] = [
    ("signal", "signal", INK),
    ("healthz503", "health answer not 200", BLUE),
    ("putAccepted", "admin state accepted", BLUE),
    ("downShown", "admin state shown", BLUE),
    ("probeFailed", "first probe failed", SKY),
    ("probeDown", "probes failed", SKY),
    ("outOfRotation", "out of rotation", SKY),
    ("podTerminating", "Pod terminating", BLUE),
    ("podEnded", "Pod ended", INK),
    ("podReady", "next Pod ready", BLUE),
    ("nodeGone", "node gone", INK),
];
/// The lane of long-lived connections, which are no events of a node.
const LOST: &str = "connection lost";

/// One kind of event.
struct Lane<'a> {
    /// Its name in results; none for lost connections.
    event: Option<&'a str>,
    label: &'a str,
    color: RGBColor,
}

impl Lane<'_> {
    fn times(&self, run: &SavedRun) -> Vec<f64> {
        match self.event {
            None => run.established_lost_at.clone(),
            Some(name) => {
                let events = run.timeline.iter().filter(|event| event.event == name);
                events.map(|event| event.t).collect()
            }
        }
    }
}

/// The lanes that a strategy needs: known events in order, those of other versions, then lost connections.
fn lanes<'a>(strategy: &StrategyRuns<'a>) -> Vec<Lane<'a>> {
    let names = || {
        let events = strategy.runs.iter().flat_map(|run| &run.timeline);
        events.map(|event| event.event.as_str())
    };
    let known = LANES
        .into_iter()
        .filter(|(event, ..)| names().any(|name| name == *event));
    let mut lanes: Vec<Lane<'a>> = known
        .map(|(event, label, color)| Lane {
            event: Some(event),
            label,
            color,
        })
        .collect();
    for name in names() {
        if lanes.iter().all(|lane| lane.event != Some(name)) {
            lanes.push(Lane {
                event: Some(name),
                label: name,
                color: INK,
            });
        }
    }
    if strategy.runs.iter().any(|run| !run.established_lost_at.is_empty()) {
        lanes.push(Lane {
            event: None,
            label: LOST,
            color: VERMILION,
        });
    }
    lanes
}

/// The picture.
///
/// # Errors
/// It cannot be drawn.
pub(in super::super) fn timeline(id: &str, runs: &ScenarioRuns<'_>) -> Result<String, PlotError> {
    let end = runs.end();
    let labels = Labels {
        id,
        title: format!("What happened when, scenario {}", runs.scenario),
        description: description(runs),
    };
    let lanes: Vec<_> = runs.strategies.iter().map(lanes).collect();
    let heights: Vec<_> = lanes.iter().map(|lanes| panel_height(lanes.len())).collect();
    svg(&labels, height_of_panels(&heights), |root| {
        draw_panels(root, &heights, |index, panel, is_last| {
            draw_panel(panel, &runs.strategies[index], &lanes[index], end, is_last)
        })
    })
}

fn panel_height(lanes: usize) -> u32 {
    let lanes = u32::try_from(lanes.max(1)).unwrap_or(u32::MAX);
    lanes.saturating_mul(LANE_HEIGHT) + PANEL_HEADING_HEIGHT + AXIS_HEIGHT
}

fn draw_panel(
    panel: &Area<'_>,
    strategy: &StrategyRuns<'_>,
    lanes: &[Lane<'_>],
    end: f64,
    is_last: bool,
) -> Result<(), DrawError> {
    let count = u32::try_from(lanes.len().max(1)).unwrap_or(u32::MAX);
    let heading = strategy.strategy.to_owned();
    let mut chart = panel_chart(panel, heading, LABEL_WIDTH, (end, f64::from(count)), is_last)?;
    let mut mesh = mesh(&mut chart);
    mesh.disable_y_mesh().disable_y_axis().x_labels(12);
    if is_last {
        mesh.x_desc("seconds of the scenario");
    }
    mesh.draw()?;
    for (row, lane) in (0_u32..).zip(lanes) {
        let height = f64::from(count - row) - 0.5;
        let label_at = PANEL_HEADING_HEIGHT + LANE_HEIGHT * row + LANE_HEIGHT / 2;
        let label_at = (
            i32::try_from(LABEL_WIDTH - 12).unwrap_or(i32::MAX),
            i32::try_from(label_at).unwrap_or(i32::MAX),
        );
        panel.draw(&Text::new(
            lane.label.to_owned(),
            label_at,
            anchored(TEXT_SIZE, HPos::Right),
        ))?;
        let guide = PathElement::new(vec![(0.0, height), (end, height)], GRID.stroke_width(1));
        chart.draw_series(std::iter::once(guide))?;
        for (index, run) in strategy.runs.iter().enumerate() {
            let opacity = if index == 0 { 1.0 } else { 0.35 };
            let times = lane.times(run).into_iter().map(|at| (at.min(end), height));
            if lane.event.is_some() {
                let style = faint(lane.color, opacity).filled();
                chart.draw_series(times.map(|at| Circle::new(at, 5, style)))?;
            } else {
                let style = faint(lane.color, opacity).stroke_width(2);
                chart.draw_series(times.map(|at| Cross::new(at, 4, style)))?;
            }
        }
    }
    Ok(())
}

fn description(runs: &ScenarioRuns<'_>) -> String {
    let mut text = "Events of the first run of each strategy, in seconds of the scenario; those of further runs are \
                    drawn faintly."
        .to_owned();
    for strategy in &runs.strategies {
        let lanes = lanes(strategy);
        let entries = lanes.iter().filter_map(|lane| {
            let times = lane.times(strategy.first);
            let first = times.iter().copied().reduce(f64::min)?;
            Some(match times.len() {
                1 => format!("{} at {first:.1}", lane.label),
                count => format!("{} {count} times from {first:.1} on", lane.label),
            })
        });
        let entries: Vec<_> = entries.collect();
        // Writing to a String does not fail.
        let _ = write!(text, " {}: {}.", strategy.strategy, entries.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::saved::{group, tests::runs};

    #[test]
    fn only_events_that_happened_have_lanes() {
        let mut runs = runs();
        runs[2].timeline[1].event = "newKind".to_owned();
        runs[2].established_lost_at.clear();
        let groups = group(&runs);
        let labels = |index: usize| {
            let lanes = lanes(&groups[0].strategies[index]);
            lanes.iter().map(|lane| lane.label).collect::<Vec<_>>()
        };
        assert_eq!(
            labels(0),
            [
                "signal",
                "health answer not 200",
                "out of rotation",
                "node gone",
                "connection lost"
            ]
        );
        assert_eq!(labels(1), ["signal", "out of rotation", "node gone", "newKind"]);
    }
}
