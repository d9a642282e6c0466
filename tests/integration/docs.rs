//! The commands in the README, the guides and the installation pages: each block runs in a sandbox, page after page, or its fence says
//! `cloud` after the language: it needs Azure, a registry, a kubelet, or the controllers of a release. A fence with `make` has targets of the
//! Makefile. Blocks of other pages must be shell that bash can read. Blocks of YAML must be values of the chart.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use headgate_http::server::Limits;
use headgate_test_kubernetes::{assets, control_plane, kubectl, scratch};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::{objects, succeed};
use crate::links::pages_below;
use crate::manifests::rendering::tools;
use crate::sandbox::command::Sandbox;

/// The pages whose blocks run, in this order. The chart that README.md installs has policies that refuse what the sandbox's own controllers
/// write, so they come before.
const PAGES: [&str; 13] = [
    "docs/guides/maintenance.md",
    "docs/guides/upgrade-uninstall.md",
    "README.md",
    "docs/guides/troubleshooting.md",
    "docs/guides/monitoring.md",
    "docs/guides/health-checks.md",
    "docs/guides/autoscalers.md",
    "docs/guides/spot-and-upgrades.md",
    "docs/guides/rolling-updates.md",
    "docs/install-aks.md",
    "docs/install-self-managed.md",
    "docs/install-other-clouds.md",
    "docs/reference/events.md",
];
/// Pages whose blocks are read only: they are for a cluster in trouble, or for this repository.
const READ_ONLY: [&str; 6] = [
    "docs/reference/runbooks.md",
    "docs/dev/lab.md",
    "manifests/README.md",
    "manifests/azure/README.md",
    "charts/headgate/README.md",
    "CONTRIBUTING.md",
];
/// What must stay executed, so that marks do not become the rule.
const MIN_EXECUTED: usize = 6;

/// A fenced block.
struct Block {
    page: &'static str,
    line: usize,
    is_console: bool,
    mark: Option<String>,
    text: String,
}

impl Block {
    fn name(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }

    /// The commands, and the output that the page shows. Commands of a `console` block begin with `$ `, and lines after a backslash go on.
    fn parts(&self) -> (String, String) {
        let (mut commands, mut output) = (String::new(), String::new());
        let mut continues = !self.is_console;
        for line in self.text.lines() {
            let command = line.strip_prefix("$ ").filter(|_| self.is_console);
            let part = if continues || command.is_some() {
                &mut commands
            } else {
                &mut output
            };
            writeln!(part, "{}", command.unwrap_or(line)).unwrap();
            continues = !self.is_console || (command.is_some() || continues) && line.ends_with('\\');
        }
        (commands, output)
    }

    fn commands(&self) -> String {
        self.parts().0
    }

    /// The first word of the output that the page shows.
    fn first_output(&self) -> Option<String> {
        let (_, output) = self.parts();
        let word = output.split(['"', ' ', '\n']).find(|word| word.len() > 1);
        word.map(str::to_owned)
    }
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The languages of blocks with commands.
const SHELL: &[&str] = &["sh", "bash", "console"];

/// The blocks of a text in these languages.
fn blocks_of(page: &'static str, text: &str, languages: &[&str]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<(bool, usize)> = None;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if let Some((is_wanted, indentation)) = open {
            if trimmed == "```" {
                open = None;
            } else if is_wanted {
                let block = blocks.last_mut().unwrap();
                writeln!(block.text, "{}", line.get(indentation..).unwrap_or_default()).unwrap();
            }
        } else if let Some(fence) = trimmed.strip_prefix("```") {
            let mut words = fence.split_whitespace();
            let language = words.next().unwrap_or_default();
            let is_wanted = languages.contains(&language);
            if is_wanted {
                blocks.push(Block {
                    page,
                    line: number + 1,
                    is_console: language == "console",
                    mark: words.next().map(str::to_owned),
                    text: String::new(),
                });
            }
            open = Some((is_wanted, line.len() - trimmed.len()));
        }
    }
    blocks
}

