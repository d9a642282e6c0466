//! The phases of a run. Each is recorded, and fails where it did not happen: no signal was seen, or ARM got no PUT.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use headgate_sandbox::process::Process;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::DeleteParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, interval, sleep, timeout};

use crate::audit;
use crate::azure_emulator::node_name;
use crate::documents::TENTH_LABEL;
use crate::fleet::{Fleet, is_settled};
use crate::measuring::cpu_time;
use crate::measuring::figures::{float, millis, percentile, rounded};
use crate::measuring::output::say;
use crate::measuring::report::{Budget, Check};
use crate::node_updates::NodeUpdates;
use crate::options::Options;
use crate::program::count;
use crate::recording::Recording;
use crate::report::Phase;
use crate::scenario::{LOAD_BALANCERS, Run, members};
use crate::signals::{self, Signals};
use crate::world::create_node;

/// Updates of Nodes each second in churn.
const CHURN_RATE: f64 = 80.0;
/// In churn a Node is deleted so long after its signal, and created again so long after that: no two begin at the same moment.
const GONE_AFTER: Duration = Duration::from_secs(10);
const BACK_AFTER: Duration = Duration::from_millis(5500);
/// ARM's limit of writes: 1,000 in 5 minutes.
const ARM_WRITES_PER_SECOND: f64 = 1000.0 / 300.0;
/// A busier machine measures itself: what is late does not cost, and what waits is written together.
const MOST_BUSY_PERCENT: f64 = 95.0;
/// Within 290 s each agent watches its own Node anew.
const LEAST_REST_SECONDS: f64 = 300.0;
/// For what a phase waits for.
const PATIENCE: Duration = Duration::from_mins(5);
/// Until nothing is `Down` any more. The ledger keeps what was given back for 5 minutes, and takes no more once it is full.
const RESTORE_PATIENCE: Duration = Duration::from_mins(15);
/// For kubectl, which waits for the answer to each request.
const KUBECTL_PATIENCE: Duration = Duration::from_hours(1);
/// A signal for which `adminState.maxNewDown` counts.
const MAINTENANCE_TAINT: &str = "headgate.dev/maintenance";
/// Of ten Nodes so many are tainted.
const TAINTED_TENTHS: usize = 3;
/// The entries of Nodes with a signal are counted in one of these.
const DECIDED: [&str; 3] = [DESIRED_DOWN, WAITING, HELD_BACK];
const DESIRED_DOWN: &str = "headgate_pool_desired_down";
const WAITING: &str = "headgate_pool_waiting";
const HELD_BACK: &str = "headgate_pool_held_back";
/// Between two signals with the slow ARM.
const SLOW_SIGNAL_INTERVAL: Duration = Duration::from_secs(2);
/// Concurrent requests to the API server.
const AT_ONCE: usize = 16;
const LOOK: Duration = Duration::from_millis(20);

pub(crate) async fn at_rest(run: &mut Run<'_>) -> anyhow::Result<Phase> {
    let length = run.options.share(10);
    let mut recording = begin(run, "at rest", length).await?;
    let rate = run.updates.rate_at_rest();
    let resting = async {
        sleep(length).await;
        Ok(())
    };
    recording
        .beside(&run.azure, beside_updates(&run.updates, rate, resting))
        .await?;
    let recorded = recording.end(run).await?;
    let (mut leases, mut others) = (0, 0);
    for request in &recorded.usage.headgate_requests {
        match (
            request.client.as_str(),
            request.verb.as_str(),
            request.resource.as_str(),
        ) {
            ("headgate-agent", "watch", _) => {}
            ("headgate-agent", _, "leases") => leases += request.count,
            ("headgate-agent", ..) => others += request.count,
            _ => {}
        }
    }
    let seconds = recorded.usage.seconds;
    let thousands = float(run.options.agents as u64) / 1000.0;
    let agents = &recorded.usage.agents;
    let mut others = Check::new(
        "other requests of 1,000 agents at rest but watches",
        float(others) / seconds / thousands,
        "a second",
        None,
        Budget::Most(0.0),
    );
    if seconds < LEAST_REST_SECONDS {
        others = without_verdict(others, "not every agent has listed its Node in this time");
    }
    let checks = vec![
        Check::new(
            "Lease requests of 1,000 agents at rest",
            float(leases) / seconds / thousands,
            "a second",
            None,
            Budget::Most(1.0),
        ),
        others,
        Check::new(
            "the largest agent at rest: resident memory",
            agents.resident_mebibytes.max,
            "MiB",
            None,
            Budget::Most(10.0),
        ),
        Check::new(
            "the largest agent at rest: proportional memory, with its share of the pages that all agents have here",
            agents.proportional_mebibytes.max,
            "MiB",
            None,
            Budget::None,
        ),
    ];
    Ok(Phase::new("at rest", recorded, checks))
}

