//! What maintenances have left in the cluster that only headgate's controllers undo: cordons and taints of Nodes, finalizers, and the hooks of
//! Machines, whose deletion would never end.
//!
//! The command waits for it and changes none of it: a stage `Complete` makes nodes schedulable on which someone may be working.

use headgate_core::node::{CORDON_ANNOTATION, SCALE_DOWN_ANNOTATION, UPGRADE_PAUSED_ANNOTATION};
use headgate_core::telemetry::first_names;
use headgate_maintenance::api::names::{
    AUTOMATIC_LABEL, is_completion_finalizer, is_instigator_finalizer, is_protection_finalizer,
};
use headgate_maintenance::api::{Evacuation, NodeMaintenance};
use headgate_maintenance::machine::{HOOKS, MachineObject};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::core::Request;
use kube::{Client, Resource};
use serde_json::Value as Json;

use super::NAMED_ENTRIES;

/// Objects in one page of a list. Only their metadata is sent.
const PAGE_SIZE: u32 = 500;

/// What maintenances may have left, in the order in which it is waited for.
const ALL: [Leftover; 5] = [
    Leftover::Maintenance,
    Leftover::Machine,
    Leftover::AutomaticMaintenance,
    Leftover::Evacuation,
    Leftover::Node,
];

/// What maintenances have left, in words; `None` if it is nothing. A failed read is a reason to wait.
pub(super) async fn left_by_maintenances(client: &Client) -> Option<String> {
    first_left(client, &ALL, false).await
}

/// The same while headgate may still create maintenances. While one of these is there, Evacuations and cordons may be its.
pub(super) async fn left_besides_automatic(client: &Client) -> Option<String> {
    first_left(client, &ALL, true).await
}

/// The maintenances that are not over, in words; `None` if there are none. A failed read counts as one.
pub(super) async fn unfinished_maintenances(client: &Client) -> Option<String> {
    first_left(client, &[Leftover::Maintenance, Leftover::AutomaticMaintenance], false).await
}

/// What is left of the first kind that has something; nothing if that is headgate's own maintenances and `ignores_automatic`.
async fn first_left(client: &Client, kinds: &[Leftover], ignores_automatic: bool) -> Option<String> {
    for leftover in kinds {
        let path = leftover.path();
        match names_of(client, &path, None, |object| leftover.is_in(object)).await {
            Err(error) => return Some(format!("{path} cannot be listed: {error}")),
            Ok(names) if names.is_empty() => {}
            Ok(_) if ignores_automatic && *leftover == Leftover::AutomaticMaintenance => return None,
            Ok(names) => return Some(in_words(*leftover, &names)),
        }
    }
    None
}

/// A kind of object that may keep something of a maintenance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leftover {
    Maintenance,
    AutomaticMaintenance,
    Evacuation,
    Node,
    Machine,
}

impl Leftover {
    /// The list of such objects.
    fn path(self) -> String {
        match self {
            Self::Maintenance | Self::AutomaticMaintenance => NodeMaintenance::url_path(&(), None),
            Self::Evacuation => Evacuation::url_path(&(), None),
            Self::Node => Node::url_path(&(), None),
            Self::Machine => MachineObject::url_path(&(), None),
        }
    }

    /// Whether the object has something that headgate's controllers remove.
    fn is_in(self, object: &Json) -> bool {
        let finalizers = object.pointer("/metadata/finalizers").and_then(Json::as_array);
        let mut finalizers = finalizers.into_iter().flatten().filter_map(Json::as_str);
        let annotations = object.pointer("/metadata/annotations");
        let has_any = |keys: &[&str]| annotations.is_some_and(|all| keys.iter().any(|key| all.get(key).is_some()));
        match self {
            Self::Maintenance => finalizers.any(is_completion_finalizer) && !is_automatic(object),
            Self::AutomaticMaintenance => finalizers.any(is_completion_finalizer) && is_automatic(object),
            Self::Evacuation => {
                finalizers.any(|finalizer| is_instigator_finalizer(finalizer) || is_protection_finalizer(finalizer))
            }
            Self::Node => has_any(&[CORDON_ANNOTATION, SCALE_DOWN_ANNOTATION, UPGRADE_PAUSED_ANNOTATION]),
            Self::Machine => has_any(&HOOKS),
        }
    }
}

