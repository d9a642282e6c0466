//! Memory of a follower: idle after the first sync, and after 1,000 watch events. Most of what is resident
//! are pages of the program itself, so the image's binary is measured where `make static-binary` built it.

use std::time::Duration;

use serde_json::json;

use crate::measuring::figures::mebibytes;
use crate::measuring::memory::Memory;
use crate::measuring::report::{Beside, Budget, Check, Row};
use crate::world::{Server, World};

/// Changes of the Node that both see.
const EVENTS: u32 = 1000;
/// Time for the last of them to be dealt with.
const SETTLING: Duration = Duration::from_secs(2);

pub(super) async fn measure(world: &mut World) -> anyhow::Result<Row> {
    let image = world.start_image().await?;
    let agent = image.as_ref().map_or(world.agent, |(_, server)| *server);
    tokio::time::sleep(SETTLING).await;
    let idle = [memory(agent)?, memory(world.kube_proxy)?];
    for number in 0..EVENTS {
        let annotations = json!({"headgate.dev/bench": number.to_string()});
        world
            .patch_node(&json!({"metadata": {"annotations": annotations}}))
            .await?;
    }
    tokio::time::sleep(SETTLING).await;
    let busy = [memory(agent)?, memory(world.kube_proxy)?];

    let largest = |index: usize| mebibytes(idle[index].resident.max(busy[index].resident));
    let (value, peer) = (largest(0), largest(1));
    let beside = Beside::one("kube-proxy", value, peer);
    let what = if image.is_some() {
        "resident, image's binary"
    } else {
        "resident, with the sandbox"
    };
    Ok(Row {
        checks: vec![
            Check::new(what, value, "MiB", None, Budget::Most(10.0)),
            Check::new(what, value, "MiB", Some(beside), Budget::ShareAtMost(1.0 / 6.0)),
        ],
        raw: json!({
            "isImageBinary": image.is_some(),
            "events": EVENTS,
            "idle": {"headgate": idle[0].raw(), "kubeProxy": idle[1].raw()},
            "afterEvents": {"headgate": busy[0].raw(), "kubeProxy": busy[1].raw()},
        }),
    })
}

pub(super) fn memory(server: Server) -> anyhow::Result<Memory> {
    Memory::of(server.process)
}
