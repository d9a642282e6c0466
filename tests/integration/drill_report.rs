//! The page of `headgate-lab drill-report` in a real browser: what it shows, in which colours, and that all of it can be read.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use expect_test::expect_file;
use headgate_drill::report::{page, saved};
use headgate_test_kubernetes::{assert_contains, lab_program, scratch};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{refused_for, stdout_of};

/// A drill that was really run.
const RESULTS: &str = include_str!("drill_report/scale-down.json");
/// The drills of the README's picture, without what happened when.
const PICTURE: &str = include_str!("../../docs/pictures/propagation.json");
/// How long the browser may take on a busy machine.
const BROWSER_TIMEOUT: Duration = Duration::from_mins(2);

/// Lets the page be measured: a copy of it may run this script.
const MEASURE: &str = include_str!("drill_report/measure.js");

fn lab(arguments: &[&str]) -> Output {
    let mut command = Command::new(lab_program());
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// The page of these results, in a file of its own.
fn write_page(results: &str) -> PathBuf {
    let directory = scratch("drill-report");
    let saved = directory.join("results.json");
    std::fs::write(&saved, results).unwrap();
    let page = directory.join("page.html");
    let output = lab(&[
        "drill-report",
        saved.to_str().unwrap(),
        "--html",
        page.to_str().unwrap(),
    ]);
    stdout_of(output);
    page
}

/// Loads a page, without a network, and gives the document as the browser has it then.
fn dump(page: &Path, more: &[&str]) -> String {
    let profile = scratch("browser-profile");
    let mut flags: Vec<OsString> = [
        "--headless",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--dump-dom",
    ]
    .map(OsString::from)
    .to_vec();
    if nix::unistd::geteuid().is_root() {
        flags.push("--no-sandbox".into());
    }
    let mut profile_flag = OsString::from("--user-data-dir=");
    profile_flag.push(&profile);
    flags.push(profile_flag);
    flags.extend(more.iter().map(OsString::from));
    let mut address = OsString::from("file://");
    address.push(page);
    flags.push(address);
    let dumped = profile.join("dom.html");
    let errors = profile.join("errors.log");
    let mut child = Command::new("chromium")
        .args(&flags)
        .env("HOME", &profile)
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&dumped).unwrap())
        .stderr(std::fs::File::create(&errors).unwrap())
        .process_group(0)
        .spawn()
        .unwrap();
    let group = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let started = std::time::Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if started.elapsed() > BROWSER_TIMEOUT {
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    // Its other processes; none is left when all of them ended with it.
    let _ = killpg(group, Signal::SIGKILL);
    let _ = child.wait();
    let log = || std::fs::read_to_string(&errors).unwrap_or_default();
    assert!(status.is_some_and(|status| status.success()), "{status:?}\n{}", log());
    let text = std::fs::read_to_string(&dumped).unwrap();
    assert!(text.contains("</html>"), "{text}\n{}", log());
    text
}

/// What the browser measured of a copy of the page that may run a script.
fn measure(page: &Path, more: &[&str]) -> Value {
    let text = std::fs::read_to_string(page).unwrap();
    let policy = "default-src 'none'; style-src 'unsafe-inline'";
    assert!(text.contains(policy), "{text}");
    let copy = text
        .replacen(
            policy,
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'",
            1,
        )
        .replacen("</body>", &format!("<script>\n{MEASURE}</script>\n</body>"), 1);
    let path = page.with_file_name("measured.html");
    std::fs::write(&path, copy).unwrap();
    let dom = dump(&path, more);
    let (_, rest) = dom
        .split_once("<pre id=\"measured\">")
        .unwrap_or_else(|| panic!("{dom}"));
    let (json, _) = rest.split_once("</pre>").unwrap();
    let json = json.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&json).unwrap()
}

/// The relative luminance of WCAG 2 of a colour such as `rgb(31, 35, 40)`.
fn luminance(color: &Value) -> f64 {
    let text = color.as_str().unwrap();
    let channels = text.trim_start_matches("rgb(").trim_end_matches(')').split(", ");
    let linear = |channel: &str| {
        let value = channel.parse::<f64>().unwrap_or_else(|_| panic!("{text}")) / 255.0;
        if value <= 0.04045 {
            value / 12.92
        } else {
            ((value + 0.055) / 1.055).powf(2.4)
        }
    };
    channels
        .map(linear)
        .zip([0.2126, 0.7152, 0.0722])
        .map(|(value, weight)| value * weight)
        .sum()
}