fn blocks(pages: &[&'static str]) -> Vec<Block> {
    let read = |page: &&'static str| blocks_of(page, &std::fs::read_to_string(repository(page)).unwrap(), SHELL);
    pages.iter().flat_map(read).collect()
}

#[test]
fn every_block_is_executed_or_marked() {
    let mut pages: Vec<String> = vec!["README.md".to_owned()];
    for directory in ["docs", "docs/guides"] {
        for entry in std::fs::read_dir(repository(directory)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if Path::new(&name).extension().is_some_and(|extension| extension == "md") && name != "SUMMARY.md" {
                pages.push(format!("{directory}/{name}"));
            }
        }
    }
    let missing: Vec<_> = pages.iter().filter(|page| !PAGES.contains(&page.as_str())).collect();
    assert!(missing.is_empty(), "add to PAGES: {missing:?}");
    let blocks = blocks(&PAGES);
    for block in &blocks {
        let mark = block.mark.as_deref();
        assert!(
            matches!(mark, None | Some("cloud" | "make")),
            "{}: {mark:?}",
            block.name()
        );
    }
    let executed = blocks.iter().filter(|block| block.mark.is_none()).count();
    assert!(executed >= MIN_EXECUTED, "{executed} of {} blocks run", blocks.len());
}

#[test]
fn blocks_that_make_runs_name_targets() {
    let makefile = std::fs::read_to_string(repository("Makefile")).unwrap();
    for block in blocks(&PAGES)
        .iter()
        .filter(|block| block.mark.as_deref() == Some("make"))
    {
        for line in block.text.lines() {
            let target = line
                .strip_prefix("make ")
                .and_then(|rest| rest.split_whitespace().next());
            let target = target.unwrap_or_else(|| panic!("{}: {line}", block.name()));
            assert!(makefile.contains(&format!("\n{target}: ")), "{}: {line}", block.name());
        }
    }
}

/// Bash reads every block, also of those that run nowhere.
#[test]
fn every_block_is_shell() {
    for block in blocks(&PAGES).iter().chain(&blocks(&READ_ONLY)) {
        let output = Command::new("bash")
            .args(["-n", "-c", &block.commands()])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}: {}",
            block.name(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// The chart takes each block of YAML as values, a list as `settings.signals.extra`, unless it begins like an object of Kubernetes.
#[test]
fn every_block_of_yaml_is_read() {
    let schema = std::fs::read_to_string(repository("charts/headgate/values.schema.json")).unwrap();
    let validator = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let mut pages = vec![repository("README.md")];
    pages_below(&repository("docs"), &mut pages);
    let mut taken = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        for block in blocks_of(String::leak(page.display().to_string()), &text, &["yaml"]) {
            let document: Value =
                serde_yaml::from_str(&block.text).unwrap_or_else(|error| panic!("{}: {error}", block.name()));
            let has = |key: &str| document.get(key).is_some();
            if ["metadata", "spec", "patches"].into_iter().any(has) {
                continue;
            }
            let values = if document.is_array() {
                json!({"settings": {"signals": {"extra": document}}})
            } else if has("notifications") {
                json!({"settings": document})
            } else {
                document
            };
            let errors: Vec<_> = validator.iter_errors(&values).map(|error| error.to_string()).collect();
            assert!(errors.is_empty(), "{}: {errors:?}", block.name());
            taken += 1;
        }
    }
    assert!(taken >= MIN_EXECUTED, "{taken}");
}

/// The functions of the runbooks show the events of Nodes, which are in `default`, whatever the namespace of the context is; the newest last.
#[tokio::test]
async fn node_events_are_shown_from_any_namespace() {
    let cluster = control_plane();
    let client = cluster.client();
    let events = Api::<Event>::namespaced(client, "default");
    for (name, is_last) in [("b-runbook", false), ("a-runbook", true)] {
        let event = json!({"metadata": {"name": name}, "eventTime": "2026-11-21T10:00:00.000000Z", "action": "Wrote", "reason": "Test",
            "regarding": {"apiVersion": "v1", "kind": "Node", "name": "runbook"}, "note": name, "type": "Normal",
            "reportingController": "headgate.dev/test", "reportingInstance": "test"});
        objects::create(&events, event).await;
        if !is_last {
            // Times of creation are whole seconds.
            tokio::time::sleep(Duration::from_millis(1100)).await;
        }
    }
    let elsewhere = scratch("runbooks").join("kubeconfig");
    std::fs::copy(&cluster.kubeconfig, &elsewhere).unwrap();
    succeed(kubectl(&elsewhere).args(["config", "set-context", "--current", "--namespace=elsewhere"]));
    let blocks = blocks(&["docs/reference/runbooks.md"]);
    let functions = blocks
        .iter()
        .find(|block| block.text.contains("node_events() {"))
        .unwrap();
    let programs = assets().program("kubectl").unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut bash = Command::new("bash");
    bash.arg("-c").arg(format!("{}\nnode_events", functions.text));
    bash.env("PATH", format!("{}:{path}", programs.parent().unwrap().display()));
    let shown = succeed(bash.env("KUBECONFIG", &elsewhere));
    let positions = ["b-runbook", "a-runbook"].map(|name| shown.find(name));
    assert!(
        positions.iter().all(Option::is_some) && positions.is_sorted(),
        "{shown}"
    );
}

#[test]
fn blocks_are_found_with_their_marks_and_commands() {
    let text = "1. ```sh cloud\n   az x\n   ```\n\n```yaml\n$ not this\n```\n```console\n$ a \\\n  b\n{\"out\": 1}\n$ c\n```\n";
    let blocks = blocks_of("page", &text.replacen("1. ", "   ", 1), SHELL);
    let found: Vec<_> = blocks
        .iter()
        .map(|block| {
            (
                block.line,
                block.mark.as_deref(),
                block.commands(),
                block.first_output(),
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            (1, Some("cloud"), "az x\n".to_owned(), None),
            (8, None, "a \\\n  b\nc\n".to_owned(), Some("out".to_owned())),
        ]
    );
}

/// The part of a page that an operator sizes by.
#[test]
fn the_security_page_has_the_limits_of_connections() {
    let page = std::fs::read_to_string(repository("docs/concepts/security.md")).unwrap();
    let health = Limits::HEALTH.max_connections;
    let (thousands, rest) = (health / 1000, health % 1000);
    let operations = Limits::OPERATIONS.max_connections;
    let words = format!("{thousands},{rest:03} on the health port, {operations} on the operations port");
    assert!(page.contains(&words), "{words}");
}

/// The string that a constant of this source has.
fn constant<'a>(source: &'a str, name: &str) -> &'a str {
    let (_, value) = source.split_once(&format!("const {name}: &str = \"")).unwrap();
    value.split('"').next().unwrap()
}

/// The reasons of events in one source: the first arguments of the two constructors, and, where the reason travels apart from its kind, the
/// words of an enum `EventReason` and constants whose comment says that they are the reason of an event.
fn event_reasons(source: &str) -> BTreeSet<String> {
    let arguments = ["EventKind::normal(", "EventKind::warning("].map(|start| source.split(start).skip(1));
    let of_kinds = arguments.into_iter().flatten().filter_map(|rest| {
        let argument = rest.split([',', ')']).next().unwrap().trim();
        match argument.strip_prefix('"') {
            Some(literal) => Some(literal.trim_end_matches('"')),
            // In lower case it is the parameter of a function.
            None if argument.chars().all(|letter| letter.is_uppercase() || letter == '_') => {
                Some(constant(source, argument))
            }
            None => None,
        }
    });
    let of_enums = source.split("enum EventReason {").skip(1).flat_map(|rest| {
        let body = rest.split('}').next().unwrap();
        body.split('"').skip(1).step_by(2)
    });
    let of_constants = source.split("/// The reason of the event ").skip(1).map(|rest| {
        let (_, name) = rest.split_once("const ").unwrap();
        constant(source, name.split(':').next().unwrap())
    });
    let reasons = of_kinds.chain(of_enums).chain(of_constants);
    reasons.map(ToOwned::to_owned).collect()
}

/// The sources of the product below a directory, without their tests.
pub(crate) fn sources(directory: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let is_test = path.file_stem().is_some_and(|name| name == "tests");
        if path.is_dir() && !is_test {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_test {
            let source = std::fs::read_to_string(&path).unwrap();
            let product = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
            found.push((path, product.to_owned()));
        }
    }
}

#[test]
fn reasons_of_events_are_found() {
    let rows: [(&str, &[&str]); 5] = [
        (
            "EventKind::normal(\"One\", \"Act\"); EventKind::warning(\n    \"Two\",",
            &["One", "Two"],
        ),
        (
            "const REASON: &str = \"Three\";\nEventKind::warning(REASON, ACTION)",
            &["Three"],
        ),
        (
            "/// The reason of the event about it.\nconst IT: &str = \"Four\";",
            &["Four"],
        ),
        (
            "pub enum EventReason {\n    /// Why.\n    Five = \"Five\",\n    Six = \"Other\",\n}",
            &["Five", "Other"],
        ),
        (
            "const OTHER: &str = \"Seven\"; fn normal(reason: &str) { EventKind::normal(reason, action) }",
            &[],
        ),
    ];
    for (source, expected) in rows {
        let expected: BTreeSet<String> = expected.iter().map(|&reason| reason.to_owned()).collect();
        assert_eq!(event_reasons(source), expected, "{source}");
    }
}

#[test]
fn events_page_has_exactly_the_reasons_that_the_product_records() {
    let mut found = Vec::new();
    sources(&repository("src"), &mut found);
    for entry in std::fs::read_dir(repository("crates")).unwrap() {
        sources(&entry.unwrap().path().join("src"), &mut found);
    }
    // A kind that is put together elsewhere would need another way to find its reason.
    let composed: BTreeSet<_> = found
        .iter()
        .filter(|(_, source)| {
            let used = source.replace("struct EventKind {", "").replace("impl EventKind {", "");
            used.contains("EventKind {")
        })
        .map(|(path, _)| path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().to_str().unwrap())
        .collect();
    let expected = [
        "crates/controller/src/local_pools/controller/reporter.rs",
        "crates/maintenance/src/controller/events.rs",
        "crates/maintenance/src/controller/executor/maintenance_writes.rs",
    ];
    assert_eq!(composed, expected.into());
    let recorded: BTreeSet<String> = found.iter().flat_map(|(_, source)| event_reasons(source)).collect();

    let page = std::fs::read_to_string(repository("docs/reference/events.md")).unwrap();
    let (events, _conditions) = page.split_once("\n## Node conditions\n").unwrap();
    let rows = events.lines().filter_map(|line| line.strip_prefix("- `"));
    let documented: BTreeSet<String> = rows
        .map(|row| row.split([':', '.']).next().unwrap())
        .flat_map(|reasons| reasons.split('`').step_by(2))
        .map(ToOwned::to_owned)
        .collect();
    assert_eq!(documented, recorded);
}

/// What the reader has filled in, or has at hand.
fn prepared(commands: &str, description: &Value) -> String {
    let healthz = description["nodes"][0]["healthz"].as_str().unwrap();
    let (_, port) = healthz.rsplit_once(':').unwrap();
    let kubeconfig = description["kubeconfig"].as_str().unwrap();
    let replaced = [
        ("DIR/kubeconfig", kubeconfig),
        ("127.0.0.1:PORT", healthz),
        ("PORT", port),
        ("REGISTRY", "registry.example.com"),
        ("node-7", "node-2"),
        (" NODE", " node-3"),
        ("/NODE", "/node-3"),
        (" NAME ", " web "),
    ];
    let commands = replaced
        .iter()
        .fold(commands.to_owned(), |text, (before, after)| text.replace(before, after));
    // In a sandbox the agents' operations ports are not the default one.
    let operations = description["nodes"][0]["metrics"].as_str().unwrap();
    format!(
        "reboot-node-2() {{ :; }}\nheadgate() {{ if [[ $1 == why ]]; then set -- \"$@\" --statusz http://{operations}/statusz; fi; \
         command headgate \"$@\"; }}\n{commands}"
    )
}

#[tokio::test]
async fn every_unmarked_block_runs_in_a_sandbox() {
    let mut sandbox = Sandbox::start(&["--workloads"]);
    let description = sandbox.description().await;
    let directory = scratch("docs");
    let azure = description["azureJson"].as_str().unwrap();
    std::fs::copy(azure, directory.join("azure.json")).unwrap();
    for name in ["charts", "manifests"] {
        std::os::unix::fs::symlink(repository(name), directory.join(name)).unwrap();
    }
    let plan =
        "apiVersion: headgate.dev/v1alpha1\nkind: NodeMaintenance\nmetadata: {name: kernel}\nspec: {stage: Drain}\n";
    std::fs::write(directory.join("kernel.yaml"), plan).unwrap();
    let programs = [
        Path::new(env!("CARGO_BIN_EXE_headgate")).parent().unwrap().to_owned(),
        assets().directory().to_owned(),
        tools().to_owned(),
    ];
    let own = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths(programs.into_iter().chain(std::env::split_paths(&own))).unwrap();
    let run = |name: &str, commands: &str| {
        let mut command = Command::new("timeout");
        command.args(["240", "bash", "-euo", "pipefail", "-c", commands]);
        command.current_dir(&directory).env("PATH", &path);
        command.env("KUBECONFIG", description["kubeconfig"].as_str().unwrap());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{name}: {}\n{commands}\n{said}", output.status);
        said
    };
    for block in blocks(&PAGES).iter().filter(|block| block.mark.is_none()) {
        let said = run(&block.name(), &prepared(&block.commands(), &description));
        if let Some(word) = block.first_output() {
            assert!(said.contains(&word), "{}: no {word:?} in {said}", block.name());
        }
    }
    sandbox.signal(Signal::SIGINT);
    assert_eq!(sandbox.exit_code().await, Some(0), "{}", sandbox.errors());
}
