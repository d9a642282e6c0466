//! What a row works with: its namespace, its nodes, its maintenances, and waits with a bound.

use std::rc::Rc;

use headgate_test_kubernetes::{eventually, met};
use serde_json::{Value, json};

use crate::cluster::{Cluster, MAINTENANCES, NODES, SOON};
use crate::observer::Observer;
use crate::rows::Row;

#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) cluster: Rc<Cluster>,
    pub(crate) observer: Rc<Observer>,
    pub(crate) namespace: String,
    /// The value of the label `row` of its nodes.
    row: String,
    pub(crate) nodes: &'static [&'static str],
}

/// What is merged into a manifest.
pub(crate) fn merged(mut object: Value, fields: &Value) -> Value {
    fn merge(into: &mut Value, from: &Value) {
        match (into, from) {
            (Value::Object(into), Value::Object(from)) => {
                for (key, value) in from {
                    merge(into.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
            (into, from) => *into = from.clone(),
        }
    }
    merge(&mut object, fields);
    object
}

/// A selector of these nodes by name.
pub(crate) fn named(nodes: &[&str]) -> Value {
    let term = |node: &&str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
    json!({"nodeSelectorTerms": nodes.iter().map(term).collect::<Vec<_>>()})
}

/// The status of a condition; empty where it is missing.
pub(crate) fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let mut all = object["status"]["conditions"].as_array().into_iter().flatten();
    let found = all.find(|condition| condition["type"] == kind);
    found
        .and_then(|condition| condition["status"].as_str())
        .unwrap_or_default()
}

/// The status of one node in a maintenance.
pub(crate) fn node_status<'a>(maintenance: &'a Value, node: &str) -> &'a Value {
    let mut all = maintenance["status"]["nodeStatuses"].as_array().into_iter().flatten();
    all.find(|status| status["nodeRef"]["name"] == node)
        .unwrap_or(&Value::Null)
}

impl Scene {
    pub(crate) async fn new(cluster: Rc<Cluster>, observer: Rc<Observer>, row: &Row, namespace: String) -> Self {
        let scene = Self {
            cluster,
            observer,
            namespace,
            row: row.namespace(),
            nodes: row.nodes,
        };
        let namespace = json!({"metadata": {"name": scene.namespace}});
        scene.create("/api/v1/namespaces", &namespace).await;
        // Pods need it, and kube-controller-manager creates it.
        let account = format!("/api/v1/namespaces/{}/serviceaccounts/default", scene.namespace);
        scene.until("the service account", &account, |_| true).await;
        scene
    }

    pub(crate) fn path(&self, group: &str, resource: &str) -> String {
        let prefix = if group == "v1" {
            "/api".to_owned()
        } else {
            "/apis".to_owned()
        };
        format!("{prefix}/{group}/namespaces/{}/{resource}", self.namespace)
    }

    pub(crate) fn pods(&self) -> String {
        self.path("v1", "pods")
    }

    pub(crate) fn evacuations(&self) -> String {
        self.path("headgate.dev/v1alpha1", "evacuations")
    }

    pub(crate) async fn create(&self, path: &str, object: &Value) -> Value {
        let (code, answer) = self.cluster.request("POST", path, Some(object)).await;
        assert_eq!(code, 201, "{path}: {answer}\n{object}");
        answer
    }

    pub(crate) async fn get(&self, path: &str) -> Option<Value> {
        match self.cluster.request("GET", path, None).await {
            (200, object) => Some(object),
            (404, _) => None,
            other => panic!("{path}: {other:?}"),
        }
    }

