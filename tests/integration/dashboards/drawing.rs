//! Draws answers of Prometheus as SVG, for the documentation.

use std::fmt::Write as _;

use serde_json::Value;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 50.0;
const TOP: f64 = 30.0;
/// The height of one line of the legend.
const LEGEND: f64 = 16.0;
const COLOURS: [&str; 8] = [
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf",
];

/// One series of a chart.
pub(super) struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

impl Line {
    /// A series of a range query; its name is the legend of the panel with the labels filled in.
    pub(super) fn new(series: &Value, legend: &str) -> Self {
        let mut name = legend.to_owned();
        for (label, value) in series["metric"].as_object().unwrap() {
            name = name.replace(&format!("{{{{{label}}}}}"), value.as_str().unwrap());
        }
        let point = |point: &Value| {
            let value: f64 = point[1].as_str().unwrap().parse().unwrap();
            value.is_finite().then(|| (point[0].as_f64().unwrap(), value))
        };
        let points = series["values"].as_array().unwrap().iter().filter_map(point).collect();
        Self { name, points }
    }
}

/// A chart: time from left to right in seconds, from 0 up.
pub(super) fn draw(title: &str, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| &line.points);
    let start = all().map(|(time, _)| *time).fold(f64::INFINITY, f64::min);
    let end = all().map(|(time, _)| *time).fold(start + 1.0, f64::max);
    let top = all().map(|(_, value)| *value).fold(0.0, f64::max);
    let top = if top > 0.0 { top * 1.1 } else { 1.0 };
    let (right, bottom) = (WIDTH - 10.0, HEIGHT - 10.0);
    let x = |time: f64| LEFT + (time - start) / (end - start) * (right - LEFT);
    let y = |value: f64| bottom - value / top * (bottom - TOP);
    let full = lines.iter().fold(HEIGHT + 24.0, |height, _| height + LEGEND);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {full}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{full}\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{}</text>\n",
        escape(title)
    );
    for (value, label) in [(0.0, "0".to_owned()), (top / 1.1, format!("{:.3}", top / 1.1))] {
        let label = label.trim_end_matches('0').trim_end_matches('.');
        let label = if label.is_empty() { "0" } else { label };
        let height = y(value);
        writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{height:.1}\" y2=\"{height:.1}\" stroke=\"#ccc\"/><text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            height + 4.0
        )
        .unwrap();
    }
    writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\">0 s</text><text x=\"{right}\" y=\"{}\" text-anchor=\"end\">{:.0} s</text>",
        HEIGHT + 6.0,
        HEIGHT + 6.0,
        end - start
    )
    .unwrap();
    let mut below = HEIGHT + 24.0;
    for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
        let points: Vec<String> = line
            .points
            .iter()
            .map(|(time, value)| format!("{:.1},{:.1}", x(*time), y(*value)))
            .collect();
        writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\"/>\n<rect x=\"{LEFT}\" y=\"{:.1}\" \
             width=\"10\" height=\"3\" fill=\"{colour}\"/><text x=\"{}\" y=\"{below:.1}\">{}</text>",
            points.join(" "),
            below - 5.0,
            LEFT + 16.0,
            escape(&line.name)
        )
        .unwrap();
        below += LEGEND;
    }
    svg.push_str("</svg>\n");
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
