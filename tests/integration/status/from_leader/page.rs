//! The leader's page in a browser.

use std::time::{Duration, Instant};

use futures::{StreamExt as _, stream};
use headgate_test_kubernetes::eventually;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::json;

use super::{POD, SOON};
use crate::browser::{Change, Proxy, document, loads_again};
use crate::harness::{http, objects};
use crate::status::DRAIN;
use crate::status::world::World;

/// The page of the leader, which the browser loads again by itself.
pub(super) async fn page() {
    let proxy = Proxy::start(format!("{POD}:10457").parse().unwrap(), Change::None).await;
    let page = document(format!("http://{}/statusz", proxy.address)).await;
    for part in [
        "1 of 3 nodes have a signal. Admin states: mode Enforce",
        "<td>node-1</td><td>ToBeDeletedByClusterAutoscaler</td>",
        "<td>2/2</td><td>nothing: Down in every pool</td>",
        "Down in kubernetes/kubernetes",
        "ARM throttles nothing.",
    ] {
        assert!(page.contains(part), "{part:?} is not in {page}");
    }
    assert_eq!(proxy.paths(), ["/statusz", "/statusz.css"].map(str::to_owned).into());
    loads_again(&proxy, "/statusz").await;
}

/// A thousand nodes with a signal: the page has all of them and is small. How long the answer and its layout take is printed;
/// benches/README.md has the figures.
pub(super) async fn a_large_page(world: &World) {
    const NODES: usize = 1000;
    const MAX_BYTES: usize = 300_000;
    const BUDGET: Duration = Duration::from_millis(200);
    const SAMPLES: usize = 21;
    const BROWSER_SAMPLES: usize = 5;
    let nodes = Api::<Node>::all(world.client.clone());
    let create = async |number: usize| {
        let taint = json!([{"key": DRAIN, "effect": "NoSchedule"}]);
        let node =
            json!({"metadata": {"name": format!("aks-nodepool1-12345678-vmss{number:06}")}, "spec": {"taints": taint}});
        objects::create(&nodes, node).await;
    };
    // One of the world's own nodes has a signal already.
    stream::iter(1..NODES)
        .map(create)
        .buffer_unordered(32)
        .collect::<Vec<_>>()
        .await;
    let address = format!("{POD}:10457").parse().unwrap();
    let fetch = async || {
        let request = b"GET /statusz HTTP/1.1\r\nHost: x\r\nAccept: text/html\r\n\r\n";
        let started = Instant::now();
        let page = http::exchange(address, request).await.unwrap().text();
        (page, started.elapsed())
    };
    let page = eventually(SOON, "a page with all nodes", async || {
        let (page, _) = fetch().await;
        let found = page.matches("vmss").count();
        if found == NODES - 1 {
            Ok(page)
        } else {
            Err(found.to_string())
        }
    })
    .await;
    assert!(page.len() <= MAX_BYTES, "{} bytes", page.len());
    let mut made = Vec::new();
    for _ in 0..SAMPLES {
        made.push(fetch().await.1);
    }
    println!(
        "measured: the page of {NODES} nodes: {} bytes; budget {MAX_BYTES}",
        page.len()
    );
    println!("measured: the answer: {}; budget {BUDGET:?}", spread(made));
    let proxy = Proxy::start(address, Change::Time).await;
    let mut laid_out = Vec::new();
    for _ in 0..BROWSER_SAMPLES {
        let shown = document(format!("http://{}/statusz", proxy.address)).await;
        assert_eq!(shown.matches("vmss").count(), NODES - 1);
        let title = shown.split("<title>").nth(1).and_then(|rest| rest.split('<').next());
        let took = title
            .unwrap()
            .strip_prefix("took ")
            .and_then(|rest| rest.strip_suffix(" ms"));
        laid_out.push(Duration::from_millis(took.unwrap().parse().unwrap()));
    }
    println!(
        "measured: its layout in the browser: {}; budget {BUDGET:?}",
        spread(laid_out)
    );
}

/// The median and the maximum.
fn spread(mut times: Vec<Duration>) -> String {
    times.sort();
    format!(
        "p50 {:.1?}, max {:.1?} of {}",
        times[times.len() / 2],
        times[times.len() - 1],
        times.len()
    )
}
