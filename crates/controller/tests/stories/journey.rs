//! From a taint to `Down` in every pool and back, on a real kube-apiserver.

use headgate_azure_emulator::Settings;
use headgate_clock::Clock;
use headgate_test_kubernetes::{eventually, own_control_plane};

use super::world::{ENFORCE, Leader, SECOND, World, two_load_balancers};

#[tokio::test]
async fn a_taint_takes_a_node_out_of_every_pool_and_its_end_lets_it_back() {
    let control_plane = own_control_plane().await;
    let client = kube::Client::try_from(control_plane.client_config()).unwrap();
    let world = World::new(
        client.clone(),
        Clock::System,
        &two_load_balancers(3),
        Settings::default(),
    );
    for number in 1..=3 {
        world.add_node(number).await;
    }
    let pools = [
        ("kubernetes", "kubernetes"),
        ("kubernetes", "kubernetes-IPv6"),
        ("kubernetes-internal", "kubernetes"),
    ];
    let leader = Leader::start(&world, client, "one", ENFORCE).await;
    let mut terms = leader.terms.clone();
    tokio::time::timeout(40 * SECOND, terms.wait_for(Option::is_some))
        .await
        .unwrap()
        .unwrap();
    world.taint(2, &["node.kubernetes.io/out-of-service"]).await;
    let all = async |expected: &[&str]| {
        for (load_balancer, pool) in pools {
            let down = world.down(load_balancer, pool);
            if !down.iter().eq(expected) {
                return Err(format!("{load_balancer}/{pool}: {down:?}"));
            }
        }
        Ok(())
    };
    eventually(10 * SECOND, "Down in every pool", async || all(&["node-2"]).await).await;
    let event = async |reason: &str| {
        let events = world.events().await;
        let found: Vec<_> = events
            .iter()
            .filter(|(known, node, _)| known == reason && node == "node-2")
            .collect();
        if found.len() == 1 {
            Ok(found[0].2.clone())
        } else {
            Err(format!("{events:?}"))
        }
    };
    let note = eventually(10 * SECOND, "the event", async || {
        event("LoadBalancerAdminStateDown").await
    })
    .await;
    println!("{note}\n{}", world.ledger().await);
    assert_eq!(world.puts().len(), 3, "one for each pool");
    world.taint(2, &[]).await;
    eventually(10 * SECOND, "None in every pool", async || all(&[]).await).await;
    let note = eventually(10 * SECOND, "the event", async || {
        event("LoadBalancerAdminStateNone").await
    })
    .await;
    println!("{note}\n{}\n{}", world.ledger().await, leader.metrics());
    assert_eq!(world.puts().len(), 6);
    drop(leader);
    control_plane.stop().await;
}