/// The same figure without a verdict, and why.
fn without_verdict(check: Check, why: &str) -> Check {
    Check {
        budget: check.budget.map(|budget| format!("{budget}; no verdict: {why}")),
        pass: None,
        ..check
    }
}

/// Changes of Nodes, and each second one that gets a signal, is deleted and comes back. What processes use is recorded until the last signal, and
/// PUTs are counted until everything is in service again.
pub(crate) async fn churn(run: &mut Run<'_>) -> anyhow::Result<Phase> {
    let run = &*run;
    let length = run.options.share(50);
    let mut recording = begin(run, "churn", length).await?;
    let leader = run.fleet.controllers().await?.first().copied();
    let (signals, begun) = (Signals::default(), Instant::now());
    let (client, nodes, is_over) = (&run.client, run.options.nodes, Cell::new(false));
    let lives = async {
        let seconds = stream::unfold(interval(Duration::from_secs(1)), async |mut ticks| {
            ticks.tick().await;
            (begun.elapsed() < length).then_some(((), ticks))
        });
        seconds
            .enumerate()
            .map(|(number, ())| anyhow::Ok(nodes - 1 - number % (nodes / 2)))
            .try_for_each_concurrent(None, async |node| come_and_go(client, &signals, node).await)
            .await?;
        is_over.set(true);
        Ok(())
    };
    let working = async {
        let follow = signals.follow(client, Duration::ZERO, || is_over.get());
        tokio::try_join!(lives, follow).map(drop)
    };
    let load = async {
        let sending = async {
            sleep(length).await;
            Ok(())
        };
        recording.beside(&run.azure, sending).await?;
        recording.end(run).await
    };
    let (recorded, ()) = tokio::try_join!(load, beside_updates(&run.updates, CHURN_RATE, working))?;
    let has_led = run.fleet.controllers().await?.first().copied() == leader;
    restored(&run.fleet).await?;
    let puts = recorded.usage.arm_puts + run.azure.since(recorded.journal).await?.puts;
    let latencies = signals.latencies(run.begun);
    ensure!(latencies.downs > 0, "no signal was seen");
    ensure!(puts > 0, "ARM got no PUT");
    let mut checks = leader_checks(run.options, recorded.usage.leader.as_ref());
    checks.push(Check::new(
        "PUTs of a signal and its end, of which there is one a second; ARM allows 1,000 in 5 minutes",
        float(puts as u64) / float(latencies.signals as u64),
        "a second",
        None,
        Budget::Most(rounded(ARM_WRITES_PER_SECOND)),
    ));
    // On a machine that has no time left a figure within its budget says nothing.
    let is_busy = recorded.usage.machine_busy_percent > MOST_BUSY_PERCENT;
    let judged = |check: Check| match check.pass {
        _ if !has_led => without_verdict(check, "another one leads since"),
        Some(true) if is_busy => without_verdict(check, "machine busy"),
        _ => check,
    };
    let checks = checks.into_iter().map(judged).collect();
    let mut phase = Phase::new("churn", recorded, checks);
    phase.signals = Some(latencies);
    Ok(phase)
}