    pub(crate) async fn list(&self, path: &str) -> Vec<Value> {
        let list = self.get(path).await.unwrap();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// A merge patch, again where another writer was first.
    pub(crate) async fn merge(&self, path: &str, change: Value) {
        eventually(SOON, path, async || {
            match self.cluster.request("PATCH", path, Some(&change)).await {
                (200, _) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    pub(crate) async fn delete(&self, path: &str) {
        let (code, answer) = self.cluster.request("DELETE", path, None).await;
        assert!(code == 200 || code == 404, "{path}: {code} {answer}");
    }

    /// Waits until an object exists and is as expected.
    pub(crate) async fn until(&self, what: &str, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(SOON, &format!("{}: {what}", self.namespace), async || {
            let object = self.get(path).await.ok_or_else(|| format!("no {path}"))?;
            if is_so(&object) {
                Ok(object)
            } else {
                Err(object.to_string())
            }
        })
        .await
    }

    pub(crate) async fn gone(&self, path: &str) {
        eventually(SOON, &format!("{}: {path} is gone", self.namespace), async || {
            self.get(path).await.map_or(Ok(()), |object| Err(object.to_string()))
        })
        .await;
    }

    /// A pod without an owner on a node; `fields` are merged into it. Waits until it runs.
    pub(crate) async fn pod(&self, node: &str, name: &str, fields: &Value) -> Value {
        let pod = json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": {"nodeName": node,
            "terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "none"}]}});
        self.create(&self.pods(), &merged(pod, fields)).await;
        let path = format!("{}/{name}", self.pods());
        self.until("the pod runs", &path, |pod| pod["status"]["phase"] == "Running")
            .await
    }

    /// A Deployment or `DaemonSet` on the nodes of the row; `fields` are merged into the pods' spec.
    pub(crate) async fn workload(&self, kind: &str, name: &str, replicas: usize, fields: &Value) {
        let labels = json!({"app": name});
        let spec = json!({"nodeSelector": {"row": self.row}, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "none"}]});
        let mut object = json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": merged(spec, fields)}}});
        if kind == "deployments" {
            object["spec"]["replicas"] = replicas.into();
        }
        let path = self.path("apps/v1", kind);
        self.create(&path, &object).await;
        self.until("the workload runs", &format!("{path}/{name}"), |object| {
            let status = &object["status"];
            let ready = status["readyReplicas"].as_u64().or(status["numberReady"].as_u64());
            ready == Some(replicas as u64)
        })
        .await;
    }

    /// A `PodDisruptionBudget` for pods with these labels. Waits until kube-controller-manager has counted.
    pub(crate) async fn budget(&self, name: &str, labels: Value, fields: &Value, allowed: u64) {
        let budget = json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}}});
        let path = self.path("policy/v1", "poddisruptionbudgets");
        self.create(&path, &merged(budget, fields)).await;
        self.until("the budget is counted", &format!("{path}/{name}"), |budget| {
            budget["status"]["observedGeneration"] == budget["metadata"]["generation"]
                && budget["status"]["disruptionsAllowed"].as_u64() == Some(allowed)
        })
        .await;
    }

    /// Keeps the pods with the label `hold: NAME` by a budget without room.
    pub(crate) async fn hold(&self, name: &str) {
        let spec = json!({"spec": {"minAvailable": 1000}});
        self.budget(name, json!({"hold": name}), &spec, 0).await;
    }

    pub(crate) async fn release(&self, name: &str) {
        let path = self.path("policy/v1", "poddisruptionbudgets");
        self.delete(&format!("{path}/{name}")).await;
    }

    /// Creates a maintenance in the stage `Drain`; `fields` are merged into its spec.
    pub(crate) async fn maintain(&self, name: &str, nodes: &[&str], fields: &Value) {
        let spec =
            json!({"nodeSelector": named(nodes), "stage": "Drain", "loadBalancer": {"connectionsDrainSeconds": 3}});
        let object = json!({"apiVersion": "headgate.dev/v1alpha1", "kind": "NodeMaintenance",
            "metadata": {"name": name}, "spec": merged(spec, fields)});
        self.create(MAINTENANCES, &object).await;
    }

    /// Waits until a maintenance is as expected.
    pub(crate) async fn until_maintenance(&self, what: &str, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        self.until(what, &format!("{MAINTENANCES}/{name}"), is_so).await
    }

    pub(crate) async fn drained(&self, name: &str) -> Value {
        self.until_maintenance("drained", name, |object| condition(object, "Drained") == "True")
            .await
    }

    /// The Evacuation of a pod, once it is as expected.
    pub(crate) async fn until_evacuation(&self, what: &str, pod: &Value, is_so: impl Fn(&Value) -> bool) -> Value {
        let (uid, name) = (
            pod["metadata"]["uid"].as_str().unwrap(),
            pod["metadata"]["name"].as_str().unwrap(),
        );
        self.until(what, &format!("{}/{uid}-{name}", self.evacuations()), is_so)
            .await
    }

    /// Deletes a maintenance, and waits until it is gone.
    pub(crate) async fn end(&self, name: &str) {
        let path = format!("{MAINTENANCES}/{name}");
        self.delete(&path).await;
        eventually(SOON, &format!("{}: {path} is gone", self.namespace), async || {
            let Some(object) = self.get(&path).await else {
                return Ok(());
            };
            let nodes: Vec<_> = self.nodes.iter().map(|node| self.observer.traces(node)).collect();
            Err(format!("{}; traces since: {nodes:?}", object["status"]["conditions"]))
        })
        .await;
    }

    /// How many events of this reason are about a maintenance.
    pub(crate) async fn events(&self, maintenance: &str, reason: &str) -> usize {
        let path = format!("/apis/events.k8s.io/v1/events?fieldSelector=reason={reason}");
        let events = self.list(&path).await;
        events
            .iter()
            .filter(|event| event["regarding"]["name"] == maintenance)
            .count()
    }

    /// No taint, cordon, annotation, condition or `Down` is left on the nodes of the row, and no Evacuation of headgate's.
    pub(crate) async fn nothing_is_left(&self) {
        for node in self.nodes {
            eventually(SOON, &format!("nothing is left on {node}"), async || {
                // A node that the row deleted has nothing.
                let Some(object) = self.get(&format!("{NODES}/{node}")).await else {
                    return Ok(());
                };
                let left = crate::observer::traces(&object);
                let is_down = self.observer.is_down(node);
                met(left.is_empty() && !is_down, format!("{left:?}, down: {is_down}"))
            })
            .await;
        }
        let left = self.list(&self.evacuations()).await;
        assert_eq!(left, Vec::<Value>::new(), "{}: Evacuations are left", self.namespace);
        let term = |object: &Value| object["spec"]["nodeSelector"].to_string();
        let maintenances = self.list(MAINTENANCES).await;
        let ours = |object: &&Value| {
            self.nodes
                .iter()
                .any(|node| term(object).contains(&format!("\"{node}\"")))
        };
        let left: Vec<_> = maintenances
            .iter()
            .filter(ours)
            .map(|one| one["metadata"]["name"].clone())
            .collect();
        assert_eq!(left, Vec::<Value>::new(), "{}: maintenances are left", self.namespace);
    }

    /// Deletes the namespace, so that the row can run again. What is deleted now is not the controllers' doing.
    pub(crate) async fn remove_workloads(&self) {
        self.observer.ignore_deletions_in(&self.namespace);
        let path = format!("/api/v1/namespaces/{}", self.namespace);
        self.delete(&path).await;
        self.gone(&path).await;
    }
}
