//! The report of a run: JSON, Markdown, and plots as SVG.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use headgate_drill::report::page::series_picture;
use headgate_drill::report::{Series, SeriesLine};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::computed::{Computed, computed};
use crate::measuring::cores::Cores;
use crate::measuring::output::say;
use crate::measuring::report::Check;
use crate::options::Options;
use crate::recording::{ControllerUsage, Recorded, RequestRate, Sample, Spread, Usage};
use crate::signals::Latencies;

/// Rows of the API server's own counts that the text shows of each phase; the JSON has all.
const MAX_ROWS: usize = 8;

/// On what and of what the run was.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Conditions {
    commit: String,
    command: String,
    begun: Timestamp,
    ended: Timestamp,
    cores: usize,
    kernel: String,
    program: &'static str,
    load_average_before: String,
    pub(crate) nodes: usize,
    agents: usize,
    minutes: u32,
}

impl Conditions {
    pub(crate) fn read(options: &Options, load_average_before: String, begun: Timestamp) -> anyhow::Result<Self> {
        let commit = env::var("HEADGATE_COMMIT").ok().filter(|commit| !commit.is_empty());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("the kernel's release")?;
        let is_given = options.program != Path::new(crate::measuring::BINARY);
        Ok(Self {
            commit: commit.unwrap_or_else(|| "not stated".to_owned()),
            command: options.command(),
            begun,
            ended: Timestamp::now(),
            cores: Cores::take()?.count(),
            kernel: kernel.trim().to_owned(),
            program: if is_given {
                "another build, from HEADGATE_PROGRAM"
            } else {
                "of this build"
            },
            load_average_before,
            nodes: options.nodes,
            agents: options.agents,
            minutes: options.minutes,
        })
    }
}

/// The ledger's text, and what is in it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct LedgerSize {
    pub(crate) bytes: usize,
    pub(crate) entries: usize,
}

/// One phase.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    /// When it began, in seconds since the beginning of the run.
    at: f64,
    pub(crate) usage: Usage,
    pub(crate) signals: Option<Latencies>,
    pub(crate) ledger: Option<LedgerSize>,
    facts: Vec<(&'static str, Value)>,
    checks: Vec<Check>,
    samples: Vec<Sample>,
}

impl Phase {
    pub(crate) fn new(name: &'static str, recorded: Recorded, checks: Vec<Check>) -> Self {
        let Recorded { at, usage, samples, .. } = recorded;
        Self {
            name,
            at,
            usage,
            samples,
            checks,
            signals: None,
            ledger: None,
            facts: Vec::new(),
        }
    }

    pub(crate) fn fact(&mut self, about: &'static str, value: impl Into<Value>) {
        self.facts.push((about, value.into()));
    }
}

/// Everything that a run showed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    conditions: Conditions,
    /// What kept the phases that are missing from happening.
    broken_off: Option<String>,
    phases: Vec<Phase>,
    /// For 100,000 Nodes.
    computed: Vec<Computed>,
}

impl Report {
    pub(crate) fn new(conditions: Conditions, phases: Vec<Phase>, broken_off: Option<String>) -> Self {
        let computed = computed(&conditions, &phases);
        Self {
            conditions,
            broken_off,
            phases,
            computed,
        }
    }