async fn come_and_go(client: &Client, signals: &Signals, node: usize) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(client.clone());
    signals.send(client, node).await.context("a signal")?;
    sleep(GONE_AFTER).await;
    nodes
        .delete(&node_name(node), &DeleteParams::default())
        .await
        .context("deleting a Node")?;
    sleep(BACK_AFTER).await;
    create_node(&nodes, node).await.context("creating a Node again")
}

/// What the issue of scale allows the leader.
fn leader_checks(options: &Options, leader: Option<&crate::recording::ControllerUsage>) -> Vec<Check> {
    let (memory, processor) = if options.nodes <= 10_000 {
        (80.0, 20.0)
    } else {
        (300.0, 100.0)
    };
    let Some(leader) = leader else { return Vec::new() };
    vec![
        Check::new(
            "leader in churn: resident memory, at its peak",
            leader.peak_mebibytes,
            "MiB",
            None,
            Budget::Most(memory),
        ),
        Check::new(
            "leader in churn: processor time",
            leader.cpu_percent,
            "% of a core",
            None,
            Budget::Most(processor),
        ),
    ]
}

/// Signals that arrive while another writer has the shared Lease, so all are there when the leader gets it.
pub(crate) async fn burst(run: &mut Run<'_>) -> anyhow::Result<Phase> {
    let (first, signals) = (run.options.agents, run.options.burst());
    let mut recording = begin(run, "signals at once", Duration::ZERO).await?;
    let range = first..first + signals;
    let in_pools = (0..LOAD_BALANCERS).map(|pool| {
        members(run.options, pool)
            .iter()
            .filter(|node| range.contains(*node))
            .count()
    });
    let in_pools: Vec<usize> = in_pools.filter(|entries| *entries > 0).collect();
    let expected: usize = in_pools.iter().sum();
    let leader = *run.fleet.controllers().await?.first().context("a leader")?;
    let (world, fleet, azure) = (&run.world, &run.fleet, &run.azure);
    let working = async {
        world.take_lock().await?;
        world.taint(range.clone(), true).await?;
        let decided = |metrics: &str| count(metrics, "headgate_pool_desired_down") >= expected;
        reach(fleet, "all signals are seen", decided).await?;
        let (journal, before, begun) = (azure.now().await?, cpu_time::process(leader)?, Instant::now());
        world.release_lock().await?;
        // Only then are metrics asked for: an answer costs the leader processor time, too.
        let written = until(async || Ok(azure.since(journal).await?.puts >= in_pools.len())).await?;
        ensure!(written, "not every pool was written");
        let done = |metrics: &str| count(metrics, "headgate_pool_actual_down") >= expected && is_settled(metrics);
        reach(fleet, "all are Down", done).await?;
        let took = begun.elapsed();
        let (used, puts) = (
            cpu_time::process(leader)?.saturating_sub(before),
            azure.since(journal).await?.puts,
        );
        world.taint(range.clone(), false).await?;
        restored(fleet).await?;
        Ok((took, used, puts))
    };
    let rate = run.updates.rate_at_rest();
    let (took, used, puts) = recording
        .beside(&run.azure, beside_updates(&run.updates, rate, working))
        .await?;
    let recorded = recording.end(run).await?;
    ensure!(puts > 0, "ARM got no PUT");
    let pools = float(in_pools.len() as u64);
    let checks = vec![
        Check::new(
            "signals at once: PUTs, at most one for each pool",
            float(puts as u64),
            "",
            None,
            Budget::Most(pools),
        ),
        Check::new(
            "signals at once: CPU, Lease free → Down read back",
            millis(used),
            "ms",
            None,
            Budget::Most(150.0),
        ),
        Check::new(
            "signals at once: Lease free → Down read back",
            took.as_secs_f64(),
            "s",
            None,
            Budget::None,
        ),
    ];
    let mut phase = Phase::new("signals at once", recorded, checks);
    phase.fact("signals", signals);
    phase.fact("pools with such Nodes", in_pools.len());
    phase.fact("pool entries", expected);
    Ok(phase)
}

