//! The share of new connections that failed over the time until an admin state takes effect: a line for each strategy, with
//! Wilson's interval at 95 % around it. A strategy that ran with one such time only is drawn as if it did not depend on it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plotters::element::{PathElement, Polygon, Text};
use plotters::prelude::{Color, LineSeries, RGBColor};
use plotters::style::text_anchor::HPos;

use super::{
    BLUE, DrawError, INK, Labels, PlotError, SKY, TEXT_SIZE, VERMILION, anchored, chart_over_seconds, faint, mesh, svg,
};
use crate::report::first_answer;
use crate::report::saved::{ScenarioRuns, StrategyRuns};
use crate::result::wilson;

const HEIGHT: u32 = 420;
const COLORS: [RGBColor; 5] = [BLUE, VERMILION, SKY, INK, RGBColor(0x00, 0x9E, 0x73)];
/// Between two labels at the ends of lines, as a share of the height.
const LABEL_DISTANCE: f64 = 0.06;
/// Of these two the crossing is marked.
const CROSSING: (&str, &str) = ("admin-state", "kube-proxy");

/// A share of new connections and its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    seconds: f64,
    failed: f64,
    low: f64,
    high: f64,
}

/// The points of a strategy, by the time until an admin state takes effect.
#[expect(clippy::cast_precision_loss, reason = "counts of connections are far below 2^52")]
fn points(strategy: &StrategyRuns<'_>) -> Vec<Point> {
    let mut counts: BTreeMap<u64, (f64, usize, usize)> = BTreeMap::new();
    for run in &strategy.runs {
        let conditions = run.conditions.clone().unwrap_or_default();
        let seconds = (conditions.operation_seconds + conditions.propagation_seconds).max(0.0);
        // Times that are not negative have the order of their bits.
        let count = counts.entry(seconds.to_bits()).or_insert((seconds, 0, 0));
        count.1 += run.attempted;
        count.2 += run.failed;
    }
    let point = |(seconds, attempted, failed): (f64, usize, usize)| {
        let (attempted, failed) = (attempted as f64, failed as f64);
        let (low, high) = wilson(failed, attempted);
        Point {
            seconds,
            failed: if attempted > 0.0 { failed / attempted } else { 0.0 },
            low,
            high,
        }
    };
    counts.into_values().map(point).collect()
}

/// The same over the whole axis.
fn line(points: &[Point], end: f64) -> Vec<Point> {
    match points {
        [only] => [0.0, end].map(|seconds| Point { seconds, ..*only }).to_vec(),
        points => points.to_vec(),
    }
}

/// The first time at which the one line gets above the other.
fn crossing(one: &[Point], other: &[Point]) -> Option<f64> {
    let at = |line: &[Point], seconds: f64| {
        let pair = line
            .windows(2)
            .find(|pair| (pair[0].seconds..=pair[1].seconds).contains(&seconds))?;
        let share = (seconds - pair[0].seconds) / (pair[1].seconds - pair[0].seconds).max(f64::EPSILON);
        Some(pair[0].failed + share * (pair[1].failed - pair[0].failed))
    };
    one.windows(2).find_map(|pair| {
        let [before, after] =
            [pair[0], pair[1]].map(|point| at(other, point.seconds).map(|shown| point.failed - shown));
        let (before, after) = (before?, after?);
        (before <= 0.0 && after > 0.0)
            .then(|| pair[0].seconds + (pair[1].seconds - pair[0].seconds) * -before / (after - before))
    })
}

/// The picture.
///
/// # Errors
/// It cannot be drawn.
pub(in super::super) fn propagation(id: &str, runs: &ScenarioRuns<'_>) -> Result<String, PlotError> {
    let points: Vec<_> = runs
        .strategies
        .iter()
        .map(|strategy| (strategy.strategy.as_str(), points(strategy)))
        .collect();
    let all = || points.iter().flat_map(|(_, points)| points);
    let end = all().map(|point| point.seconds).fold(1.0, f64::max);
    let top = all().map(|point| point.high).fold(0.001, f64::max) * 1.05;
    let lines: Vec<_> = points.iter().map(|(name, points)| (*name, line(points, end))).collect();
    let found = |name: &str| {
        lines
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, line)| line.as_slice())
    };
    let crossing = found(CROSSING.0)
        .zip(found(CROSSING.1))
        .and_then(|(one, other)| crossing(one, other));
    let labels = Labels {
        id,
        title: format!(
            "New connections that failed over the time until an admin state takes effect, scenario {}",
            runs.scenario
        ),
        description: description(&points, crossing),
    };
    svg(&labels, HEIGHT, |root| {
        let [heading, conditions] = caption(runs);
        let mut chart = chart_over_seconds(root, [&heading, &conditions], end, top)?;
        mesh(&mut chart)
            .y_label_formatter(&|share: &f64| format!("{:.1} %", share * 100.0))
            .x_desc("seconds of an operation of ARM and of its propagation")
            .draw()?;
        for ((_, line), color) in lines.iter().zip(COLORS.iter().cycle()) {
            let upper = line.iter().map(|point| (point.seconds, point.high));
            let lower = line.iter().rev().map(|point| (point.seconds, point.low));
            chart.draw_series([Polygon::new(upper.chain(lower).collect::<Vec<_>>(), faint(*color, 0.2))])?;
            let middle = line.iter().map(|point| (point.seconds, point.failed));
            chart.draw_series(LineSeries::new(middle, color.stroke_width(2)))?;
        }
        for (name, y) in label_places(&lines, top) {
            chart.draw_series([Text::new(
                name.to_owned(),
                (end * 1.01, y),
                anchored(TEXT_SIZE, HPos::Left),
            )])?;
        }
        if let Some(at) = crossing {
            chart.draw_series([PathElement::new(vec![(at, 0.0), (at, top)], INK.stroke_width(1))])?;
            let label = format!("{at:.1} s");
            chart.draw_series([Text::new(
                label,
                (at + end * 0.005, top * 0.97),
                anchored(TEXT_SIZE, HPos::Left),
            )])?;
        }
        Ok::<(), DrawError>(())
    })
}

