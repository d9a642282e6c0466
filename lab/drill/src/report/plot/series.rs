//! Figures over time: a line or points for each, with marks of what began when.

use plotters::element::{Circle, PathElement, Text};
use plotters::prelude::{Color, LineSeries, RGBColor};
use plotters::style::text_anchor::HPos;

use super::{
    BLUE, DrawError, INK, Labels, PlotError, SKY, TEXT_SIZE, VERMILION, anchored, chart_over_seconds, mesh, svg,
};

const HEIGHT: u32 = 420;
const COLORS: [RGBColor; 3] = [BLUE, VERMILION, SKY];
/// Names of marks take turns in this many rows, so that neighbours do not cover each other.
const MARK_ROWS: u8 = 4;

/// A picture of figures over time.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it shows.
    pub title: String,
    /// Under which conditions.
    pub caption: String,
    /// What the figures are, with their unit.
    pub y: String,
    /// The figures, at most three.
    pub lines: Vec<SeriesLine>,
    /// What began at which second.
    pub marks: Vec<(f64, String)>,
}

/// One figure over time.
#[derive(Clone, Debug)]
pub struct SeriesLine {
    /// What it is.
    pub name: String,
    /// Seconds and values.
    pub points: Vec<(f64, f64)>,
    /// Whether the points are drawn as a line.
    pub is_joined: bool,
}

/// The picture.
///
/// # Errors
/// It cannot be drawn.
pub(in super::super) fn series(id: &str, series: &Series) -> Result<String, PlotError> {
    let all = || series.lines.iter().flat_map(|line| &line.points);
    let end = all().map(|point| point.0).fold(1.0, f64::max);
    let top = all().map(|point| point.1).fold(0.001, f64::max) * 1.3;
    let labels = Labels {
        id,
        title: series.title.clone(),
        description: description(series),
    };
    svg(&labels, HEIGHT, |root| {
        let mut chart = chart_over_seconds(root, [&series.title, &series.caption], end, top)?;
        mesh(&mut chart).x_desc("seconds").y_desc(series.y.as_str()).draw()?;
        for ((at, name), row) in series.marks.iter().zip((0..MARK_ROWS).cycle()) {
            chart.draw_series([PathElement::new(vec![(*at, 0.0), (*at, top)], INK.stroke_width(1))])?;
            let y = top * (0.98 - 0.05 * f64::from(row));
            let label = (*at + end * 0.005, y);
            chart.draw_series([Text::new(name.clone(), label, anchored(TEXT_SIZE, HPos::Left))])?;
        }
        for (line, color) in series.lines.iter().zip(COLORS) {
            if line.is_joined {
                chart.draw_series(LineSeries::new(line.points.iter().copied(), color.stroke_width(2)))?;
            } else {
                chart.draw_series(line.points.iter().map(|point| Circle::new(*point, 2, color.filled())))?;
            }
            if let Some((_, last)) = line.points.last() {
                let label = (end * 1.01, *last);
                chart.draw_series([Text::new(line.name.clone(), label, anchored(TEXT_SIZE, HPos::Left))])?;
            }
        }
        Ok::<(), DrawError>(())
    })
}

/// The range of each line, and the marks.
fn description(series: &Series) -> String {
    let line = |line: &SeriesLine| {
        let values = || line.points.iter().map(|point| point.1);
        let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
        format!(
            "{}: {} points from {least:.2} to {most:.2}.",
            line.name,
            line.points.len()
        )
    };
    let marks = series.marks.iter().map(|(at, name)| format!("{name} at {at:.0} s."));
    series.lines.iter().map(line).chain(marks).collect::<Vec<_>>().join(" ")
}
