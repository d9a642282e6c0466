//! Plots of results as SVG, drawn with plotters: pure functions from saved runs to text.
//!
//! plotters decides scales, axes and marks. Here every picture gets a title and a description for screen readers, and
//! scales with the page. Its few colours stand in presentation attributes, which the page's style replaces in dark mode.
//! Colours are Okabe and Ito's, which people with any colour vision can tell apart; no mark differs by colour alone.

use plotters::chart::{ChartBuilder, ChartContext, LabelAreaPosition, MeshStyle};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::element::Text;
use plotters::prelude::{
    Cartesian2d, Color, DrawingArea, DrawingAreaErrorKind, IntoDrawingArea, IntoFont, RGBColor, SVGBackend, TextStyle,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::page::escape;

mod lost;
mod propagation;
mod series;
mod success;
mod timeline;

pub(super) use lost::lost;
pub(super) use propagation::propagation;
pub(super) use series::series;
pub use series::{Series, SeriesLine};
pub(super) use success::success;
pub(super) use timeline::timeline;

/// The width of every picture, in its own units.
const WIDTH: u32 = 960;
/// Text and axes.
const INK: RGBColor = RGBColor(0x1F, 0x23, 0x28);
/// Lines of a grid.
const GRID: RGBColor = RGBColor(0xD0, 0xD7, 0xDE);
/// What succeeded.
const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xB2);
/// What failed.
const VERMILION: RGBColor = RGBColor(0xD5, 0x5E, 0x00);
/// What was lost with its machine.
const SKY: RGBColor = RGBColor(0x56, 0xB4, 0xE9);
/// Text of axes and labels, and of headings.
const TEXT_SIZE: u32 = 14;
const HEADING_SIZE: u32 = 16;
/// What a heading and a line of conditions take.
const HEADING_HEIGHT: u32 = 50;
/// The same of one of several panels, and below each of them its axis.
const PANEL_HEADING_HEIGHT: u32 = 30;
const AXIS_HEIGHT: u32 = 24;
/// With its name.
const LAST_AXIS_HEIGHT: u32 = 44;

/// A picture cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the plot {plot:?} cannot be drawn: {reason}")]
pub struct PlotError {
    plot: String,
    reason: String,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawError = DrawingAreaErrorKind<std::io::Error>;

/// What a picture is called and shows, for those who do not see it.
struct Labels<'a> {
    /// Unique on the page.
    id: &'a str,
    title: String,
    description: String,
}

/// Draws a picture of this height.
fn svg(
    labels: &Labels<'_>,
    height: u32,
    draw: impl FnOnce(&Area<'_>) -> Result<(), DrawError>,
) -> Result<String, PlotError> {
    let mut drawn = String::new();
    let root = SVGBackend::with_string(&mut drawn, (WIDTH, height)).into_drawing_area();
    draw(&root).and_then(|()| root.present()).map_err(|error| PlotError {
        plot: labels.title.clone(),
        reason: error.to_string(),
    })?;
    drop(root);
    // The element that plotters opens has a fixed size; ours scales.
    let inner = drawn.split_once('>').map_or("", |(_, inner)| inner);
    let Labels { id, title, description } = labels;
    let (title, description) = (escape(title), escape(description));
    Ok(format!(
        "<svg id=\"{id}\" class=\"plot\" role=\"img\" aria-labelledby=\"{id}-title {id}-description\" \
         viewBox=\"0 0 {WIDTH} {height}\" xmlns=\"http://www.w3.org/2000/svg\">\n\
         <title id=\"{id}-title\">{title}</title>\n<desc id=\"{id}-description\">{description}</desc>{inner}"
    ))
}

/// A chart over seconds or counts.
type Chart<'area, 'backend> = ChartContext<'area, SVGBackend<'backend>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// The mesh of a chart in the style of all, with whole numbers below it.
fn mesh<'area, 'mesh, 'backend>(
    chart: &'mesh mut Chart<'area, 'backend>,
) -> MeshStyle<'area, 'mesh, RangedCoordf64, RangedCoordf64, SVGBackend<'backend>> {
    let mut mesh = chart.configure_mesh();
    mesh.max_light_lines(0)
        .bold_line_style(GRID)
        .axis_style(INK)
        .label_style(("sans-serif", TEXT_SIZE, &INK))
        .axis_desc_style(("sans-serif", TEXT_SIZE, &INK))
        .x_label_formatter(&|number: &f64| format!("{number:.0}"));
    mesh
}

/// The height of panels that are drawn below each other.
fn height_of_panels(heights: &[u32]) -> u32 {
    heights.iter().sum::<u32>() + LAST_AXIS_HEIGHT - AXIS_HEIGHT
}

