//! What processes, API server and ARM did in one phase.

use std::collections::HashMap;
use std::fs;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tokio::time::{Instant, interval};

use crate::audit;
use crate::azure::{Azure, Traffic};
use crate::measuring::cores::load_average;
use crate::measuring::cpu_time;
use crate::measuring::figures::{float, mebibytes, rounded};
use crate::measuring::memory::{Memory, forget_peak};
use crate::scenario::Run;
use crate::traffic::{ApiTotals, Received};

/// Between two samples of the plots.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Between two counts of ARM's requests, before the emulator's journal drops them. An answer that is outstanding then is left out.
const COUNT_INTERVAL: Duration = Duration::from_mins(1);

/// Everything that a phase used.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Usage {
    pub(crate) seconds: f64,
    pub(crate) agents: AgentsUsage,
    /// The process that led at the end; `None` where it did not run from the beginning.
    pub(crate) leader: Option<ControllerUsage>,
    pub(crate) other_controller: Option<ControllerUsage>,
    /// Requests of headgate's processes.
    pub(crate) headgate_requests: Vec<RequestRate>,
    /// All requests that the API server counted, those of kubelets and of this program too.
    pub(crate) api_requests: Vec<RequestRate>,
    /// Bodies of all lists, whoever asked for them.
    pub(crate) api_list_mebibytes: f64,
    /// Events of all watches.
    pub(crate) api_watch_mebibytes: f64,
    pub(crate) arm_requests: usize,
    pub(crate) arm_puts: usize,
    pub(crate) arm_sent_mebibytes: f64,
    pub(crate) arm_received_mebibytes: f64,
    pub(crate) node_updates_per_second: f64,
    pub(crate) failed_node_updates: u64,
    /// All cores together are 100.
    pub(crate) machine_busy_percent: f64,
    pub(crate) load_average: String,
}

