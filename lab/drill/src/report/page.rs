//! The results of drills as one HTML page: figures, plots, and all that they assume.
//!
//! The page contains everything that it shows: no script, no font, no request. A Content-Security-Policy forbids them, so
//! that the names in results, which come from a file, cannot cause any either.

use std::fmt::Write as _;

use clap::ValueEnum;

use super::plot::{self, PlotError, Series};
use super::saved::{SavedRun, ScenarioRuns, group};
use super::{facts, model, seconds, spread};
use crate::result::is_too_late;
use crate::scenario::Scenario;
use crate::spread::Spread;
use crate::strategy::Strategy;

const PLOT_STYLE: &str = include_str!("plot.css");
const PAGE_STYLE: &str = include_str!("page.css");

/// The page of all runs.
///
/// # Errors
/// A plot cannot be drawn.
pub fn page(runs: &[SavedRun]) -> Result<String, PlotError> {
    let groups = group(runs);
    let names: Vec<_> = groups.iter().map(|group| escape(group.scenario)).collect();
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>headgate-lab drill: {}</title>\n<style>\n{PLOT_STYLE}{PAGE_STYLE}</style>\n</head>\n<body>\n<main>\n\
         <h1>What connections lose while nodes go away</h1>\n\
         <p>Measured by <code>headgate-lab drill</code> on one machine: real TCP connections through a layer-4 load balancer \
         that is the Linux kernel's NAT. No cloud took part.</p>\n",
        names.join(", "),
    );
    html.push_str(&warning(runs));
    for (number, group) in groups.iter().enumerate() {
        html.push_str(&scenario(number, group)?);
    }
    let _ = write!(
        html,
        "<section id=\"assumptions\">\n<h2>What the figures assume</h2>\n<p>The kernel forwards, and loses, real packets. \
         Which backends get new connections is decided by a model of Azure's load balancer:</p>\n\
         <div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"the load balancer's model\">\n{}</div>\n\
         <p>The speed divides every interval and delay of a scenario. headgate, the kernel and the machine keep their own \
         speed, so a reaction of 50 ms counts as 0.5 s at speed 10. kubelet, kube-proxy's choice of endpoints and the \
         autoscaler are modelled; headgate's agents, the API server and the emulator of Azure are real programs.</p>\n\
         </section>\n</main>\n</body>\n</html>\n",
        model::table(),
    );
    Ok(html)
}

/// The plot of new connections of the first scenario, as a picture by itself.
///
/// # Errors
/// It cannot be drawn, or there is no run.
pub fn picture(runs: &[SavedRun]) -> Result<Option<String>, PlotError> {
    drawn(runs, |first| plot::success("connections", first))
}

/// The plot of failed connections over the time until an admin state takes effect, likewise.
///
/// # Errors
/// It cannot be drawn.
pub fn propagation_picture(runs: &[SavedRun]) -> Result<Option<String>, PlotError> {
    drawn(runs, |first| plot::propagation("propagation", first))
}

