//! Memory of an agent that does not lead: idle after the first sync, and after 1,000 watch events. Most of it
//! are pages of the program itself, so the image's binary is measured if `make static-binary` has built it.

use std::time::Duration;

use serde_json::json;

use crate::measuring::figures::mebibytes;
use crate::measuring::memory::Memory;
use crate::measuring::report::{Budget, Check, PeerComparison, Row};
use crate::world::{Server, World};

/// Changes of the Node that both observe.
const EVENTS: u32 = 1000;
/// Time for the last change to take effect.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    let image = world.start_image().await?;
    let agent = image.as_ref().map_or(world.agent, |(_, server)| *server);
    tokio::time::sleep(SETTLE_TIMEOUT).await;
    let idle = [memory(agent)?, memory(world.kube_proxy)?];
    for number in 0..EVENTS {
        let annotations = json!({"headgate.dev/bench": number.to_string()});
        world
            .patch_node(&json!({"metadata": {"annotations": annotations}}))
            .await?;
    }
    tokio::time::sleep(SETTLE_TIMEOUT).await;
    let busy = [memory(agent)?, memory(world.kube_proxy)?];

    let largest = |index: usize| mebibytes(idle[index].resident.max(busy[index].resident));
    let (value, peer) = (largest(0), largest(1));
    let beside = PeerComparison::one("kube-proxy", value, peer);
    // kube-proxy does another work and goes on: the ratio is only shown.
    let what = if image.is_some() {
        "added per node: resident, image's binary"
    } else {
        "added per node: resident"
    };
    Ok(Row {
        checks: vec![Check::new(what, value, "MiB", Some(beside), Budget::Most(10.0))],
        raw: json!({
            "isImageBinary": image.is_some(),
            "events": EVENTS,
            "idle": {"headgate": idle[0].raw(), "kubeProxy": idle[1].raw()},
            "afterEvents": {"headgate": busy[0].raw(), "kubeProxy": busy[1].raw()},
        }),
    })
}

fn memory(server: Server) -> anyhow::Result<Memory> {
    Memory::of(server.process)
}