/// A figure of several processes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Spread {
    pub(crate) sum: f64,
    pub(crate) mean: f64,
    pub(crate) max: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        let sum: f64 = values.iter().sum();
        Self {
            sum: rounded(sum),
            mean: rounded(sum / float(values.len().max(1) as u64)),
            max: rounded(values.iter().copied().fold(0.0, f64::max)),
        }
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentsUsage {
    pub(crate) count: usize,
    /// Of one core.
    pub(crate) cpu_percent: Spread,
    pub(crate) resident_mebibytes: Spread,
    pub(crate) proportional_mebibytes: Spread,
    pub(crate) private_mebibytes: Spread,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ControllerUsage {
    pub(crate) cpu_seconds: f64,
    /// Of one core.
    pub(crate) cpu_percent: f64,
    pub(crate) resident_mebibytes: f64,
    /// Since the phase began.
    pub(crate) peak_mebibytes: f64,
    /// From the API server: answers, lists and events of watches, as TLS records.
    pub(crate) received_mebibytes: f64,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RequestRate {
    pub(crate) client: String,
    pub(crate) verb: String,
    pub(crate) resource: String,
    pub(crate) count: u64,
    pub(crate) per_second: f64,
}

/// A point of the plots.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sample {
    /// Since the beginning of the run.
    pub(crate) seconds: f64,
    pub(crate) leader_cpu_percent: f64,
    pub(crate) leader_resident_mebibytes: f64,
    pub(crate) agents_cpu_percent: f64,
}

/// What was recorded.
pub(crate) struct Recorded {
    /// When it began, in seconds since the beginning of the run.
    pub(crate) at: f64,
    pub(crate) usage: Usage,
    pub(crate) samples: Vec<Sample>,
    /// The last entry of the emulator's journal that is counted.
    pub(crate) journal: u64,
}

struct Snapshot {
    at: Instant,
    cpu: HashMap<u32, Duration>,
    received: Received,
    api: ApiTotals,
    /// Busy and all time of the machine, in ticks.
    machine: (f64, f64),
    updates: (u64, u64),
}

impl Snapshot {
    async fn take(run: &Run<'_>, processes: impl Iterator<Item = u32>) -> anyhow::Result<Self> {
        let cpu = processes.filter_map(|id| Some((id, cpu_time::process(id).ok()?)));
        Ok(Self {
            at: Instant::now(),
            cpu: cpu.collect(),
            received: Received::read(run.port)?,
            api: ApiTotals::read(&run.client).await?,
            machine: machine_ticks()?,
            updates: run.updates.counts(),
        })
    }
}

/// A phase that is being recorded.
pub(crate) struct Recording {
    run_begun: Instant,
    agents: Vec<u32>,
    controllers: Vec<u32>,
    before: Snapshot,
    journal: u64,
    traffic: Traffic,
    samples: Vec<Sample>,
    /// When the last sample was taken, and the processor time of leader and agents then.
    last: (Instant, Duration, Duration),
}

impl Recording {
    pub(crate) async fn begin(run: &Run<'_>) -> anyhow::Result<Self> {
        let (agents, controllers) = (run.fleet.agents(), run.fleet.controllers().await?);
        for controller in &controllers {
            forget_peak(*controller)?;
        }
        run.audit.read()?;
        let journal = run.azure.now().await?;
        let before = Snapshot::take(run, agents.iter().chain(&controllers).copied()).await?;
        let mut recording = Self {
            run_begun: run.begun,
            agents,
            controllers,
            before,
            journal,
            traffic: Traffic::default(),
            samples: Vec::new(),
            last: (Instant::now(), Duration::ZERO, Duration::ZERO),
        };
        recording.last = recording.times();
        Ok(recording)
    }

    /// Takes samples while `work` runs.
    pub(crate) async fn beside<T>(
        &mut self,
        azure: &Azure,
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let (mut journal, mut traffic) = (self.journal, self.traffic);
        let outcome = {
            let counting = async {
                let mut rounds = interval(COUNT_INTERVAL);
                rounds.tick().await;
                loop {
                    rounds.tick().await;
                    if let Err(error) = azure.add_since(&mut journal, &mut traffic).await {
                        return error;
                    }
                }
            };
            let (mut work, mut counting) = (pin!(work), pin!(counting));
            let mut ticks = interval(SAMPLE_INTERVAL);
            ticks.tick().await;
            loop {
                tokio::select! {
                    done = &mut work => break done,
                    error = &mut counting => break Err(error),
                    _ = ticks.tick() => self.sample(),
                }
            }
        };
        (self.journal, self.traffic) = (journal, traffic);
        outcome
    }

    fn times(&self) -> (Instant, Duration, Duration) {
        let of = |id: &u32| cpu_time::process(*id).unwrap_or_default();
        let leader = self.controllers.first().map(of).unwrap_or_default();
        (Instant::now(), leader, self.agents.iter().map(of).sum())
    }

    fn sample(&mut self) {
        let (now, last) = (self.times(), self.last);
        self.last = now;
        // A leader that was killed uses nothing any more.
        let resident = self.controllers.first().and_then(|id| Memory::of(*id).ok());
        let resident = resident.map_or(0, |memory| memory.resident);
        let percent = |now: Duration, last: Duration, wall: Duration| {
            rounded(now.saturating_sub(last).as_secs_f64() / wall.as_secs_f64().max(0.001) * 100.0)
        };
        let wall = now.0 - last.0;
        self.samples.push(Sample {
            seconds: rounded((now.0 - self.run_begun).as_secs_f64()),
            leader_cpu_percent: percent(now.1, last.1, wall),
            leader_resident_mebibytes: rounded(mebibytes(resident)),
            agents_cpu_percent: percent(now.2, last.2, wall),
        });
    }

    pub(crate) async fn end(mut self, run: &Run<'_>) -> anyhow::Result<Recorded> {
        let controllers = run.fleet.controllers().await?;
        let after = Snapshot::take(run, self.agents.iter().chain(&controllers).copied()).await?;
        let seconds = (after.at - self.before.at).as_secs_f64();
        let requests = run.audit.read()?;
        run.azure.add_since(&mut self.journal, &mut self.traffic).await?;
        let traffic = self.traffic;
        let api = after.api.since(&self.before.api);
        let controller = |id: Option<&u32>| id.and_then(|id| self.controller(*id, &after, seconds));
        let per_second = |count: u64| rounded(float(count) / seconds);
        let headgate = audit::counts(&requests).into_iter();
        let headgate = headgate.filter(|((client, ..), _)| client.starts_with("headgate-"));
        let headgate = headgate.map(|((client, verb, resource), count)| RequestRate {
            client,
            verb,
            resource,
            count,
            per_second: per_second(count),
        });
        let all = api.requests().map(|(verb, resource, count)| RequestRate {
            client: "all".to_owned(),
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            count: whole(count),
            per_second: rounded(count / seconds),
        });
        let (busy, ticks) = (
            after.machine.0 - self.before.machine.0,
            after.machine.1 - self.before.machine.1,
        );
        let usage = Usage {
            seconds: rounded(seconds),
            agents: self.agents(&after, seconds)?,
            leader: controller(controllers.first()),
            other_controller: controller(controllers.get(1)),
            headgate_requests: headgate.collect(),
            api_requests: all.collect(),
            api_list_mebibytes: rounded(api.list_bytes() / 1024.0 / 1024.0),
            api_watch_mebibytes: rounded(api.watch_bytes() / 1024.0 / 1024.0),
            arm_requests: traffic.requests,
            arm_puts: traffic.puts,
            arm_sent_mebibytes: rounded(mebibytes(traffic.sent)),
            arm_received_mebibytes: rounded(mebibytes(traffic.received)),
            node_updates_per_second: per_second(after.updates.0 - self.before.updates.0),
            failed_node_updates: after.updates.1 - self.before.updates.1,
            machine_busy_percent: rounded(busy / ticks.max(1.0) * 100.0),
            load_average: load_average(),
        };
        Ok(Recorded {
            at: rounded((self.before.at - self.run_begun).as_secs_f64()),
            usage,
            samples: self.samples,
            journal: self.journal,
        })
    }

    fn controller(&self, id: u32, after: &Snapshot, seconds: f64) -> Option<ControllerUsage> {
        let used = after.cpu.get(&id)?.saturating_sub(*self.before.cpu.get(&id)?);
        let memory = Memory::of(id).ok()?;
        Some(ControllerUsage {
            cpu_seconds: rounded(used.as_secs_f64()),
            cpu_percent: rounded(used.as_secs_f64() / seconds * 100.0),
            resident_mebibytes: rounded(mebibytes(memory.resident)),
            peak_mebibytes: rounded(mebibytes(memory.peak)),
            received_mebibytes: rounded(mebibytes(after.received.since(&self.before.received, id))),
        })
    }

    fn agents(&self, after: &Snapshot, seconds: f64) -> anyhow::Result<AgentsUsage> {
        let mut figures: [Vec<f64>; 4] = Default::default();
        for id in &self.agents {
            let cpu = |snapshot: &Snapshot| snapshot.cpu.get(id).copied().context("an agent has ended");
            let used = cpu(after)?.saturating_sub(cpu(&self.before)?);
            let [resident, proportional, private] = shares(*id)?;
            let all = [used.as_secs_f64() / seconds * 100.0, resident, proportional, private];
            for (figure, value) in figures.iter_mut().zip(all) {
                figure.push(value);
            }
        }
        let [cpu, resident, proportional, private] = figures.map(|values| Spread::of(&values));
        Ok(AgentsUsage {
            count: self.agents.len(),
            cpu_percent: cpu,
            resident_mebibytes: resident,
            proportional_mebibytes: proportional,
            private_mebibytes: private,
        })
    }
}

/// Resident, proportional and private memory of a process, in MiB. Pages of the program that agents share are proportional.
fn shares(process: u32) -> anyhow::Result<[f64; 3]> {
    let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).context("memory of an agent")?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kilobytes
            .map(|kilobytes| mebibytes(kilobytes * 1024))
            .with_context(|| format!("{name} of an agent"))
    };
    Ok([
        field("Rss")?,
        field("Pss")?,
        field("Private_Clean")? + field("Private_Dirty")?,
    ])
}

fn machine_ticks() -> anyhow::Result<(f64, f64)> {
    let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|field| field.parse().ok())
        .collect();
    // The fourth and the fifth are idle, and idle beside a disk.
    let idle: f64 = ticks.iter().skip(3).take(2).sum();
    let all: f64 = ticks.iter().sum();
    Ok((all - idle, all))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a counter of requests"
)]
fn whole(count: f64) -> u64 {
    count as u64
}