/// `kubectl taint` of three tenths of the Nodes, of which `adminState.maxNewDown` lets a quarter of each pool through.
pub(crate) async fn tainted(run: &mut Run<'_>) -> anyhow::Result<Phase> {
    let mut recording = begin(run, "taint of three tenths", Duration::ZERO).await?;
    let mut command = run.world.kubectl()?;
    command.args(["taint", "nodes", "--selector", &format!("{TENTH_LABEL} in (0,1,2)")]);
    command.arg(format!("{MAINTENANCE_TAINT}=scale:NoSchedule"));
    let log = run.world.directory().join("kubectl.log");
    let is_tainted = |number: usize| number % 10 < TAINTED_TENTHS;
    let entries = (0..LOAD_BALANCERS).flat_map(|number| members(run.options, number));
    let expected = entries.filter(|node| is_tainted(*node)).count();
    let begun = Instant::now();
    let mut kubectl = Process::start("kubectl", command, &log)?;
    let fleet = &run.fleet;
    let working = async {
        let status = kubectl.wait(KUBECTL_PATIENCE).await.context("kubectl does not end")?;
        ensure!(status.success(), "kubectl taint: {status}");
        let tainting = begun.elapsed();
        let settled = fleet.reach("what may go is Down, and the rest waits", PATIENCE, |metrics| {
            DECIDED.iter().map(|name| count(metrics, name)).sum::<usize>() >= expected && is_settled(metrics)
        });
        Ok((tainting, settled.await?, fleet.metrics().await?))
    };
    let rate = run.updates.rate_at_rest();
    let (tainting, settled, metrics) = recording
        .beside(&run.azure, beside_updates(&run.updates, rate, working))
        .await?;
    let ledger = run.ledger().await?;
    let recorded = recording.end(run).await?;
    let down = count(&metrics, "headgate_pool_actual_down");
    ensure!(down > 0 && recorded.usage.arm_puts > 0, "no Node is Down");
    let tainted = (0..run.options.nodes).filter(|number| is_tainted(*number));
    stream::iter(tainted.map(anyhow::Ok))
        .try_for_each_concurrent(AT_ONCE, async |node| Ok(signals::set(&run.client, node, false).await?))
        .await
        .context("removing the taint")?;
    restored(&run.fleet).await?;
    let mut phase = Phase::new("taint of three tenths", recorded, Vec::new());
    phase.fact("kubectl, seconds", rounded(tainting.as_secs_f64()));
    let settled = settled.map_or_else(
        || "not in time".to_owned(),
        |took| rounded(took.as_secs_f64()).to_string(),
    );
    phase.fact(
        "from its end until all that may go are Down and the rest waits, seconds",
        settled,
    );
    phase.fact("pool entries of these Nodes", expected);
    phase.fact("pool entries Down", down);
    for (what, name) in [
        ("pool entries that should be Down", DESIRED_DOWN),
        ("pool entries that wait for maxNewDown", WAITING),
        ("pool entries that the guard holds back", HELD_BACK),
    ] {
        phase.fact(what, count(&metrics, name));
    }
    phase.fact("bytes of the ledger (at most 1,000,000)", ledger.bytes);
    phase.fact("entries of the ledger", ledger.entries);
    phase.ledger = Some(ledger);
    Ok(phase)
}

