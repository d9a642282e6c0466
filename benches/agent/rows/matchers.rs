//! What matchers cost an agent that does not lead: two agents of one Node, one of them with a hundred matchers besides the default
//! signals. The Node carries what they read, without a match, and changes a thousand times.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::memory::memory;
use crate::measuring::cpu_time;
use crate::measuring::figures::{mebibytes, millis};
use crate::measuring::memory::Memory;
use crate::measuring::report::{Budget, Check, PeerComparison, Row};
use crate::world::{Server, World};

/// Of each kind: labels, annotations, conditions, and beginnings of taint keys.
const MATCHERS_OF_EACH_KIND: usize = 25;
/// Changes of the Node that both observe.
const EVENTS: u32 = 1000;
/// Time for the last change to take effect.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
/// The agents' processes stop within this time.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Memory after the first sync and after the changes, and the processor time of these.
struct Measured {
    idle: Memory,
    busy: Memory,
    cpu: Duration,
}

impl Measured {
    fn largest(&self, field: impl Fn(&Memory) -> u64) -> f64 {
        mebibytes(field(&self.idle).max(field(&self.busy)))
    }

    fn raw(&self) -> Value {
        json!({"idle": self.idle.raw(), "afterEvents": self.busy.raw(), "cpuMilliseconds": millis(self.cpu)})
    }
}

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    let (without_process, without) = world.start_with("no-matchers", "").await?;
    let (with_process, with) = world.start_with("matchers", &settings()).await?;
    carry(world, 0).await?;
    let [without, with] = observe(world, [without, with]).await?;
    for process in [without_process, with_process] {
        process.stop(STOP_TIMEOUT).await;
    }
    clear(world).await?;
    let memory = |figure, field: fn(&Memory) -> u64, budget| {
        let (value, peer) = (with.largest(field), without.largest(field));
        let beside = PeerComparison::one("default signals", value, peer);
        Check::new(figure, value, "MiB", Some(beside), budget)
    };
    let (value, peer) = (millis(with.cpu), millis(without.cpu));
    let beside = PeerComparison::one("default signals", value, peer);
    Ok(Row {
        checks: vec![
            memory(
                "100 matchers: anonymous",
                |memory| memory.anonymous,
                Budget::PeerWithin(0.5),
            ),
            memory("100 matchers: resident", |memory| memory.resident, Budget::None),
            Check::new(
                "100 matchers: processor time of 1,000 changes",
                value,
                "ms",
                Some(beside),
                Budget::None,
            ),
        ],
        raw: json!({"matchers": 4 * MATCHERS_OF_EACH_KIND, "events": EVENTS,
            "matched": with.raw(), "default": without.raw()}),
    })
}

/// Settings with the default signals and the matchers.
fn settings() -> String {
    let taints = (0..MATCHERS_OF_EACH_KIND).map(|number| json!({"taint": format!("bench.example/{number}-*")}));
    let labels = (0..MATCHERS_OF_EACH_KIND)
        .map(|number| json!({"label": {"key": format!("bench.example/label-{number}"), "value": "leaving"}}));
    let annotations = (0..MATCHERS_OF_EACH_KIND)
        .map(|number| json!({"annotation": {"key": format!("bench.example/note-{number}"), "value": "leaving"}}));
    let conditions = (0..MATCHERS_OF_EACH_KIND).map(|number| {
        json!({"condition": {"type": format!("Bench{number}"), "status": "True", "messagePrefix": "Preempt Scheduled:"}})
    });
    let all: Vec<Value> = taints
        .chain(labels)
        .chain(annotations)
        .chain(conditions)
        .map(|mut entry| {
            entry["for"] = json!(["health", "adminState"]);
            entry
        })
        .collect();
    format!("signals: {}\n", json!({"extra": all}))
}

/// Gives the Node everything that the matchers read, without a match.
async fn carry(world: &World, number: u32) -> anyhow::Result<()> {
    let texts = |name: &str| -> serde_json::Map<String, Value> {
        let texts = (0..MATCHERS_OF_EACH_KIND).map(|key| {
            (
                format!("bench.example/{name}-{key}"),
                format!("staying-{number}").into(),
            )
        });
        texts.collect()
    };
    let patch = json!({"metadata": {"labels": texts("label"), "annotations": texts("note")}});
    world.patch_node(&patch).await
}

/// Removes it again.
async fn clear(world: &World) -> anyhow::Result<()> {
    let texts = |name: &str| -> serde_json::Map<String, Value> {
        (0..MATCHERS_OF_EACH_KIND)
            .map(|key| (format!("bench.example/{name}-{key}"), Value::Null))
            .collect()
    };
    let patch = json!({"metadata": {"labels": texts("label"), "annotations": texts("note")}});
    world.patch_node(&patch).await
}

/// Both agents before and after the changes.
async fn observe(world: &World, servers: [Server; 2]) -> anyhow::Result<[Measured; 2]> {
    tokio::time::sleep(SETTLE_TIMEOUT).await;
    let idle = [memory(servers[0])?, memory(servers[1])?];
    let before = [
        cpu_time::process(servers[0].process)?,
        cpu_time::process(servers[1].process)?,
    ];
    for number in 1..=EVENTS {
        carry(world, number).await?;
    }
    tokio::time::sleep(SETTLE_TIMEOUT).await;
    let measured = servers.iter().zip(idle).zip(before).map(|((server, idle), before)| {
        anyhow::Ok(Measured {
            idle,
            busy: memory(*server)?,
            cpu: cpu_time::process(server.process)?.saturating_sub(before),
        })
    });
    let measured: Vec<_> = measured.collect::<Result<_, _>>()?;
    measured.try_into().ok().context("two agents")
}
