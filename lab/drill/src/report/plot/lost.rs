//! Established connections lost: a bar for each strategy, those lost before a machine was dead apart from the others.

use plotters::chart::{ChartBuilder, LabelAreaPosition};
use plotters::element::{Rectangle, Text};
use plotters::prelude::{Color, RGBColor};
use plotters::style::text_anchor::HPos;

use super::{Area, DrawError, Labels, PlotError, SKY, TEXT_SIZE, VERMILION, anchored, mesh, svg, text};
use crate::report::saved::{ScenarioRuns, StrategyRuns};
use crate::spread::Spread;

const LEGEND_HEIGHT: u32 = 34;
const BAR_HEIGHT: u32 = 34;
const AXIS_HEIGHT: u32 = 44;
const LABEL_WIDTH: u32 = 210;
/// The part of the width that bars use, so that their figures fit beside them.
const BAR_SHARE: f64 = 0.62;

const LEGEND: [(&str, RGBColor, i32); 2] = [
    ("lost before a node was gone", VERMILION, 210),
    ("lost with a node", SKY, 460),
];

/// The means over the runs of one strategy.
struct Bar {
    strategy: String,
    before: f64,
    all: Spread,
    established: f64,
}

impl Bar {
    #[expect(clippy::cast_precision_loss, reason = "counts of connections are far below 2^52")]
    fn new(strategy: &StrategyRuns<'_>) -> Self {
        Self {
            strategy: strategy.strategy.to_owned(),
            before: strategy.spread(|run| run.established_lost_before_node_gone as f64).mean,
            all: strategy.spread(|run| run.established_lost as f64),
            established: strategy.spread(|run| run.established as f64).mean,
        }
    }

    fn figures(&self) -> String {
        let Spread { mean, min, max, .. } = self.all;
        let range = if max > min {
            format!(" ({min:.0} to {max:.0})")
        } else {
            String::new()
        };
        format!(
            "{} of {}{range}, {} before",
            short(mean),
            short(self.established),
            short(self.before)
        )
    }
}

/// Without a decimal place where it says nothing.
fn short(value: f64) -> String {
    if value.fract().abs() < 0.05 || value.fract().abs() > 0.95 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

/// The picture.
///
/// # Errors
/// It cannot be drawn.
pub(in super::super) fn lost(id: &str, runs: &ScenarioRuns<'_>) -> Result<String, PlotError> {
    let bars: Vec<_> = runs.strategies.iter().map(Bar::new).collect();
    let figures = bars.iter().map(|bar| format!(" {}: {}.", bar.strategy, bar.figures()));
    let labels = Labels {
        id,
        title: format!("Established connections lost, scenario {}", runs.scenario),
        description: format!(
            "Mean of the runs, their range, and how many were lost before a node was gone.{}",
            figures.collect::<String>()
        ),
    };
    let count = u32::try_from(bars.len()).unwrap_or(u32::MAX);
    let height = count.saturating_mul(BAR_HEIGHT) + LEGEND_HEIGHT + AXIS_HEIGHT;
    svg(&labels, height, |root| draw(root, &bars, count))
}

fn draw(root: &Area<'_>, bars: &[Bar], count: u32) -> Result<(), DrawError> {
    for (label, color, x) in LEGEND {
        root.draw(&Rectangle::new([(x, 10), (x + 14, 24)], color.filled()))?;
        root.draw(&Text::new(label, (x + 20, 17), text(TEXT_SIZE)))?;
    }
    let longest = bars.iter().map(|bar| bar.all.mean).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(root)
        .margin_top(LEGEND_HEIGHT)
        .margin_right(20)
        .set_label_area_size(LabelAreaPosition::Left, LABEL_WIDTH)
        .set_label_area_size(LabelAreaPosition::Bottom, AXIS_HEIGHT)
        .build_cartesian_2d(0.0..longest / BAR_SHARE, 0.0..f64::from(count))?;
    mesh(&mut chart)
        .disable_y_mesh()
        .disable_y_axis()
        .x_labels(8)
        .x_label_formatter(&|count: &f64| short(*count))
        .x_desc("connections, mean of the runs")
        .draw()?;
    for (row, bar) in (0_u32..).zip(bars) {
        let top = f64::from(count - row) - 0.2;
        let bottom = top - 0.6;
        let part = |from: f64, to: f64, color: RGBColor| Rectangle::new([(from, bottom), (to, top)], color.filled());
        if bar.before > 0.0 {
            chart.draw_series([part(0.0, bar.before, VERMILION)])?;
        }
        if bar.all.mean > bar.before {
            chart.draw_series([part(bar.before, bar.all.mean, SKY)])?;
        }
        let middle = top - 0.3;
        let figures = Text::new(bar.figures(), (bar.all.mean + longest * 0.015, middle), text(TEXT_SIZE));
        chart.draw_series([figures])?;
        let label_at = LEGEND_HEIGHT + BAR_HEIGHT * row + BAR_HEIGHT / 2;
        let label_at = (
            i32::try_from(LABEL_WIDTH - 12).unwrap_or(i32::MAX),
            i32::try_from(label_at).unwrap_or(i32::MAX),
        );
        root.draw(&Text::new(
            bar.strategy.clone(),
            label_at,
            anchored(TEXT_SIZE, HPos::Right),
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::saved::{group, tests::runs};

    #[test]
    fn strategies_that_lose_nothing_have_no_bar() {
        let mut runs = runs();
        for run in &mut runs {
            (run.established_lost, run.established_lost_before_node_gone) = (0, 0);
        }
        let svg = lost("l", &group(&runs)[0]).unwrap();
        assert_eq!(svg.matches("<rect").count(), 2, "the legend alone: {svg}");
        assert!(svg.contains("none: 0 of 4, 0 before."), "{svg}");
    }
}