/// Whether headgate created a maintenance for a node that is taken, as [`headgate_maintenance::automatic::is_automatic`] says of a whole one.
fn is_automatic(object: &Json) -> bool {
    let metadata = &object["metadata"];
    let owners = metadata["ownerReferences"].as_array();
    let is_owned = owners.is_some_and(|owners| owners.iter().any(|owner| owner["kind"] == "Node"));
    is_owned && !metadata["labels"][AUTOMATIC_LABEL].is_null()
}

/// The names of the objects with something left, of those with the labels. An API without the kind has none.
pub(super) async fn names_of(
    client: &Client,
    path: &str,
    labels: Option<&str>,
    is_left: impl Fn(&Json) -> bool,
) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    let mut page = ListParams {
        label_selector: labels.map(str::to_owned),
        ..ListParams::default().limit(PAGE_SIZE)
    };
    loop {
        let request = Request::new(path)
            .list_metadata(&page)
            .map_err(|error| error.to_string())?;
        let list: Json = match client.request(request).await {
            Ok(list) => list,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(Vec::new()),
            Err(error) => return Err(error.to_string()),
        };
        // The API server sends null for an empty list of metadata.
        let items = match list.get("items") {
            Some(Json::Array(items)) => items.as_slice(),
            Some(Json::Null) => &[],
            _ => return Err("the answer is no list".to_owned()),
        };
        names.extend(items.iter().filter(|object| is_left(object)).map(name_of));
        match list.pointer("/metadata/continue").and_then(Json::as_str) {
            Some(token) if !token.is_empty() => page = page.continue_token(token),
            _ => return Ok(names),
        }
    }
}

