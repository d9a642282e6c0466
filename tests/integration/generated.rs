//! What is generated is checked in and compared here; `make docs` writes it anew.

use std::fmt::Write as _;

use expect_test::expect_file;
use headgate::config::{Settings, reference, schema};

#[test]
fn generated_settings_reference() {
    expect_file!["../../docs/settings.md"].assert_eq(&reference());
}

#[test]
fn generated_settings_schema() {
    let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
    expect_file!["../../docs/settings.schema.json"].assert_eq(&text);
}

#[test]
fn generated_cli_reference() {
    let options = clap_markdown::MarkdownOptions::new()
        .title("Command line".to_owned())
        .show_footer(false)
        .show_table_of_contents(false);
    let text = clap_markdown::help_markdown_command_custom(&headgate::cli::definition(), &options);
    expect_file!["../../docs/cli.md"].assert_eq(&text);
}

#[test]
fn generated_metrics_list() {
    let text = headgate::agent::metrics_at_start(&Settings::default()).unwrap();
    let mut kinds: Vec<(String, String, String)> = Vec::new();
    let mut help = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').unwrap().1;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let suffix = if kind == "counter" { "_total" } else { "" };
            kinds.push((format!("{name}{suffix}"), kind.to_owned(), help.to_owned()));
        }
    }
    kinds.sort();
    let mut list = String::from(
        "# Metrics\n\n<!-- Generated from the registry by `make docs`; a test compares it. -->\n\n\
         Served at `/metrics` of the operations port, as OpenMetrics or Prometheus text by the Accept header.\n\n\
         | name | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for (name, kind, help) in kinds {
        let sample = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
        let labels = sample
            .and_then(|line| line.split_once('{')?.1.split_once('}'))
            .map_or("", |(labels, _)| labels);
        let labels: Vec<_> = labels
            .split(',')
            .filter_map(|label| label.split_once('='))
            .map(|(n, _)| format!("`{n}`"))
            .collect();
        writeln!(list, "| `{name}` | {kind} | {} | {help} |", labels.join(", ")).unwrap();
    }
    list.push_str(
        "\nWhat to look at: `proxy_healthz_total{code=\"503\"}` rising while `proxy_livez_total{code=\"503\"}` is flat means \
         that the node is going away; both rising means that kube-proxy's data plane is stale. The rates mirror how \
         often the load balancers probe: alert on ratios, not on counts.\n",
    );
    expect_file!["../../docs/metrics.md"].assert_eq(&list);
}
