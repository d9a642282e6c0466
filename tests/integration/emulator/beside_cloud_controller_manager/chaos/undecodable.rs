//! A Node whose time the API server accepts and most clients cannot represent.

use kube::Client;
use serde_json::{Value, json};

/// Gives a Node a time of the year 9999 in its `managedFields` and in a condition, as any writer of it can.
pub(super) async fn make_undecodable(client: &Client, name: &str) {
    const TIME: &str = "9999-12-31T23:59:59Z";
    let managed = json!([{"manager": "chaos", "operation": "Update", "apiVersion": "v1", "time": TIME,
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:annotations": {"f:first": {}}}}}]);
    let read = async || {
        let request = hyper::Request::get(format!("/api/v1/nodes/{name}")).body(Vec::new());
        client.request::<Value>(request.unwrap()).await.unwrap()
    };
    // The entry of a manager stays only if its field exists already and does not change.
    for (path, annotation, managed, is_kept) in [
        ("", "first", Value::Null, false),
        ("", "second", managed, true),
        ("/status", "second", Value::Null, true),
    ] {
        let mut node = read().await;
        node["metadata"]["annotations"][annotation] = "1".into();
        if !managed.is_null() {
            node["metadata"]["managedFields"] = managed;
        }
        node["status"]["conditions"][0]["lastHeartbeatTime"] = TIME.into();
        let request = hyper::Request::put(format!("/api/v1/nodes/{name}{path}"));
        let request = request
            .header("content-type", "application/json")
            .body(node.to_string().into_bytes());
        let stored: Value = client.request(request.unwrap()).await.unwrap();
        let is_stored = stored["metadata"]["managedFields"].to_string().contains(TIME);
        assert_eq!(is_stored, is_kept, "{stored}");
    }
    assert_eq!(read().await["status"]["conditions"][0]["lastHeartbeatTime"], TIME);
}