    /// Writes all files, and prints the text.
    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(directory).with_context(|| format!("{} cannot be made", directory.display()))?;
        let write = |name: &str, text: &str| {
            let file = directory.join(name);
            fs::write(&file, text).with_context(|| format!("{} cannot be written", file.display()))
        };
        write("report.json", &(serde_json::to_string_pretty(self)? + "\n"))?;
        let text = self.markdown();
        write("report.md", &text)?;
        for (name, series) in self.plots() {
            write(name, &series_picture(&series)?)?;
        }
        say(&text);
        say(&format!("written to {}", directory.display()));
        Ok(())
    }

    fn markdown(&self) -> String {
        let Conditions {
            nodes, agents, minutes, ..
        } = self.conditions;
        let mut text = format!(
            "# {nodes} Nodes, {agents} agents, {minutes} minutes\n\n{}\n",
            self.conditions()
        );
        if let Some(error) = &self.broken_off {
            let _ = writeln!(text, "\n**Broken off**, so phases are missing: {error}");
        }
        text.push_str("\n## Budgets\n\n| figure | measured | budget | |\n|---|---|---|---|\n");
        for check in self.phases.iter().flat_map(|phase| &phase.checks) {
            let verdict = check.pass.map_or("–", |pass| if pass { "met" } else { "**missed**" });
            let budget = check.budget.as_deref().unwrap_or("–");
            row(
                &mut text,
                &[
                    &check.figure,
                    &format!("{} {}", check.value, check.unit),
                    budget,
                    verdict,
                ],
            );
        }
        text.push_str(&self.latencies());
        text.push_str(&self.controllers());
        text.push_str(&self.agents());
        text.push_str(&self.requests());
        text.push_str("\n## What else was seen\n\n");
        for phase in &self.phases {
            for (about, value) in &phase.facts {
                let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let _ = writeln!(text, "- {}: {about}: {value}", phase.name);
            }
        }
        text.push_str("\n## Computed for 100,000 Nodes, not measured\n\n| figure | computed | from |\n|---|---|---|\n");
        for Computed {
            figure,
            value,
            unit,
            from,
        } in &self.computed
        {
            row(&mut text, &[figure, &format!("{value} {unit}"), from]);
        }
        text.push_str(
            "\n![Processor time](cpu.svg)\n\n![Memory of the leader](memory.svg)\n\n![Signal to Down](signals.svg)\n",
        );
        text
    }

    fn conditions(&self) -> String {
        let Conditions {
            commit,
            command,
            begun,
            ended,
            cores,
            kernel,
            program,
            load_average_before,
            ..
        } = &self.conditions;
        let kubelets = if self.conditions.nodes <= 10_000 {
            "kwok renews the Leases"
        } else {
            "this program renews the Leases"
        };
        format!(
            "`{command}`, commit {commit}, program {program}, {cores} cores, Linux {kernel}, from {begun:.0} to {ended:.0}, load average \
             {load_average_before} before. Everything runs on these cores: etcd, kube-apiserver, the emulator of Azure, what plays the kubelets \
             ({kubelets}), and what measures. 10 load balancers with {} entries each, half of them addresses and half network interfaces; \
             2,000 Services of type `LoadBalancer` with the policy `Local`, each with one EndpointSlice of 10 endpoints.",
            self.conditions.nodes.min(5000)
        )
    }

    fn latencies(&self) -> String {
        let mut text = "\n## Signal → `Down`\n\nFrom the PATCH of the taint being sent until the leader has read all entries of the Node as \
            `Down`: the time of its event. A signal that was not seen counts in the percentiles as longer than all others.\n\n| phase | signals | Down | mean | p50 | p99 | longest seen |\n|---|---|---|---|---|---|---|\n"
            .to_owned();
        for phase in &self.phases {
            let Some(times) = &phase.signals else { continue };
            let seconds = |seconds: f64| format!("{seconds:.2} s");
            let not_stated = match times.signals - times.downs {
                0 => format!("of {} not stated", times.signals),
                unseen => format!("of {}, {unseen} of them not seen, not stated", times.signals),
            };
            let of_all = |time: Option<f64>| time.map_or_else(|| not_stated.clone(), seconds);
            row(
                &mut text,
                &[
                    phase.name,
                    &times.signals.to_string(),
                    &times.downs.to_string(),
                    &seconds(times.mean_seconds),
                    &of_all(times.p50_seconds),
                    &of_all(times.p99_seconds),
                    &seconds(times.max_seconds),
                ],
            );
        }
        text
    }

    fn controllers(&self) -> String {
        let mut text = "\n## Controllers, ARM and the machine\n\nProcessor time is of one core; of the machine, all cores are 100 %. Received is what \
            the kernel counted on open connections to the API server. Churn \
            is recorded until its last signal, peaks of memory are those of each phase.\n\n| phase | seconds | leader: CPU | resident, peak | received | other \
            controller: CPU, resident | PUTs | requests to ARM | lists, watches of all clients | Node updates | machine busy, load |\n\
            |---|---|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
        for Phase { name, usage, .. } in &self.phases {
            let cell = |usage: &Option<ControllerUsage>, show: fn(&ControllerUsage) -> String| {
                usage.as_ref().map_or_else(|| "–".to_owned(), show)
            };
            row(
                &mut text,
                &[
                    name,
                    &format!("{:.0}", usage.seconds),
                    &cell(&usage.leader, |usage| format!("{:.1} %", usage.cpu_percent)),
                    &cell(&usage.leader, |usage| {
                        format!("{:.1}, {:.1} MiB", usage.resident_mebibytes, usage.peak_mebibytes)
                    }),
                    &cell(&usage.leader, |usage| format!("{:.1} MiB", usage.received_mebibytes)),
                    &cell(&usage.other_controller, |usage| {
                        format!("{:.1} %, {:.1} MiB", usage.cpu_percent, usage.resident_mebibytes)
                    }),
                    &usage.arm_puts.to_string(),
                    &usage.arm_requests.to_string(),
                    &format!("{:.1}, {:.1} MiB", usage.api_list_mebibytes, usage.api_watch_mebibytes),
                    &format!("{:.1} a second", usage.node_updates_per_second),
                    &format!("{:.0} %, {}", usage.machine_busy_percent, usage.load_average),
                ],
            );
        }
        text
    }

    fn agents(&self) -> String {
        let mut text = format!(
            "\n## {} agents\n\nSum, mean and largest of one agent. Processor time in % of one core, memory in MiB.\n\n| phase | CPU | resident | \
             proportional | private |\n|---|---|---|---|---|\n",
            self.conditions.agents
        );
        for Phase { name, usage, .. } in &self.phases {
            let cell = |Spread { sum, mean, max }: Spread| format!("{sum:.1}, {mean:.2}, {max:.2}");
            let agents = &usage.agents;
            row(
                &mut text,
                &[
                    name,
                    &cell(agents.cpu_percent),
                    &cell(agents.resident_mebibytes),
                    &cell(agents.proportional_mebibytes),
                    &cell(agents.private_mebibytes),
                ],
            );
        }
        text
    }

    fn requests(&self) -> String {
        let mut text = format!(
            "\n## Requests to the API server\n\nThose of headgate from the audit log; those of all clients, kubelets and this program included, from \
             kube-apiserver's metrics: the {MAX_ROWS} most frequent, a watch counted at its end.\n\n| phase | client | verb | resource | requests | a \
             second |\n|---|---|---|---|---|---|\n"
        );
        for Phase { name, usage, .. } in &self.phases {
            let mut all: Vec<&RequestRate> = usage.api_requests.iter().collect();
            all.sort_by_key(|rate| std::cmp::Reverse(rate.count));
            for rate in usage.headgate_requests.iter().chain(all.into_iter().take(MAX_ROWS)) {
                let RequestRate {
                    client,
                    verb,
                    resource,
                    count,
                    per_second,
                } = rate;
                row(
                    &mut text,
                    &[
                        name,
                        client,
                        verb,
                        resource,
                        &count.to_string(),
                        &per_second.to_string(),
                    ],
                );
            }
        }
        text
    }

    fn plots(&self) -> [(&'static str, Series); 3] {
        let samples = |name: &str, value: fn(&Sample) -> f64| SeriesLine {
            name: name.to_owned(),
            points: self
                .phases
                .iter()
                .flat_map(|phase| &phase.samples)
                .map(|sample| (sample.seconds, value(sample)))
                .collect(),
            is_joined: true,
        };
        let signals = SeriesLine {
            name: "a signal".to_owned(),
            points: self
                .phases
                .iter()
                .filter_map(|phase| phase.signals.as_ref())
                .flat_map(|signals| signals.times.clone())
                .collect(),
            is_joined: false,
        };
        let marks: Vec<_> = self
            .phases
            .iter()
            .map(|phase| (phase.at, phase.name.to_owned()))
            .collect();
        let Conditions {
            commit,
            nodes,
            agents,
            cores,
            ..
        } = &self.conditions;
        let plot = |title: &str, y: &str, lines| Series {
            title: title.to_owned(),
            caption: format!("{nodes} Nodes, {agents} agents, {cores} cores for everything; commit {commit}"),
            y: y.to_owned(),
            lines,
            marks: marks.clone(),
        };
        [
            (
                "cpu.svg",
                plot(
                    "Processor time",
                    "% of one core",
                    vec![
                        samples("leader", |sample| sample.leader_cpu_percent),
                        samples("all agents", |sample| sample.agents_cpu_percent),
                    ],
                ),
            ),
            (
                "memory.svg",
                plot(
                    "Resident memory of the leader",
                    "MiB",
                    vec![samples("leader", |sample| sample.leader_resident_mebibytes)],
                ),
            ),
            ("signals.svg", plot("From a signal to Down", "seconds", vec![signals])),
        ]
    }
}

fn row(text: &mut String, cells: &[&str]) {
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}
