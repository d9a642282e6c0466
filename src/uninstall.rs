//! What has to happen before headgate is deleted from a cluster: maintenances are over, the instances that may lead get the mode `Disabled`
//! and create no maintenance any more, and the ledger ends up without an entry, also without one that a stale write could bring back.
//!
//! A failure after the settings were written leaves the mode `Disabled`, and the error says so: nothing here puts the earlier settings back.
//! What `headgate verify` left `Down` ends it at once: no leader restores that. Maintenances come before the settings: a drain needs admin
//! states, and a command that runs out of time because of one has changed nothing. Those that headgate creates itself end after the settings.
//! Nothing here writes to Azure. The leader restores what headgate set `Down` once it runs with the new settings (`adminState.mode` in
//! docs/reference/settings.md), so this needs no credentials but those for the API server. An instance with the earlier settings could set a node
//! `Down` again after the ledger was seen empty, so the ledger counts only once the rollout of the new settings is complete.
//! Every request and the whole wait are bounded.

mod maintenances;
mod nodes;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use headgate_azure::PoolId;
use headgate_controller::admin_state::{
    AdminStateMode, Ledger, LedgerError, LedgerStage, read_ledger, read_ledger_of_verify,
};
use headgate_core::telemetry::{first_names, words};
use headgate_kubernetes::Decoded;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, Resource as _};
use serde_json::{Value as Json, json};
use serde_yaml::{Mapping, Value};
use tokio::time::{Instant, sleep, timeout_at};

use crate::failure::Failure;

use maintenances::{left_besides_automatic, left_by_maintenances, names_of};
pub(crate) use nodes::{Cleaned, clean_nodes};

/// The key of the settings in their `ConfigMap`.
const SETTINGS_KEY: &str = "settings.yaml";
/// The annotation of the pod template that rolls the pods. Its value is the version of the settings, so that repeating the command rolls
/// nothing, and a second uninstall after the first was taken back does.
const MODE_ANNOTATION: &str = "headgate.dev/admin-state-mode";
/// The time between two looks at the rollout and the ledger.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// How many ledger entries an error names.
const NAMED_ENTRIES: usize = 5;
/// The labels of the pods of the Deployment.
const CONTROLLER_PODS: &str = "app.kubernetes.io/name=headgate,app.kubernetes.io/component=controller";

words! {
    /// The kind of a workload that may lead.
    enum WorkloadKind {
        DaemonSet = "daemonset",
        Deployment = "deployment",
    }
}

/// The workload whose pods may lead; as text `daemonset/NAME` or `deployment/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Workload {
    kind: WorkloadKind,
    name: String,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.as_str(), self.name)
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').filter(|(_, name)| !name.is_empty());
        let parsed = parsed.and_then(|(word, name)| {
            let kind = WorkloadKind::ALL.into_iter().find(|kind| kind.as_str() == word)?;
            let name = name.to_owned();
            Some(Self { kind, name })
        });
        parsed.ok_or_else(|| "allowed: daemonset/NAME or deployment/NAME".to_owned())
    }
}

/// What to prepare, and how long that may take.
pub(crate) struct UninstallRequest {
    /// A client of the API server.
    pub client: Client,
    /// The namespace of the settings and the workload.
    pub namespace: String,
    /// The `ConfigMap` of the settings.
    pub settings: String,
    /// The pods that may lead.
    pub workload: Workload,
    /// For everything together.
    pub timeout: Duration,
}

/// Whether the API server has answered that it did not carry out a request.
fn is_refusal(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(kube::Error::Api(status)) if (400..500).contains(&status.code))
}

