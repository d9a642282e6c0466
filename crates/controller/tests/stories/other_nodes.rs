//! Features that write Nodes other than the leader's own, where the leader is a pod of the `DaemonSet` and where it is apart.

use headgate_controller::other_nodes::OtherNodes;
use headgate_kubernetes::EventSink;
use headgate_kubernetes::leader::CandidatePlacement;
use headgate_test_kubernetes::FakeApi;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;

#[tokio::test]
async fn features_that_write_other_nodes_need_the_controllers_pods() {
    let (client, _) = FakeApi::default().client();
    let events: Api<Event> = Api::namespaced(client.clone(), "default");
    let check = async |placement| {
        let (sink, queue) = EventSink::new(client.clone(), "n1".to_owned());
        let outcome = OtherNodes::new(sink, placement).check("azure.scheduledEvents");
        queue.write_until(std::future::pending()).await;
        (outcome, events.list(&ListParams::default()).await.unwrap().items)
    };
    let (outcome, recorded) = check(CandidatePlacement::Replicas).await;
    assert_eq!((outcome, recorded.len()), (Ok(()), 0));

    let (outcome, recorded) = check(CandidatePlacement::EveryNode).await;
    let text = outcome.unwrap_err().to_string();
    assert!(text.starts_with("azure.scheduledEvents writes other Nodes"), "{text}");
    let [event] = recorded.as_slice() else {
        panic!("{recorded:?}");
    };
    assert_eq!(
        (event.reason.as_deref(), event.type_.as_deref(), event.note.clone()),
        (
            Some("ControllerRequired"),
            Some("Warning"),
            Some(format!("{text}. It does nothing until then."))
        )
    );
    let about = event.regarding.clone().unwrap_or_default();
    assert_eq!(
        (about.kind.as_deref(), about.name.as_deref()),
        (Some("Node"), Some("n1"))
    );
}