/// The names of lines at their ends, moved apart where they would cover each other.
fn label_places<'a>(lines: &[(&'a str, Vec<Point>)], top: f64) -> Vec<(&'a str, f64)> {
    let ends = lines
        .iter()
        .filter_map(|(name, line)| Some((*name, line.last()?.failed)));
    let mut places: Vec<_> = ends.collect();
    places.sort_by(|one, other| one.1.total_cmp(&other.1));
    let mut lowest = 0.0;
    for (_, y) in &mut places {
        *y = y.max(lowest);
        lowest = *y + top * LABEL_DISTANCE;
    }
    places
}

/// What the picture is about, and under which conditions.
fn caption(runs: &ScenarioRuns<'_>) -> [String; 2] {
    let counts = runs
        .strategies
        .iter()
        .map(|strategy| strategy.runs.len() / points(strategy).len().max(1));
    let conditions = runs
        .strategies
        .first()
        .and_then(|strategy| strategy.first.conditions.clone());
    let conditions = conditions.unwrap_or_default();
    [
        format!(
            "{}: new connections that failed, {} runs of each point",
            runs.scenario,
            counts.min().unwrap_or(0)
        ),
        format!(
            "{} nodes, off {} s after the signal; probes every {} s, {} failures{}; commit {}",
            conditions.nodes,
            conditions.delete_delay_seconds,
            conditions.probe_interval_seconds,
            conditions.probe_failures,
            first_answer(&conditions.probe_rule),
            conditions.commit.as_deref().unwrap_or("not stated"),
        ),
    ]
}

fn description(lines: &[(&str, Vec<Point>)], crossing: Option<f64>) -> String {
    let mut text = String::new();
    for (name, points) in lines {
        let _ = write!(text, "{name}:");
        for Point {
            seconds,
            failed,
            low,
            high,
        } in points
        {
            let [failed, low, high] = [failed, low, high].map(|share| share * 100.0);
            // Writing to a String does not fail.
            let _ = write!(text, " {failed:.2} % ({low:.2} to {high:.2}) at {seconds} s;");
        }
        text.push(' ');
    }
    if let Some(at) = crossing {
        let _ = write!(text, "{} gets above {} at {at:.1} s.", CROSSING.0, CROSSING.1);
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::Conditions;
    use crate::report::saved::{from_results, group, tests::run};
    use crate::strategy::Strategy;

    #[test]
    fn a_line_rises_with_the_time_and_the_crossing_is_marked() {
        let mut runs = Vec::new();
        for (operation, lost) in [(0.0, 0), (5.0, 6), (10.0, 18)] {
            let mut made = from_results(&[run(Strategy::AdminState, 1, lost)]).unwrap();
            made[0].conditions = Some(Conditions {
                operation_seconds: operation,
                ..Conditions::default()
            });
            runs.extend(made);
        }
        runs.extend(from_results(&[run(Strategy::KubeProxy, 1, 12)]).unwrap());
        let groups = group(&runs);
        let svg = propagation("p", &groups[0]).unwrap();
        for expected in [
            "admin-state: 0.00 % (0.00 to 0.95) at 0 s; 2.50 %",
            "kube-proxy: 5.00 %",
            "admin-state gets above kube-proxy at 7.5 s",
            "scale-down: new connections that failed, 1 runs of each point",
        ] {
            assert!(svg.contains(expected), "{expected} in {svg}");
        }
        assert_eq!(svg.matches("<polygon").count(), 2, "an interval each");
    }

    #[test]
    fn labels_do_not_cover_each_other() {
        let point = |failed: f64| {
            vec![Point {
                seconds: 1.0,
                failed,
                low: 0.0,
                high: 0.1,
            }]
        };
        let places = label_places(&[("a", point(0.05)), ("b", point(0.05)), ("c", point(0.0))], 0.1);
        assert_eq!(places.iter().map(|place| place.0).collect::<String>(), "cab");
        assert!(
            places.windows(2).all(|pair| pair[1].1 - pair[0].1 > 0.0059),
            "{places:?}"
        );
    }
}