/// Draws panels below each other, each by its index. The last one has room to name the axis.
fn draw_panels<'backend>(
    root: &Area<'backend>,
    heights: &[u32],
    mut draw: impl FnMut(usize, &Area<'backend>, bool) -> Result<(), DrawError>,
) -> Result<(), DrawError> {
    let mut rest = root.clone();
    for (index, height) in heights.iter().enumerate() {
        if index + 1 == heights.len() {
            return draw(index, &rest, true);
        }
        let (panel, below) = rest.split_vertically(*height);
        draw(index, &panel, false)?;
        rest = below;
    }
    Ok(())
}

/// The chart of a panel over the seconds of the scenario, below its heading.
fn panel_chart<'area, 'backend>(
    panel: &'area Area<'backend>,
    heading: String,
    label_width: u32,
    (end, top): (f64, f64),
    is_last: bool,
) -> Result<Chart<'area, 'backend>, DrawError> {
    panel.draw(&Text::new(heading, (8, 15), text(HEADING_SIZE)))?;
    let axis = if is_last { LAST_AXIS_HEIGHT } else { AXIS_HEIGHT };
    ChartBuilder::on(panel)
        .margin_top(PANEL_HEADING_HEIGHT)
        .margin_right(20)
        .set_label_area_size(LabelAreaPosition::Left, label_width)
        .set_label_area_size(LabelAreaPosition::Bottom, axis)
        .build_cartesian_2d(0.0..end, 0.0..top)
}

/// A chart over seconds below a heading and a line of conditions, with room for labels at the ends of its lines.
fn chart_over_seconds<'area, 'backend>(
    root: &'area Area<'backend>,
    [heading, conditions]: [&str; 2],
    end: f64,
    top: f64,
) -> Result<Chart<'area, 'backend>, DrawError> {
    root.draw(&Text::new(heading.to_owned(), (8, 15), text(HEADING_SIZE)))?;
    root.draw(&Text::new(conditions.to_owned(), (8, 36), text(TEXT_SIZE)))?;
    ChartBuilder::on(root)
        .margin_top(HEADING_HEIGHT)
        .margin_right(130)
        .set_label_area_size(LabelAreaPosition::Left, 60)
        .set_label_area_size(LabelAreaPosition::Bottom, 44)
        .build_cartesian_2d(0.0..end, 0.0..top)
}

/// Text that begins at its position, at half of its height.
fn text(size: u32) -> TextStyle<'static> {
    anchored(size, HPos::Left)
}

/// Text that begins, has its middle or ends at its position.
fn anchored(size: u32, horizontal: HPos) -> TextStyle<'static> {
    ("sans-serif", size)
        .into_font()
        .color(&INK)
        .pos(Pos::new(horizontal, VPos::Center))
}

/// A colour that lets others show through.
fn faint(color: RGBColor, opacity: f64) -> plotters::style::RGBAColor {
    color.mix(opacity)
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;

    use super::*;
    use crate::conditions::Conditions;
    use crate::report::saved::{group, tests::runs};

    /// Every plot of the page, of small results.
    #[test]
    fn plots_are_drawn_as_they_were_looked_at() {
        let runs = runs();
        let mut timed = runs.clone();
        for (run, seconds) in timed.iter_mut().zip([1.0, 5.0, 5.0]) {
            run.conditions = Some(Conditions {
                nodes: 6,
                operation_seconds: seconds,
                ..Conditions::default()
            });
        }
        let mut uneven = runs.clone();
        uneven[1].established_lost = 6;
        let (groups, timed, uneven) = (group(&runs), group(&timed), group(&uneven));
        let line = |name: &str, is_joined| SeriesLine {
            name: name.to_owned(),
            points: vec![(0.0, 1.0), (10.0, 3.0)],
            is_joined,
        };
        let lines = Series {
            title: "title".to_owned(),
            caption: "caption".to_owned(),
            y: "percent".to_owned(),
            lines: vec![line("joined", true), line("points", false)],
            marks: vec![(2.0, "one".to_owned()), (6.0, "two".to_owned())],
        };
        let drawn = [
            success("success", &groups[0]),
            lost("lost", &uneven[0]),
            timeline("timeline", &groups[0]),
            propagation("propagation", &timed[0]),
            series("series", &lines),
        ];
        expect_file!["plot/drawn.svg"].assert_eq(&drawn.map(Result::unwrap).concat());
    }

    #[test]
    fn names_from_results_cannot_end_their_element() {
        let labels = Labels {
            id: "a",
            title: "</title><script>".to_owned(),
            description: "a & b".to_owned(),
        };
        let svg = svg(&labels, 10, |_| Ok(())).unwrap();
        assert!(svg.contains("&lt;/title&gt;&lt;script&gt;</title>"), "{svg}");
        assert!(svg.contains("a &amp; b</desc>"), "{svg}");
        assert!(svg.trim_end().ends_with("</svg>"), "{svg}");
    }
}