/// Waits until maintenances of others have left nothing, sets the mode `Disabled`, rolls the workload, and waits until the rollout is complete,
/// the ledger has no entry and no maintenance has left anything. Reports to `progress` each new reason to wait. May be repeated.
///
/// # Errors
/// If the workload has other settings, a write fails, the time is over, or `interrupted` ends.
pub(crate) async fn prepare_uninstall(
    request: &UninstallRequest,
    interrupted: impl Future<Output = ()>,
    mut progress: impl FnMut(&str),
) -> Result<(), Failure> {
    let deadline = Instant::now() + request.timeout;
    let (mut left, mut disabled) = ("no answer of the API server has come".to_owned(), None);
    let work = async {
        let mut is_waiting = |now: Option<String>, progress: &mut dyn FnMut(&str)| match now {
            None => false,
            Some(now) => {
                if now != left {
                    progress(&now);
                    left = now;
                }
                true
            }
        };
        while is_waiting(check_settings(request).await?, &mut progress) {
            sleep(POLL_INTERVAL).await;
        }
        loop {
            let unread = match read_ledger_of_verify(request.client.clone()).await {
                Ok(ledger) => match left_by_verify(&ledger) {
                    Some(error) => return Err(error),
                    None => break,
                },
                Err(error) => format!("the ledger cannot be read: {error}"),
            };
            is_waiting(Some(unread), &mut progress);
            sleep(POLL_INTERVAL).await;
        }
        while is_waiting(left_besides_automatic(&request.client).await, &mut progress) {
            sleep(POLL_INTERVAL).await;
        }
        let settings = settings_with_mode_off(request).await?;
        // Without an answer the write may have been carried out.
        disabled = Some("may be");
        let written = write_settings(request, settings).await;
        disabled = match &written {
            Ok(_) => Some("is"),
            Err(error) if is_refusal(error) => None,
            Err(_) => disabled,
        };
        let version = written?;
        roll(request, &version).await?;
        progress(&format!(
            "adminState.mode is Disabled, and {} restarts",
            request.workload
        ));
        while is_waiting(missing(request).await, &mut progress) {
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    };
    let outcome = tokio::select! {
        outcome = timeout_at(deadline, work) => match outcome {
            Ok(outcome) => outcome.map_err(Failure::runtime),
            Err(_) => Err(Failure::runtime(anyhow!(
                "after {} s {left}. Look at `headgate status` and the leader's log and repeat this; or delete headgate without it \
                 (helm uninstall --no-hooks) and then run `headgate restore`",
                request.timeout.as_secs()
            ))),
        },
        () = interrupted => Err(Failure::interrupted(anyhow!("interrupted"))),
    };
    outcome.map_err(|failure| match disabled {
        None => failure,
        Some(verb) => Failure {
            code: failure.code,
            error: anyhow!(
                "{:#}. adminState.mode {verb} Disabled now, and maintenance.automatic empty: pods that have started since set nothing Down and \
                 create no maintenance, earlier ones still may. To go on with headgate instead, put the earlier settings back \
                 (helm rollback RELEASE REVISION --force-conflicts, where REVISION is the last of its history) and run \
                 `kubectl -n {} rollout restart {}`",
                failure.error,
                request.namespace,
                request.workload
            ),
        },
    })
}

/// Refuses settings that the pods do not mount: they would keep theirs, and the node that they set `Down` last would stay so. Returns why it is not
/// known yet.
async fn check_settings(request: &UninstallRequest) -> anyhow::Result<Option<String>> {
    let object = workloads(request).get(&request.workload.name).await;
    let object = match object.and_then(Decoded::into_object) {
        Ok(object) => object,
        Err(error) if matches!(&error, kube::Error::Api(status) if status.code == 404) => {
            let what = format!("reading {} in {} failed", request.workload, request.namespace);
            return Err(anyhow::Error::new(error).context(what));
        }
        Err(error) => return Ok(Some(format!("{} cannot be read: {error}", request.workload))),
    };
    let volumes = object
        .data
        .pointer("/spec/template/spec/volumes")
        .and_then(Json::as_array);
    let volumes = volumes.into_iter().flatten();
    let sources = volumes.flat_map(|volume| {
        let projected = volume.pointer("/projected/sources").and_then(Json::as_array);
        projected.into_iter().flatten().chain([volume])
    });
    let mounted = sources.filter_map(|source| source.pointer("/configMap/name")?.as_str());
    let mounted: Vec<&str> = mounted.collect();
    anyhow::ensure!(
        mounted.contains(&request.settings.as_str()),
        "the pods of {} mount no ConfigMap {}, but: {}. Nothing was changed: give --settings the one that they run with, or --workload the \
         pods that may lead. If this is the Job of helm uninstall, an upgrade has failed: `helm rollback` it first, or delete the release \
         with --no-hooks and run `headgate restore`",
        request.workload,
        request.settings,
        mounted.join(", ")
    );
    Ok(None)
}

fn settings_of(request: &UninstallRequest) -> Api<Decoded<ConfigMap>> {
    Api::namespaced(request.client.clone(), &request.namespace)
}

async fn settings_with_mode_off(request: &UninstallRequest) -> anyhow::Result<String> {
    let name = format!("{}/{}", request.namespace, request.settings);
    let map = settings_of(request).get(&request.settings).await;
    let map = map.and_then(Decoded::into_object);
    let map = map.with_context(|| format!("reading the ConfigMap {name} failed"))?;
    let text = map.data.as_ref().and_then(|data| data.get(SETTINGS_KEY));
    settings_for_uninstall(text.map_or("", String::as_str))
        .map_err(|why| anyhow!("the key {SETTINGS_KEY} of the ConfigMap {name} is no settings file: {why}"))
}

/// Returns the version of the settings that were written.
async fn write_settings(request: &UninstallRequest, settings: String) -> anyhow::Result<String> {
    let patch = Patch::Merge(json!({"data": {SETTINGS_KEY: settings}}));
    let written = settings_of(request)
        .patch(&request.settings, &PatchParams::default(), &patch)
        .await;
    let written = written.and_then(Decoded::into_object);
    let written = written.with_context(|| {
        format!(
            "writing the ConfigMap {}/{} failed",
            request.namespace, request.settings
        )
    })?;
    Ok(written.metadata.resource_version.unwrap_or_default())
}

/// Restarts the pods that may lead, all at once. Each new pod of a `DaemonSet` answers beside its old one. Of a Deployment, the last old pod
/// would stay for as long as no new one is ready, which may find no node.
async fn roll(request: &UninstallRequest, version: &str) -> anyhow::Result<()> {
    let template = json!({"metadata": {"annotations": {MODE_ANNOTATION: format!("Disabled-{version}")}}});
    let params = PatchParams::default();
    let name = request.workload.name.as_str();
    let mut spec = json!({"template": template});
    match request.workload.kind {
        WorkloadKind::DaemonSet => {
            spec["updateStrategy"] = json!({"rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}});
        }
        WorkloadKind::Deployment => spec["strategy"] = json!({"rollingUpdate": {"maxUnavailable": "100%"}}),
    }
    let patch = Patch::Merge(json!({"spec": spec}));
    let written = workloads(request).patch(name, &params, &patch).await.map(drop);
    written.with_context(|| format!("restarting {} in {} failed", request.workload, request.namespace))
}

/// The workloads of the kind that is asked for.
fn workloads(request: &UninstallRequest) -> Api<Decoded<DynamicObject>> {
    let resource = match request.workload.kind {
        WorkloadKind::DaemonSet => ApiResource::erase::<DaemonSet>(&()),
        WorkloadKind::Deployment => ApiResource::erase::<Deployment>(&()),
    };
    Api::namespaced_with(request.client.clone(), &request.namespace, &resource)
}

/// What still has to happen before headgate can be deleted. A failed read is one more reason to wait.
async fn missing(request: &UninstallRequest) -> Option<String> {
    let object = workloads(request).get(&request.workload.name).await;
    match object.and_then(Decoded::into_object) {
        Err(error) => return Some(format!("{} cannot be read: {error}", request.workload)),
        Ok(object) if !is_rolled_out(request.workload.kind, &object) => {
            return Some(format!("the rollout of {} is not complete", request.workload));
        }
        Ok(_) => {}
    }
    if request.workload.kind == WorkloadKind::Deployment
        && let Some(ending) = ending_pods(request).await
    {
        return Some(ending);
    }
    match remaining(read_ledger(request.client.clone()).await) {
        // Those of maintenance.automatic end now, and another may have been created since the first look.
        None => left_by_maintenances(&request.client).await,
        remaining => remaining,
    }
}

/// The controllers that still end after a rollout, in words: a Deployment's status leaves them out, and each runs with the earlier settings.
async fn ending_pods(request: &UninstallRequest) -> Option<String> {
    let path = Pod::url_path(&(), Some(&request.namespace));
    let ends = |pod: &Json| pod.pointer("/metadata/deletionTimestamp").is_some();
    match names_of(&request.client, &path, Some(CONTROLLER_PODS), ends).await {
        Err(error) => Some(format!("{path} cannot be listed: {error}")),
        Ok(names) if names.is_empty() => None,
        Ok(names) => {
            let shown = first_names(&names, NAMED_ENTRIES);
            Some(format!(
                "{} pods with the earlier settings have not ended: {shown}",
                names.len()
            ))
        }
    }
}

/// The settings with `adminState.mode: Disabled` and without causes of maintenances. Comments are lost.
fn settings_for_uninstall(text: &str) -> Result<String, String> {
    let parsed: Value = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
    let mut settings = match parsed {
        Value::Null => Mapping::new(),
        Value::Mapping(settings) => settings,
        _ => return Err("not a mapping".to_owned()),
    };
    let section = settings
        .entry("adminState".into())
        .or_insert(Value::Mapping(Mapping::new()));
    if section.is_null() {
        *section = Value::Mapping(Mapping::new());
    }
    let Value::Mapping(section) = section else {
        return Err("adminState is not a mapping".to_owned());
    };
    section.insert("mode".into(), AdminStateMode::Disabled.as_str().into());
    let causes = settings
        .get_mut("maintenance")
        .and_then(|section| section.get_mut("automatic"));
    if let Some(causes) = causes {
        *causes = Value::Sequence(Vec::new());
    }
    serde_yaml::to_string(&settings).map_err(|error| error.to_string())
}

/// Whether all pods have the newest template, and none with an earlier one is left but those of a Deployment that end.
fn is_rolled_out(kind: WorkloadKind, object: &DynamicObject) -> bool {
    let number = |path: &str| object.data.pointer(path).and_then(Json::as_i64).unwrap_or(0);
    let is_observed = number("/status/observedGeneration") >= object.metadata.generation.unwrap_or(0);
    let is_complete = match kind {
        // The controller counts the oldest pod of each node, so an updated one has no predecessor.
        WorkloadKind::DaemonSet => {
            number("/status/updatedNumberScheduled") >= number("/status/desiredNumberScheduled")
                && number("/status/numberUnavailable") == 0
        }
        WorkloadKind::Deployment => {
            let updated = number("/status/updatedReplicas");
            updated >= number("/spec/replicas") && updated == number("/status/replicas")
        }
    };
    is_observed && is_complete
}

/// The entries of a ledger, in words; `None` if there are none.
fn remaining(ledger: Result<Ledger, LedgerError>) -> Option<String> {
    let ledger = match ledger {
        Ok(ledger) => ledger,
        Err(error) => return Some(format!("the ledger cannot be read: {error}")),
    };
    let restored = || match ledger.entries().count() {
        0 => None,
        count => Some(format!(
            "{count} entries were given back, and the leader watches them for 5 min: a late write of another writer can bring a Down back"
        )),
    };
    down_entries(&ledger).or_else(restored)
}

/// The entries of a ledger that may be `Down`, in words; `None` if there are none.
fn down_entries(ledger: &Ledger) -> Option<String> {
    let down = ledger
        .entries()
        .filter(|(_, _, entry)| entry.stage != LedgerStage::Restored);
    let entries: Vec<String> = down.map(|(pool, key, _)| format!("{key} of {pool}")).collect();
    if entries.is_empty() {
        return None;
    }
    let shown = first_names(&entries, NAMED_ENTRIES);
    Some(format!("{} entries are Down by headgate: {shown}", entries.len()))
}

/// What the ledger of `headgate verify` says may be `Down`.
fn left_by_verify(ledger: &Ledger) -> Option<anyhow::Error> {
    let left = down_entries(ledger)?;
    let pool = ledger.entries().find_map(|(pool, _, _)| PoolId::parse(pool).ok());
    let command = pool.map_or_else(
        || "headgate verify".to_owned(),
        |pool| {
            format!(
                "headgate verify --load-balancer {} --pool {}",
                pool.load_balancer(),
                pool.name()
            )
        },
    );
    Some(anyhow!(
        "{left}. `headgate verify` did that, in load balancers that are not the cluster's, and no leader restores it. Nothing was changed. \
         Run `{command}`, which restores it first, and repeat this; where that load balancer is gone, remove the key verify.json of the \
         ConfigMap kube-system/headgate-admin-state instead"
    ))
}

#[cfg(test)]
mod tests {
    use headgate_test_kubernetes::FakeApi;
    use kube::api::{DeleteParams, PostParams};

    use super::*;

    #[test]
    fn settings_with_the_mode_off_keep_everything_else() {
        for (before, after) in [
            ("", "adminState:\n  mode: Disabled\n"),
            ("# only a comment\n", "adminState:\n  mode: Disabled\n"),
            ("{}\n", "adminState:\n  mode: Disabled\n"),
            ("adminState:\n", "adminState:\n  mode: Disabled\n"),
            (
                "logFormat: Text\nadminState: {foreignDown: Restore, mode: Observe}\n",
                "logFormat: Text\nadminState:\n  foreignDown: Restore\n  mode: Disabled\n",
            ),
            (
                "maintenance: {automatic: [autoscaler], enabled: true}\n",
                "maintenance:\n  automatic: []\n  enabled: true\nadminState:\n  mode: Disabled\n",
            ),
            (
                "maintenance: {enabled: true}\n",
                "maintenance:\n  enabled: true\nadminState:\n  mode: Disabled\n",
            ),
        ] {
            assert_eq!(settings_for_uninstall(before).unwrap(), after, "{before:?}");
        }
        for wrong in ["[1]", "adminState: [1]", "a: b: c"] {
            settings_for_uninstall(wrong).unwrap_err();
        }
    }

    #[test]
    fn a_workload_is_a_kind_and_a_name() {
        for text in ["daemonset/headgate", "deployment/headgate-controller"] {
            assert_eq!(text.parse::<Workload>().unwrap().to_string(), text);
        }
        for wrong in ["headgate", "daemonset/", "pod/x", "/x"] {
            wrong.parse::<Workload>().unwrap_err();
        }
    }

    #[test]
    fn a_rollout_is_complete_without_old_pods() {
        let deployment = |observed: i64, updated: i64, all: i64| {
            json!({"metadata": {"generation": 2}, "spec": {"replicas": 2},
                "status": {"observedGeneration": observed, "updatedReplicas": updated, "replicas": all}})
        };
        for (object, complete) in [
            (deployment(2, 2, 2), true),
            (deployment(1, 2, 2), false),
            (deployment(2, 1, 2), false),
            (deployment(2, 2, 3), false),
            (json!({"metadata": {"generation": 1}, "spec": {"replicas": 2}}), false),
        ] {
            let read = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(is_rolled_out(WorkloadKind::Deployment, &read), complete, "{object}");
        }
        let set = |updated: i64, unavailable: i64| {
            json!({"metadata": {"generation": 1}, "status": {"observedGeneration": 1, "desiredNumberScheduled": 3,
                "updatedNumberScheduled": updated, "numberUnavailable": unavailable}})
        };
        for (object, complete) in [(set(3, 0), true), (set(2, 0), false), (set(3, 1), false)] {
            let read = serde_json::from_value(object.clone()).unwrap();
            assert_eq!(is_rolled_out(WorkloadKind::DaemonSet, &read), complete, "{object}");
        }
    }

    #[test]
    fn every_entry_stands_and_only_intended_and_down_ones_are_down() {
        assert_eq!(remaining(Ok(Ledger::default())), None);
        let ledger = |stage: &str| -> Ledger {
            let stages = json!({format!("{stage} 2026-01-01T00:00:00Z"): [0]});
            serde_json::from_value(json!({"pools": ["/p"], "entries": [[stages, ["10.0.0.4"]]]})).unwrap()
        };
        let text = remaining(Ok(ledger("restored"))).unwrap();
        assert!(text.starts_with("1 entries were given back"), "{text}");
        assert_eq!(down_entries(&ledger("restored")), None);
        for stage in ["intended", "down"] {
            let text = remaining(Ok(ledger(stage))).unwrap();
            assert_eq!(text, "1 entries are Down by headgate: 10.0.0.4 of /p");
        }
    }

    fn request(client: Client) -> UninstallRequest {
        UninstallRequest {
            client,
            namespace: "kube-system".to_owned(),
            settings: "settings".to_owned(),
            workload: "deployment/headgate-controller".parse().unwrap(),
            timeout: Duration::from_secs(10),
        }
    }

    #[tokio::test]
    async fn a_workload_that_its_type_cannot_represent_is_waited_for() {
        let request = request(FakeApi::default().client().0);
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "headgate-controller", "namespace": "kube-system"},
            "spec": {"replicas": 2, "template": {"spec": {"containers": "none"}}}});
        let object = Decoded::Object(serde_json::from_value(object).unwrap());
        let created = workloads(&request).create(&PostParams::default(), &object).await;
        created.unwrap();
        let why = missing(&request).await.unwrap();
        assert_eq!(why, "the rollout of deployment/headgate-controller is not complete");
    }

    /// In a Deployment's status a pod that ends is none, but it may be the leader with the earlier settings.
    #[tokio::test]
    async fn pods_that_end_and_the_restart_of_all_at_once_belong_to_a_rollout() {
        let fake = FakeApi::default();
        let request = request(fake.client().0);
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "headgate-controller", "namespace": "kube-system"},
            "spec": {"replicas": 1, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}},
            "status": {"updatedReplicas": 1, "replicas": 1}});
        let object = Decoded::Object(serde_json::from_value(object).unwrap());
        workloads(&request)
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        roll(&request, "7").await.unwrap();
        let rolled = workloads(&request).get("headgate-controller").await.unwrap();
        let rolled = rolled.into_object().unwrap();
        assert_eq!(
            rolled.data["spec"]["strategy"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}})
        );
        fake.change::<Deployment>("kube-system", "headgate-controller", |object| {
            object["status"]["observedGeneration"] = object["metadata"]["generation"].clone();
        });
        let pods: Api<Pod> = Api::namespaced(request.client.clone(), "kube-system");
        for (name, component, ends, expected) in [
            ("new", "controller", false, None),
            ("agent", "agent", true, None),
            (
                "old",
                "controller",
                true,
                Some("1 pods with the earlier settings have not ended: kube-system/old"),
            ),
        ] {
            let labels = json!({"app.kubernetes.io/name": "headgate", "app.kubernetes.io/component": component});
            let metadata = json!({"name": name, "labels": labels, "finalizers": ["example.com/kept"]});
            let pod = serde_json::from_value(json!({"metadata": metadata})).unwrap();
            pods.create(&PostParams::default(), &pod).await.unwrap();
            if ends {
                pods.delete(name, &DeleteParams::default()).await.unwrap();
            }
            assert_eq!(ending_pods(&request).await.as_deref(), expected);
        }
        assert!(missing(&request).await.unwrap().contains("have not ended"));
    }

    async fn deploy(client: &Client, settings: &str) {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "headgate-controller", "namespace": "kube-system"},
            "spec": {"replicas": 1, "template": {"spec": {"volumes": [{"emptyDir": {}}, {"projected": {"sources": [
                {"configMap": {"name": settings}}, {"secret": {"name": "azure"}}]}}, {"configMap": {"name": "other"}}]}}}});
        let object = Decoded::Object(serde_json::from_value(object).unwrap());
        let workloads = workloads(&request(client.clone()));
        workloads.create(&PostParams::default(), &object).await.unwrap();
        let map = json!({"metadata": {"name": "settings", "namespace": "kube-system"}, "data": {SETTINGS_KEY: ""}});
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
        maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap())
            .await
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn settings_that_the_pods_do_not_mount_are_left_alone() {
        let fake = FakeApi::default();
        let client = fake.client().0;
        deploy(&client, "settings-2").await;
        let error = prepare_uninstall(&request(client), std::future::pending(), |_| ()).await;
        let error = error.unwrap_err().error.to_string();
        let wanted = "the pods of deployment/headgate-controller mount no ConfigMap settings, but: settings-2, other. Nothing was changed";
        assert!(error.starts_with(wanted), "{error}");
        let settings = fake.peek::<ConfigMap>("kube-system", "settings").unwrap();
        assert_eq!(settings.data.unwrap()[SETTINGS_KEY], "");
    }

    #[tokio::test(start_paused = true)]
    async fn an_interruption_says_what_was_changed() {
        for (seconds, wanted) in [(0, "interrupted"), (5, "interrupted. adminState.mode is Disabled now")] {
            let client = FakeApi::default().client().0;
            deploy(&client, "settings").await;
            let interrupted = sleep(Duration::from_secs(seconds));
            let error = prepare_uninstall(&request(client), interrupted, |_| ())
                .await
                .unwrap_err()
                .error
                .to_string();
            assert!(
                error.starts_with(wanted) && error.contains("Disabled") == (seconds > 0),
                "{error}"
            );
        }
    }

    #[tokio::test]
    async fn what_verify_left_down_stops_it_before_anything_is_changed() {
        const LOAD_BALANCER: &str =
            "/subscriptions/s/resourceGroups/scratch/providers/Microsoft.Network/loadBalancers/lb";
        let fake = FakeApi::default();
        let client = fake.client().0;
        deploy(&client, "settings").await;
        let pools = [format!("{LOAD_BALANCER}/backendAddressPools/p")];
        let entries = json!([[{"down 2026-01-01T00:00:00Z": [0]}, ["10.0.0.4"]]]);
        let ledger = json!({"version": 1, "generation": 3, "pools": pools, "entries": entries}).to_string();
        let map = |name: &str, key: &str, text: &str| -> ConfigMap {
            let metadata = json!({"name": name, "namespace": "kube-system"});
            serde_json::from_value(json!({"metadata": metadata, "data": {key: text}})).unwrap()
        };
        let maps = Api::namespaced(client.clone(), "kube-system");
        let of_verify = map("headgate-admin-state", "verify.json", &ledger);
        maps.create(&PostParams::default(), &of_verify).await.unwrap();
        let error = prepare_uninstall(&request(client), std::future::pending(), |_| ())
            .await
            .unwrap_err()
            .error
            .to_string();
        for part in [
            "1 entries are Down by headgate: 10.0.0.4 of ",
            &format!("Run `headgate verify --load-balancer {LOAD_BALANCER} --pool p`"),
            "verify.json",
        ] {
            assert!(error.contains(part), "{error}");
        }
        let settings = fake.peek::<ConfigMap>("kube-system", "settings").unwrap();
        assert_eq!(settings.data, map("settings", SETTINGS_KEY, "").data);
    }
}
