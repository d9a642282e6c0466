//! The sandbox's parts, real: the control plane, its nodes, and the command as a user runs it.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client};

use crate::harness::{control_plane, create_node, eventually, in_own_network, own_control_plane};

#[tokio::test]
async fn a_node_made_by_us_is_ready_and_untainted() {
    let client = control_plane().client();
    let name = create_node(&client, "plain").await;
    let node = Api::<Node>::all(client).get(&name).await.unwrap();
    assert_eq!(node.spec.unwrap().taints, None);
    let conditions = node.status.unwrap().conditions.unwrap();
    assert!(
        conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    );
}

#[tokio::test]
async fn kube_apiserver_goes_away_and_comes_back_at_the_same_address() {
    let mut control_plane = own_control_plane().await;
    let client = Client::try_from(control_plane.client_config()).unwrap();
    let name = create_node(&client, "lasting").await;
    let server = control_plane.server();
    let socket = server.strip_prefix("https://").unwrap().to_owned();

    control_plane.stop_apiserver().await;
    let refused = tokio::net::TcpStream::connect(&socket).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

    control_plane.start_apiserver().await.unwrap();
    assert_eq!(control_plane.server(), server);
    let nodes = Api::<Node>::all(client);
    eventually(Duration::from_secs(5), "the Node is still there", async || {
        nodes.get(&name).await.map_err(|error| error.to_string())
    })
    .await;
    control_plane.stop().await;
}

#[test]
fn kube_proxy_answers_in_a_network_of_its_own() {
    in_own_network("sandbox::kube_proxy_answers_in_a_network_of_its_own", async || {
        let mut control_plane = own_control_plane().await;
        let client = Client::try_from(control_plane.client_config()).unwrap();
        let name = create_node(&client, "proxied").await;
        let addresses = control_plane.start_proxy(&name).await.unwrap();
        eventually(Duration::from_mins(1), "kube-proxy's /livez is 200", async || {
            let answer = crate::harness::http::get(addresses.healthz, "/livez").await;
            let answer = answer.map_err(|error| error.to_string())?;
            if answer.status == 200 {
                Ok(())
            } else {
                Err(answer.text())
            }
        })
        .await;
        control_plane.stop().await;
    });
}
