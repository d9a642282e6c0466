//! Memory of a follower: idle after the first sync, and after 1,000 watch events.

use std::time::Duration;

use serde_json::{Value, json};

use crate::figures::{mebibytes, rounded};
use crate::memory::Memory;
use crate::report::{Beside, Budget, Check, Row};
use crate::world::{Server, World};

/// Changes of the Node that both see.
const EVENTS: u32 = 1000;
/// Time for the last of them to be dealt with.
const SETTLING: Duration = Duration::from_secs(2);

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    tokio::time::sleep(SETTLING).await;
    let idle = [memory(world.agent)?, memory(world.kube_proxy)?];
    for number in 0..EVENTS {
        let annotations = json!({"headgate.dev/bench": number.to_string()});
        world
            .patch_node(&json!({"metadata": {"annotations": annotations}}))
            .await?;
    }
    tokio::time::sleep(SETTLING).await;
    let busy = [memory(world.agent)?, memory(world.kube_proxy)?];

    let largest = |index: usize| mebibytes(idle[index].resident.max(busy[index].resident));
    let (agent, kube_proxy) = (largest(0), largest(1));
    let beside = Beside::one("kube-proxy", agent, kube_proxy);
    Ok(Row {
        checks: vec![
            Check::new("resident, the larger of both", agent, "MiB", None, Budget::Most(10.0)),
            Check::new(
                "the same beside the peer",
                agent,
                "MiB",
                Some(beside),
                Budget::ShareAtMost(1.0 / 6.0),
            ),
        ],
        raw: json!({
            "events": EVENTS,
            "idle": {"headgate": raw(idle[0]), "kubeProxy": raw(idle[1])},
            "afterEvents": {"headgate": raw(busy[0]), "kubeProxy": raw(busy[1])},
        }),
    })
}

fn memory(server: Server) -> anyhow::Result<Memory> {
    Memory::of(server.process)
}

fn raw(memory: Memory) -> Value {
    json!({
        "residentMiB": rounded(mebibytes(memory.resident)),
        "anonymousMiB": rounded(mebibytes(memory.anonymous)),
        "peakMiB": rounded(mebibytes(memory.peak)),
    })
}