/// The leader is killed, and a Node gets a signal at once.
pub(crate) async fn leader_killed(run: &mut Run<'_>) -> anyhow::Result<Phase> {
    let length = run.options.share(5);
    let mut recording = begin(run, "leader killed", length).await?;
    let (node, entries, begun) = (run.options.nodes / 2, run.azure.entries(), Instant::now());
    let Run {
        fleet,
        updates,
        client,
        azure,
        ..
    } = &mut *run;
    let working = async {
        let killed = fleet.kill_leader().await?;
        let dead = Instant::now();
        let before = fleet.downs().await?;
        signals::set(client, node, true).await?;
        let leading = until(async || Ok(fleet.leader().await?.is_some()))
            .await
            .context("nobody leads")?;
        ensure!(leading, "nobody leads");
        let failed_over = dead.elapsed();
        let down = until(async || Ok(fleet.downs().await? > before)).await?;
        ensure!(down, "no signal was seen");
        let down = dead.elapsed();
        fleet.start_again(killed).await?;
        signals::set(client, node, false).await?;
        reach(fleet, "the new leader knows every pool", |metrics| {
            count(metrics, "headgate_pool_addresses") >= entries
        })
        .await?;
        restored(fleet).await?;
        sleep(length.saturating_sub(begun.elapsed())).await;
        Ok((failed_over, down))
    };
    let rate = updates.rate_at_rest();
    let (failed_over, down) = recording.beside(azure, beside_updates(updates, rate, working)).await?;
    let recorded = recording.end(run).await?;
    ensure!(recorded.usage.arm_puts > 0, "ARM got no PUT");
    let seconds = |figure, time: Duration, budget| Check::new(figure, time.as_secs_f64(), "s", None, budget);
    let checks = vec![
        seconds("leader killed → another leads", failed_over, Budget::Most(15.0)),
        seconds("leader killed, a signal at once → Down read back", down, Budget::None),
    ];
    Ok(Phase::new("leader killed", recorded, checks))
}

/// The API server is restarted, and a Node gets a signal as soon as it answers.
pub(crate) async fn server_restarted(run: &mut Run<'_>) -> anyhow::Result<Phase> {
    let length = run.options.share(5);
    let mut recording = begin(run, "API server restarted", length).await?;
    let (node, begun, stopped) = (run.options.nodes / 2 + 1, Instant::now(), Timestamp::now());
    let (before, agents, log) = (run.fleet.downs().await?, run.options.agents, run.audit.clone());
    let Run {
        fleet,
        updates,
        client,
        world,
        azure,
        ..
    } = &mut *run;
    let working = async {
        world.outage(Duration::ZERO).await?;
        let (outage, ready) = (begun.elapsed(), Instant::now());
        let signalled = until(async || Ok(signals::set(client, node, true).await.is_ok())).await?;
        ensure!(signalled, "the API server takes no PATCH");
        let down = until(async || Ok(fleet.downs().await? > before)).await?;
        ensure!(down, "no signal was seen");
        let down = ready.elapsed();
        signals::set(client, node, false).await?;
        restored(fleet).await?;
        let (mut requests, mut watches) = (Vec::new(), Vec::new());
        let watching = until(async || {
            requests.extend(log.read()?);
            watches = audit::first_watches(&requests, stopped);
            Ok(watches.len() >= agents)
        });
        let watching = watching.await?;
        ensure!(
            watching,
            "only {} of {agents} agents watch their Nodes again",
            watches.len()
        );
        sleep(length.saturating_sub(begun.elapsed())).await;
        Ok((outage, down, watches))
    };
    let rate = updates.rate_at_rest();
    let (outage, down, watches) = recording.beside(azure, beside_updates(updates, rate, working)).await?;
    let recorded = recording.end(run).await?;
    ensure!(recorded.usage.arm_puts > 0, "ARM got no PUT");
    let seconds = |figure, time: Duration| Check::new(figure, time.as_secs_f64(), "s", None, Budget::None);
    let checks = vec![
        seconds("API server: stopped until ready again", outage),
        seconds("ready again, a signal at once → Down read back", down),
        seconds(
            "stopped → the last agent watches its Node again",
            percentile(&watches, 1000),
        ),
    ];
    Ok(Phase::new("API server restarted", recorded, checks))
}