fn contrast(one: &Value, other: &Value) -> f64 {
    let [one, other] = [one, other].map(luminance);
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

#[test]
#[ignore = "needs chromium"]
fn the_page_shows_every_strategy_and_assumption_without_a_network() {
    let dom = dump(&write_page(RESULTS), &[]);
    assert_contains!(
        dom,
        "<title>headgate-lab drill: scale-down</title>",
        "id=\"connections-plot-0\"",
        "id=\"timeline-plot-0\"",
        "id=\"lost-plot-0\"",
        "What the figures assume",
        "scenario seconds for each real second",
        "real seconds late",
        "a flow keeps its backend until it ends",
        "Azure publishes no time"
    );
    let runs: Vec<Value> = serde_json::from_str(RESULTS).unwrap();
    for runs in runs.chunk_by(|one, other| one["strategy"] == other["strategy"]) {
        let sum = |name: &str| runs.iter().map(|run| run[name].as_u64().unwrap()).sum::<u64>();
        let text = format!(
            "{}: {} of {} new connections failed",
            runs[0]["strategy"].as_str().unwrap(),
            sum("failed"),
            sum("attempted")
        );
        // In the description for screen readers, and drawn.
        assert!(dom.matches(&text).count() >= 2, "{text} in {dom}");
        let commit = runs[0]["conditions"]["commit"].as_str().unwrap();
        assert!(dom.contains(commit), "{commit} in {dom}");
    }
}

#[test]
#[ignore = "needs chromium"]
fn text_of_the_plots_fits_and_contrasts_in_light_and_dark() {
    let page = write_page(RESULTS);
    let mut backgrounds = Vec::new();
    for (flag, is_dark) in [
        ("--blink-settings=preferredColorScheme=1", false),
        ("--blink-settings=preferredColorScheme=0", true),
    ] {
        let measured = measure(&page, &[flag, "--window-size=1200,900"]);
        assert_eq!(measured["dark"], is_dark, "{measured}");
        assert_eq!(measured["requests"], json!([]), "the page loads nothing");
        let background = &measured["background"];
        backgrounds.push(background.clone());
        let body = contrast(&measured["ink"], background);
        assert!(body >= 7.0, "{body} in {measured}");
        let plots = measured["plots"].as_array().unwrap();
        assert_eq!(plots.len(), 3, "{measured}");
        for plot in plots {
            let title = &plot["title"];
            assert!(plot["width"].as_f64().unwrap() > 600.0, "{plot}");
            assert!(plot["height"].as_f64().unwrap() > 100.0, "{plot}");
            assert!(plot["description"].as_str().unwrap().len() > 50, "{plot}");
            assert!(plot["texts"].as_u64().unwrap() > 8, "{plot}");
            assert_eq!(plot["outside"], json!([]), "{title}");
            assert_eq!(plot["overlapping"], json!([]), "{title}");
            for color in plot["colors"].as_array().unwrap() {
                let of_text = contrast(color, background);
                assert!(of_text >= 4.5, "{of_text} of {color} on {background} in {title}");
            }
        }
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
}

#[test]
#[ignore = "needs chromium"]
fn a_narrow_window_scrolls_tables_and_not_the_page() {
    let measured = measure(&write_page(RESULTS), &["--window-size=520,900"]);
    let [page, window] = ["scrollWidth", "clientWidth"].map(|name| measured[name].as_f64().unwrap());
    assert!(window < 700.0, "{measured}");
    assert!(page <= window, "{measured}");
}

#[test]
#[ignore = "needs network namespaces"]
fn a_drill_writes_the_page_of_its_own_results() {
    let directory = scratch("drill-html");
    let [page, picture] = ["page.html", "picture.svg"].map(|name| directory.join(name));
    let output = lab(&[
        "drill",
        "--scenario",
        "scale-down",
        "--strategy",
        "none",
        "--nodes",
        "2",
        "--commit",
        "0123abc",
        "--html",
        page.to_str().unwrap(),
        "--svg",
        picture.to_str().unwrap(),
        "-o",
        "json",
    ]);
    let runs: Value = serde_json::from_str(&stdout_of(output)).unwrap();
    let run = &runs[0];
    let sum = |field: &str| {
        let seconds = run["perSecond"].as_array().unwrap();
        seconds
            .iter()
            .map(|second| second[field].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!(json!(sum("attempted")), run["attempted"]);
    assert_eq!(json!(sum("failed")), run["failed"]);
    assert!(sum("failed") > 0, "the node dies unnoticed: {run}");
    let lost = run["establishedLostAt"].as_array().unwrap();
    assert_eq!(json!(lost.len()), run["establishedLost"]);
    let conditions = &run["conditions"];
    assert_eq!(
        (&conditions["nodes"], &conditions["commit"]),
        (&json!(2), &json!("0123abc"))
    );
    let html = std::fs::read_to_string(page).unwrap();
    let figures = format!("{} of {} new connections failed", run["failed"], run["attempted"]);
    assert_contains!(html, &figures, "commit 0123abc", "id=\"connections-plot-0\"");
    assert!(std::fs::read_to_string(picture).unwrap().contains(&figures));
}

#[test]
fn generated_picture_of_the_readme() {
    let runs = saved::parse(PICTURE).unwrap();
    let picture = page::propagation_picture(&runs).unwrap().unwrap();
    expect_file!["../../docs/pictures/propagation.svg"].assert_eq(&picture);
    // The caption states what it is made of.
    let readme = include_str!("../../README.md");
    let commit = runs[0].conditions.as_ref().unwrap().commit.as_deref().unwrap();
    let of_first = runs.iter().filter(|run| run.strategy == runs[0].strategy).count();
    for expected in [format!("commit {commit}"), format!("{of_first} runs")] {
        assert!(readme.contains(&expected), "{expected} in {readme}");
    }
}

#[test]
fn results_that_cannot_be_used_are_named() {
    let directory = scratch("drill-report-wrong");
    let path = directory.join("results.json");
    std::fs::write(&path, "[]").unwrap();
    let path = path.to_str().unwrap();
    for (arguments, expected) in [
        (vec!["drill-report", path], "nothing to write"),
        (vec!["drill-report", path, "--html", "/dev/null"], "contain no run"),
        (
            vec!["drill-report", "/nonexistent.json", "--html", "/dev/null"],
            "cannot read /nonexistent.json",
        ),
    ] {
        refused_for(&arguments, &lab(&arguments), 2, &[expected]);
    }
}