fn name_of(object: &Json) -> String {
    let text = |path: &str| object.pointer(path).and_then(Json::as_str);
    let name = text("/metadata/name").unwrap_or_default();
    text("/metadata/namespace").map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

fn in_words(leftover: Leftover, names: &[String]) -> String {
    let shown = first_names(names, NAMED_ENTRIES);
    let (what, hint) = match leftover {
        Leftover::Maintenance => (
            "NodeMaintenances are not over",
            "delete them, or set their stage to Complete, while headgate runs with maintenance.enabled",
        ),
        Leftover::AutomaticMaintenance => (
            "NodeMaintenances of maintenance.automatic are not over",
            "headgate ends them while it runs with maintenance.enabled and without causes in maintenance.automatic",
        ),
        Leftover::Evacuation => (
            "Evacuations have finalizers",
            "headgate removes them once their pods are gone or nothing wants them to leave",
        ),
        Leftover::Node => (
            "Nodes have the cordon or the annotations of a maintenance",
            "headgate removes it while it runs with maintenance.enabled",
        ),
        Leftover::Machine => (
            "Machines have headgate's hooks, which nobody would remove",
            "remove these annotations first from the templates, then from the Machines",
        ),
    };
    format!("{} {what}: {shown} ({hint})", names.len())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use headgate_maintenance::api::names::{COMPLETION_FINALIZER, INSTIGATOR_FINALIZER, PROTECTION_FINALIZER};
    use hyper::{Request as HttpRequest, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// A client of an API server that has these lists and answers 404 to everything else.
    fn client(lists: &[(&'static str, Json)], asked: &Arc<Mutex<Vec<String>>>) -> Client {
        let (lists, asked) = (lists.to_vec(), Arc::clone(asked));
        let service = tower::service_fn(move |request: HttpRequest<Body>| {
            let uri = request.uri().to_string();
            let found = lists.iter().find(|(start, _)| uri.starts_with(start));
            let missing =
                json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": ""});
            let (code, body) = found.map_or((404, missing), |(_, list)| (200, list.clone()));
            asked.lock().unwrap().push(uri);
            let response = Response::builder()
                .status(code)
                .body(Body::from(body.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(response.unwrap()) }
        });
        Client::new(service, "default")
    }

    fn items(items: &Json) -> Json {
        json!({"metadata": {}, "items": items})
    }

    #[tokio::test]
    async fn finalizers_cordons_and_hooks_are_left() {
        const MAINTENANCES: &str = "/apis/headgate.dev/v1alpha1/nodemaintenances";
        const EVACUATIONS: &str = "/apis/headgate.dev/v1alpha1/evacuations";
        const NODES: &str = "/api/v1/nodes";
        const MACHINES: &str = "/apis/cluster.x-k8s.io/v1beta2/machines";
        let maintenance = json!({"metadata": {"name": "m", "finalizers": [COMPLETION_FINALIZER],
            "managedFields": [{"time": "9999-12-31T23:59:59Z"}]}});
        let finished = json!({"metadata": {"name": "over", "finalizers": ["example.com/other"]}});
        let metadata = json!({"name": "automatic-one", "finalizers": [COMPLETION_FINALIZER], "labels": {AUTOMATIC_LABEL: "autoscaler"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "one", "uid": "u"}]});
        let automatic = json!({"metadata": metadata});
        let mut unowned = automatic.clone();
        unowned["metadata"]["ownerReferences"] = Json::Null;
        let evacuation = json!({"metadata": {"namespace": "shop", "name": "e", "finalizers": [INSTIGATOR_FINALIZER]}});
        let protected = json!({"metadata": {"namespace": "shop", "name": "p", "finalizers": [PROTECTION_FINALIZER]}});
        let cordoned = json!({"metadata": {"name": "one", "annotations": {CORDON_ANNOTATION: "false"}}});
        let kept = json!({"metadata": {"name": "three", "annotations": {SCALE_DOWN_ANNOTATION: "{}"}}});
        let paused = json!({"metadata": {"name": "four", "annotations": {UPGRADE_PAUSED_ANNOTATION: "true"}}});
        let other = json!({"metadata": {"name": "two", "annotations": {"a": "b"}}});
        let held = json!({"metadata": {"namespace": "fleet", "name": "held", "annotations": {HOOKS[0]: ""}}});
        let ending = json!({"metadata": {"namespace": "fleet", "name": "ending", "annotations": {HOOKS[1]: ""}}});
        for (lists, expected, ends_with_settings) in [
            (vec![], None, false),
            (
                vec![
                    (MAINTENANCES, items(&json!([finished]))),
                    (NODES, items(&json!([other]))),
                ],
                None,
                false,
            ),
            (
                vec![(MAINTENANCES, items(&json!([finished, automatic, maintenance, unowned])))],
                Some("2 NodeMaintenances are not over: m, automatic-one ("),
                false,
            ),
            (
                vec![
                    (MAINTENANCES, items(&json!([automatic]))),
                    (EVACUATIONS, items(&json!([evacuation]))),
                    (NODES, items(&json!([cordoned]))),
                ],
                Some("1 NodeMaintenances of maintenance.automatic are not over: automatic-one ("),
                true,
            ),
            (
                vec![
                    (MAINTENANCES, items(&json!([automatic]))),
                    (MACHINES, items(&json!([held]))),
                ],
                Some("1 Machines have headgate's hooks, which nobody would remove: fleet/held ("),
                false,
            ),
            (
                vec![(EVACUATIONS, items(&json!([evacuation, protected])))],
                Some("2 Evacuations have finalizers: shop/e, shop/p ("),
                false,
            ),
            (
                vec![(NODES, items(&json!([other, cordoned, kept, paused])))],
                Some("3 Nodes have the cordon or the annotations of a maintenance: one, three, four ("),
                false,
            ),
            (
                vec![(MACHINES, items(&json!([other, held, ending])))],
                Some("2 Machines have headgate's hooks, which nobody would remove: fleet/held, fleet/ending ("),
                false,
            ),
            (vec![(NODES, items(&Json::Null))], None, false),
            (
                vec![(NODES, json!({}))],
                Some("/api/v1/nodes cannot be listed: "),
                false,
            ),
        ] {
            let asked = Arc::default();
            let left = left_by_maintenances(&client(&lists, &asked)).await;
            match expected {
                None => assert_eq!(left, None),
                Some(start) => assert!(left.clone().unwrap().starts_with(start), "{left:?}"),
            }
            let before = left_besides_automatic(&client(&lists, &asked)).await;
            assert_eq!(before, left.filter(|_| !ends_with_settings));
            assert!(asked.lock().unwrap().iter().all(|uri| uri.contains("limit=500")));
        }
    }

    #[tokio::test]
    async fn every_page_is_read() {
        let first = json!({"metadata": {"continue": "more"}, "items": []});
        let cordoned = json!([{"metadata": {"name": "last", "annotations": {CORDON_ANNOTATION: "true"}}}]);
        let asked = Arc::default();
        let lists = [
            ("/api/v1/nodes?&limit=500&continue=more", items(&cordoned)),
            ("/api/v1/nodes", first),
        ];
        let left = left_by_maintenances(&client(&lists, &asked)).await;
        assert!(
            left.clone().is_some_and(|left| left.contains("last")),
            "{left:?} {asked:?}"
        );
    }
}