/// Operations of 5 s, and eight writes at once and one a second after that.
pub(crate) async fn slow_arm(run: &mut Run<'_>) -> anyhow::Result<Phase> {
    let length = run.options.share(15);
    let mut recording = begin(run, "slow ARM", length).await?;
    let slow = json!({"operationDelay": "5s", "throttle": {"enabled": true, "networkWrites": {"capacity": 8, "refillPerSecond": 1.0}}});
    run.azure.set(&slow).await?;
    let throttled = |metrics: &str| count(metrics, "headgate_arm_requests_throttled_total");
    let throttled_before = throttled(&run.fleet.metrics().await?);
    let (signals, begun) = (Signals::default(), Instant::now());
    let (options, is_over) = (run.options, Cell::new(false));
    // Each is of the next pool where pools have different Nodes.
    let node = |number: usize| (options.agents + number * options.pool_entries() + number) % options.nodes;
    let sent = Cell::new(0);
    let sending = async {
        while begun.elapsed() < length {
            signals.send(&run.client, node(sent.get())).await?;
            sent.set(sent.get() + 1);
            sleep(SLOW_SIGNAL_INTERVAL).await;
        }
        is_over.set(true);
        anyhow::Ok(())
    };
    let working = Box::pin(async {
        tokio::try_join!(sending, signals.follow(&run.client, PATIENCE, || is_over.get()))?;
        Ok(throttled(&run.fleet.metrics().await?) - throttled_before)
    });
    let rate = run.updates.rate_at_rest();
    let refused = recording
        .beside(&run.azure, beside_updates(&run.updates, rate, working))
        .await?;
    let recorded = recording.end(run).await?;
    // It would take long with such an ARM.
    run.azure
        .set(&json!({"operationDelay": "0s", "throttle": {"enabled": false}}))
        .await?;
    for number in 0..sent.get() {
        signals::set(&run.client, node(number), false).await?;
    }
    restored(&run.fleet).await?;
    let latencies = signals.latencies(run.begun);
    ensure!(latencies.downs > 0, "no signal was seen");
    ensure!(refused > 0, "ARM throttled no request");
    let mut phase = Phase::new("slow ARM", recorded, Vec::new());
    phase.fact("requests that ARM refused", refused);
    phase.signals = Some(latencies);
    Ok(phase)
}

async fn begin(run: &Run<'_>, name: &str, length: Duration) -> anyhow::Result<Recording> {
    let since = run.begun.elapsed().as_secs();
    say(&format!("{since} s: {name}, at least {} s", length.as_secs()));
    Recording::begin(run).await
}

/// Does `work` while kubelets write so many statuses a second.
async fn beside_updates<T>(
    updates: &NodeUpdates,
    rate: f64,
    work: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    tokio::select! {
        done = work => done,
        never = updates.run(rate) => match never {},
    }
}

/// Waits for a condition of the metrics, which must come.
async fn reach(fleet: &Fleet, what: &str, reached: impl Fn(&str) -> bool) -> anyhow::Result<Duration> {
    let took = fleet.reach(what, PATIENCE, reached).await?;
    took.with_context(|| format!("not in time: {what}"))
}

/// Waits until nothing is `Down` any more.
async fn restored(fleet: &Fleet) -> anyhow::Result<()> {
    let done = |metrics: &str| count(metrics, "headgate_pool_actual_down") == 0 && is_settled(metrics);
    let took = fleet
        .reach("everything is in service again", RESTORE_PATIENCE, done)
        .await?;
    took.map(drop).context("not everything is in service again")
}

/// Asks often until something is so; `false` if that takes too long.
async fn until(mut is_so: impl AsyncFnMut() -> anyhow::Result<bool>) -> anyhow::Result<bool> {
    let asking = async {
        while !is_so().await? {
            sleep(LOOK).await;
        }
        Ok(true)
    };
    timeout(PATIENCE, asking).await.unwrap_or(Ok(false))
}