fn drawn(
    runs: &[SavedRun],
    plot: impl FnOnce(&ScenarioRuns<'_>) -> Result<String, PlotError>,
) -> Result<Option<String>, PlotError> {
    let groups = group(runs);
    let Some(first) = groups.first() else {
        return Ok(None);
    };
    Ok(Some(standalone(&plot(first)?)))
}

/// Figures over time, as a picture by itself.
///
/// # Errors
/// It cannot be drawn.
pub fn series_picture(series: &Series) -> Result<String, PlotError> {
    Ok(standalone(&plot::series("series", series)?))
}

/// A plot with its own style. The background makes it readable on a page of any colour.
fn standalone(plot: &str) -> String {
    let beginning = format!(
        "</desc>\n<style>\n{PLOT_STYLE}</style>\n\
         <rect x=\"0\" y=\"0\" width=\"100%\" height=\"100%\" fill=\"#FFFFFF\"/>"
    );
    plot.replacen("</desc>", &beginning, 1)
}

/// Text as HTML or XML shows it.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

fn warning(runs: &[SavedRun]) -> String {
    let is_late = |run: &&SavedRun| is_too_late(run.longest_lag_seconds, run.speed);
    let late = runs.iter().filter(is_late).count();
    if late == 0 {
        return String::new();
    }
    let longest = runs.iter().map(|run| run.longest_lag_seconds).fold(0.0, f64::max);
    format!(
        "<p class=\"warning\" id=\"busy\"><strong>Not reliable:</strong> in {late} of {} runs the machine was so busy that \
         clients began connections up to {longest:.1} s late.</p>\n",
        runs.len(),
    )
}

fn scenario(number: usize, group: &ScenarioRuns<'_>) -> Result<String, PlotError> {
    let name = escape(group.scenario);
    let about = help::<Scenario>(group.scenario);
    let mut html = format!(
        "<section id=\"scenario-{number}\">\n<h2>Scenario <code>{name}</code></h2>\n<p>{}</p>\n",
        model::inline(&about)
    );
    html.push_str(&summary(group));
    let figure = |id: &str, heading: &str, plot: &str, caption: &str| {
        format!(
            "<h3>{heading}</h3>\n<figure id=\"{id}-{number}\" tabindex=\"0\">\n{plot}<figcaption>{caption}</figcaption>\n</figure>\n"
        )
    };
    html.push_str(&figure(
        "connections",
        "New connections that succeeded",
        &plot::success(&format!("connections-plot-{number}"), group)?,
        "The line is the share of new connections that succeeded; the filled area below 100 % is what failed. With several \
         runs the line is that of all runs together, and the lighter area is the worst run. The vertical lines mark the \
         first run's first events.",
    ));
    html.push_str(&figure(
        "timeline",
        "What happened when",
        &plot::timeline(&format!("timeline-plot-{number}"), group)?,
        "Events of all nodes. The first run is drawn strongly, others faintly. A cross is a long-lived connection that was \
         lost.",
    ));
    html.push_str(&figure(
        "lost",
        "Established connections cut",
        &plot::lost(&format!("lost-plot-{number}"), group)?,
        "Long-lived connections that their client did not end. Those on a machine that is switched off are lost whatever \
         the load balancer does.",
    ));
    html.push_str(&events(group));
    html.push_str(&facts::section(group));
    html.push_str("</section>\n");
    Ok(html)
}

/// What the command line says of a scenario or strategy; empty for one of another version.
fn help<T: ValueEnum>(name: &str) -> String {
    let value = T::from_str(name, false)
        .ok()
        .and_then(|value| value.to_possible_value());
    let text = value.and_then(|value| value.get_help().map(ToString::to_string));
    text.map_or_else(String::new, |text| format!("{}.", text.trim_end_matches('.')))
}

#[expect(clippy::cast_precision_loss, reason = "counts of connections are far below 2^52")]
fn summary(group: &ScenarioRuns<'_>) -> String {
    let mut html = String::from(
        "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"results\">\n<table class=\"results\">\n<tr>\
         <th scope=\"col\">strategy</th><th scope=\"col\" class=\"number\">runs</th>\
         <th scope=\"col\" class=\"number\">new connections failed</th>\
         <th scope=\"col\" class=\"number\">blackhole seconds</th>\
         <th scope=\"col\" class=\"number\">out of rotation after</th>\
         <th scope=\"col\" class=\"number\">gone after</th>\
         <th scope=\"col\" class=\"number\">open through the node</th>\
         <th scope=\"col\" class=\"number\">established connections cut</th>\
         <th scope=\"col\" class=\"number\">before a node was gone</th></tr>\n",
    );
    for strategy in &group.strategies {
        let (attempted, failed) = strategy.connections();
        let share = if attempted == 0 {
            0.0
        } else {
            failed as f64 / attempted as f64
        };
        let about = model::inline(&help::<Strategy>(strategy.strategy));
        // Results of older versions have no such number.
        let open = strategy.runs.iter().filter_map(|run| run.established_at_signal);
        let open: Vec<_> = open.map(|count| count as f64).collect();
        let _ = writeln!(
            html,
            "<tr><th scope=\"row\"><code>{}</code> <span class=\"quiet\">{about}</span></th>\
             <td class=\"number\">{}</td><td class=\"number\">{failed} of {attempted} ({:.2} %){}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
            escape(strategy.strategy),
            strategy.runs.len(),
            share * 100.0,
            strategy.bound().map(|bound| format!("<br>{bound}")).unwrap_or_default(),
            spread(&strategy.spread(|run| run.blackhole_seconds), 1),
            seconds(strategy.after_signal("signal", "outOfRotation")),
            seconds(strategy.after_signal("signal", "nodeGone")),
            if open.is_empty() {
                "not counted".to_owned()
            } else {
                spread(&Spread::new(&open), 0)
            },
            spread(&strategy.spread(|run| run.established_lost as f64), 0),
            spread(&strategy.spread(|run| run.established_lost_before_node_gone as f64), 0),
        );
    }
    html.push_str("</table>\n</div>\n");
    html
}

fn events(group: &ScenarioRuns<'_>) -> String {
    let mut html = String::from(
        "<details>\n<summary>Events of each run as a table</summary>\n<table class=\"events\">\n<tr>\
         <th scope=\"col\">strategy</th><th scope=\"col\" class=\"number\">seed</th>\
         <th scope=\"col\" class=\"number\">second</th><th scope=\"col\" class=\"number\">node</th>\
         <th scope=\"col\">event</th></tr>\n",
    );
    for strategy in &group.strategies {
        for (run, event) in strategy
            .runs
            .iter()
            .flat_map(|run| run.timeline.iter().map(move |event| (run, event)))
        {
            let _ = writeln!(
                html,
                "<tr><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{:.2}</td>\
                 <td class=\"number\">{}</td><td>{}</td></tr>",
                escape(strategy.strategy),
                run.seed,
                event.t,
                event.node,
                escape(&event.event),
            );
        }
    }
    html.push_str("</table>\n</details>\n");
    html
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::report::saved::{group, tests::runs};

    #[test]
    fn the_page_has_figures_plots_and_assumptions_and_loads_nothing() {
        let html = page(&runs()).unwrap();
        for expected in [
            "<title>headgate-lab drill: scale-down</title>",
            "30 of 800 (3.75 %)",
            "14.0 (11.0 to 17.0) s",
            "An autoscaler removes an empty node, through which connections to the Pods of others pass",
            "its leader sets <code>adminState: Down</code>",
            "default-src 'none'",
        ] {
            assert!(html.contains(expected), "{expected} in {html}");
        }
        assert_eq!(html.matches("<svg ").count(), 3);
        assert_eq!(html.matches("role=\"img\" aria-labelledby=").count(), 3);
        for forbidden in ["<script", "src=", "href=", "url(", "@import", "id=\"busy\""] {
            assert!(!html.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn the_summary_has_a_row_for_each_strategy_and_the_list_every_event() {
        let runs = runs();
        let groups = group(&runs);
        expect![[r#"
            <div class="wide" tabindex="0" role="region" aria-label="results">
            <table class="results">
            <tr><th scope="col">strategy</th><th scope="col" class="number">runs</th><th scope="col" class="number">new connections failed</th><th scope="col" class="number">blackhole seconds</th><th scope="col" class="number">out of rotation after</th><th scope="col" class="number">gone after</th><th scope="col" class="number">open through the node</th><th scope="col" class="number">established connections cut</th><th scope="col" class="number">before a node was gone</th></tr>
            <tr><th scope="row"><code>none</code> <span class="quiet">Nothing: TCP probes of the node port, which fail once the node is dead. Rolling updates run as before Kubernetes 1.26, without <code>ProxyTerminatingEndpoints</code>.</span></th><td class="number">2</td><td class="number">30 of 800 (3.75 %)</td><td class="number">9.0 (6.0 to 12.0)</td><td class="number">14.0 (11.0 to 17.0) s</td><td class="number">5.0 s</td><td class="number">4</td><td class="number">3</td><td class="number">1</td></tr>
            <tr><th scope="row"><code>admin-state</code> <span class="quiet">headgate&#39;s admin states alone: its leader sets <code>adminState: Down</code>, and probes are those of <code>none</code>, which know nothing of it.</span></th><td class="number">1</td><td class="number">0 of 400 (0.00 %)</td><td class="number">0.0</td><td class="number">5.0 s</td><td class="number">5.0 s</td><td class="number">4</td><td class="number">3</td><td class="number">1</td></tr>
            </table>
            </div>
            <details>
            <summary>Events of each run as a table</summary>
            <table class="events">
            <tr><th scope="col">strategy</th><th scope="col" class="number">seed</th><th scope="col" class="number">second</th><th scope="col" class="number">node</th><th scope="col">event</th></tr>
            <tr><td>none</td><td class="number">1</td><td class="number">5.00</td><td class="number">0</td><td>signal</td></tr>
            <tr><td>none</td><td class="number">1</td><td class="number">5.20</td><td class="number">0</td><td>healthz503</td></tr>
            <tr><td>none</td><td class="number">1</td><td class="number">10.00</td><td class="number">0</td><td>nodeGone</td></tr>
            <tr><td>none</td><td class="number">1</td><td class="number">22.00</td><td class="number">0</td><td>outOfRotation</td></tr>
            <tr><td>none</td><td class="number">2</td><td class="number">5.00</td><td class="number">0</td><td>signal</td></tr>
            <tr><td>none</td><td class="number">2</td><td class="number">5.20</td><td class="number">0</td><td>healthz503</td></tr>
            <tr><td>none</td><td class="number">2</td><td class="number">10.00</td><td class="number">0</td><td>nodeGone</td></tr>
            <tr><td>none</td><td class="number">2</td><td class="number">16.00</td><td class="number">0</td><td>outOfRotation</td></tr>
            <tr><td>admin-state</td><td class="number">1</td><td class="number">5.00</td><td class="number">0</td><td>signal</td></tr>
            <tr><td>admin-state</td><td class="number">1</td><td class="number">5.20</td><td class="number">0</td><td>healthz503</td></tr>
            <tr><td>admin-state</td><td class="number">1</td><td class="number">10.00</td><td class="number">0</td><td>nodeGone</td></tr>
            <tr><td>admin-state</td><td class="number">1</td><td class="number">10.00</td><td class="number">0</td><td>outOfRotation</td></tr>
            </table>
            </details>
        "#]].assert_eq(&format!("{}{}", summary(&groups[0]), events(&groups[0])));
    }

    #[test]
    fn names_from_a_file_are_only_text() {
        let mut runs = runs();
        for run in &mut runs {
            run.scenario = "<script>alert(1)</script>".to_owned();
            run.strategy = "\"><img src=x>".to_owned();
            run.timeline[0].event = "<b>".to_owned();
        }
        let html = page(&runs).unwrap();
        for forbidden in ["<script", "<img", "<b>"] {
            assert!(!html.contains(forbidden), "{forbidden}");
        }
        assert!(html.contains("&lt;script&gt;alert(1)"));
    }

    #[test]
    fn a_busy_machine_is_named_on_the_page() {
        let mut runs = runs();
        runs[0].longest_lag_seconds = 1.25;
        let html = page(&runs).unwrap();
        assert!(html.contains("in 1 of 3 runs the machine was so busy"), "{html}");
        assert!(html.contains("up to 1.2 s late") || html.contains("up to 1.3 s late"));
    }

    #[test]
    fn the_picture_has_its_own_style_and_background() {
        let svg = picture(&runs()).unwrap().unwrap();
        assert!(svg.starts_with("<svg ") && svg.contains("prefers-color-scheme: dark"));
        let [style, background, first_text] = ["<style>", "height=\"100%\" fill=\"#FFFFFF\"", "<text"]
            .map(|part| svg.find(part).unwrap_or_else(|| panic!("{part} in {svg}")));
        assert!(style < background && background < first_text);
        assert_eq!(picture(&[]).unwrap(), None);
    }
}
