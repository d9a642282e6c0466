//! A release of the chart on a real API server. There is no earlier release of headgate, so the earlier version is the chart before its last
//! change, or this chart with other default values, under an earlier version. No kubelet runs, so the test runs the hook's command itself, with the token of the
//! hook's `ServiceAccount`, and reports its end on the Job.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use headgate_sandbox::process::Process;
use headgate_test_kubernetes::{
    assert_contains, eventually, is_kubernetes_1_30, kubectl, met, own_control_plane, scratch,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{SOON, aks, chart, helm, merged, profile, stdout_of, text, values_file};
use crate::manifests::caller::{Account, ApiRequest, CONTROLLER, Caller, acting_on};
use crate::manifests::leader::{LEDGER, MAPS, OWN};
use crate::manifests::leader_policy::in_force;
use crate::manifests::prometheus_operator::definitions;
use crate::manifests::repository;
use crate::status::world::World;

const EARLIER: &str = "0.0.9";
const JOB: &str = "/apis/batch/v1/namespaces/kube-system/jobs/headgate-uninstall";
pub(super) const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/kube-system/deployments/headgate-controller";
pub(super) const DAEMONSET: &str = "/apis/apps/v1/namespaces/kube-system/daemonsets/headgate";

/// This chart with another default, packaged as the earlier version.
fn earlier_package() -> PathBuf {
    let directory = scratch("earlier");
    let source = directory.join("headgate");
    stdout_of(Command::new("cp").arg("-R").arg(chart()).arg(&source));
    let values = text("charts/headgate/values.yaml");
    let other = values.replace("maxSurge: 1\n", "maxSurge: 2\n");
    assert_ne!(other, values);
    std::fs::write(source.join("values.yaml"), other).unwrap();
    packaged(&source)
}

/// A chart, packaged as the earlier version beside it.
fn packaged(source: &Path) -> PathBuf {
    let directory = source.parent().unwrap();
    let mut package = helm(&[
        "package",
        "--version",
        EARLIER,
        "--app-version",
        EARLIER,
        "--destination",
    ]);
    stdout_of(package.arg(directory).arg(source));
    directory.join(format!("headgate-{EARLIER}.tgz"))
}

/// The chart as it was before its last change. Where no history has it, as in an archive of the sources, this one.
fn previous_chart() -> PathBuf {
    let directory = scratch("previous");
    let script = "git diff --quiet HEAD -- charts/headgate && skip=1 || skip=0\n\
                  commit=$(git log --format=%H --max-count=1 --skip=$skip -- charts/headgate) && [ -n \"$commit\" ] || exit 3\n\
                  git archive \"$commit\" charts/headgate | tar --extract --directory \"$0\"";
    let mut git = Command::new("sh");
    git.current_dir(repository("")).args(["-c", script]).arg(&directory);
    let output = git.output().unwrap();
    let found = directory.join("charts/headgate");
    if !found.join("Chart.yaml").exists() {
        assert!(std::env::var_os("CI").is_none(), "no earlier chart: {output:?}");
        println!("no earlier chart, so this one: {output:?}");
        stdout_of(Command::new("mkdir").arg("-p").arg(directory.join("charts")));
        stdout_of(Command::new("cp").arg("-R").arg(chart()).arg(&found));
    }
    found
}

/// helm in kube-system as the administrator.
fn helm_as(administrator: &Caller, arguments: &[&str]) -> Command {
    let mut command = helm(arguments);
    command.args(["--namespace", "kube-system", "--kubeconfig"]);
    command.arg(&administrator.kubeconfig);
    command
}

fn hardened(mode: &str) -> Value {
    let values =
        json!({"settings": {"adminState": {"mode": mode}}, "image": {"repository": "registry.example.com/headgate"}});
    merged(aks(), values)
}

/// Installs or upgrades, and returns what helm printed.
fn apply(administrator: &Caller, verb: &str, package: &Path, values: &Value) -> String {
    let mut command = helm_as(administrator, &[verb, "headgate"]);
    stdout_of(command.arg(package).arg("--values").arg(values_file(values)))
}

/// The objects of headgate that the API server has, without events.
fn objects(administrator: &Caller) -> Vec<String> {
    let kinds = "serviceaccounts,configmaps,secrets,daemonsets,deployments,poddisruptionbudgets,jobs,leases,roles,rolebindings,\
                 clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,\
                 customresourcedefinitions";
    let mut command = kubectl(&administrator.kubeconfig);
    let listed = stdout_of(command.args(["get", kinds, "--all-namespaces", "-o", "name"]));
    let names = listed.lines().map(ToOwned::to_owned);
    let mut names: Vec<String> = names.filter(|name| name.contains("headgate")).collect();
    names.sort();
    names.dedup();
    names
}

#[tokio::test]
async fn a_release_is_installed_upgraded_rolled_back_and_uninstalled() {
    let control_plane = own_control_plane().await;
    let administrator = Caller::administrator(&control_plane);
    let before = objects(&administrator);
    let image = async |path: &str| {
        let workload = administrator.get(path).await;
        let image = workload["spec"]["template"]["spec"]["containers"][0]["image"].clone();
        image.as_str().unwrap().to_owned()
    };
    let settings = async || settings(&administrator).await;
    let surge =
        async || administrator.get(DAEMONSET).await["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"].clone();

    let mut observing = hardened("Observe");
    observing["uninstall"] = json!({"restore": false});
    let notes = apply(&administrator, "install", &earlier_package(), &observing);
    assert_contains!(
        notes,
        "rollout status daemonset/headgate",
        "rollout status deployment/headgate-controller",
        "get lease headgate-leader",
        "headgate status --all",
        "adminState.mode is Observe",
        "get secret headgate-azure"
    );
    for workload in [DAEMONSET, DEPLOYMENT] {
        assert_eq!(
            image(workload).await,
            format!("registry.example.com/headgate:{EARLIER}")
        );
    }
    assert_eq!(surge().await, 2);
    assert!(settings().await.contains("Observe"));
    let installed = objects(&administrator);

    // A newer version, another setting, one more feature.
    let mut enforcing = merged_maintenance(hardened("Enforce"));
    enforcing["uninstall"] = json!({"restore": false});
    apply(&administrator, "upgrade", &chart(), &enforcing);
    let version = env!("CARGO_PKG_VERSION");
    for workload in [DAEMONSET, DEPLOYMENT] {
        assert_eq!(
            image(workload).await,
            format!("registry.example.com/headgate:{version}")
        );
    }
    assert_eq!(surge().await, 1);
    assert!(settings().await.contains("Enforce"));
    let with_maintenance = objects(&administrator);
    assert!(
        with_maintenance
            .iter()
            .any(|name| name.ends_with("/nodemaintenances.headgate.dev")),
        "{with_maintenance:?}"
    );
    let volumes = administrator.get(DEPLOYMENT).await["spec"]["template"]["spec"]["volumes"].clone();

    stdout_of(&mut helm_as(&administrator, &["rollback", "headgate", "1"]));
    assert_eq!(
        image(DAEMONSET).await,
        format!("registry.example.com/headgate:{EARLIER}")
    );
    assert_eq!(surge().await, 2);
    assert!(settings().await.contains("Observe"));
    let rolled_back = administrator.get(DEPLOYMENT).await["spec"]["template"]["spec"]["volumes"].clone();
    assert_ne!(rolled_back, volumes, "earlier settings roll the pods");
    let mut left = objects(&administrator);
    // Two more releases are recorded, and the CRDs stay.
    left.retain(|name| !name.starts_with("secret/sh.helm.release") && !name.starts_with("customresourcedefinition."));
    let mut expected = installed;
    expected.retain(|name| !name.starts_with("secret/sh.helm.release"));
    assert_eq!(left, expected);

    a_profile_without_a_leader_is_refused_while_the_ledger_has_an_entry(&administrator).await;
    another_name_is_refused_while_a_daemon_set_has_the_earlier_one(&administrator).await;

    stdout_of(&mut helm_as(&administrator, &["uninstall", "headgate"]));
    let crds = [
        "customresourcedefinition.apiextensions.k8s.io/evacuations.headgate.dev",
        "customresourcedefinition.apiextensions.k8s.io/nodemaintenances.headgate.dev",
    ];
    let after: Vec<_> = objects(&administrator)
        .into_iter()
        .filter(|name| !before.contains(name))
        .collect();
    assert_eq!(after, crds, "only the CRDs are left, as maintenance.keepCRDs says");
    control_plane.stop().await;
}

/// What the API server would answer to an upgrade with this value; the error is what helm says.
fn try_upgrade(administrator: &Caller, value: &str) -> Result<(), String> {
    let mut command = helm_as(administrator, &["upgrade", "headgate", "--dry-run=server"]);
    let output = command.arg(chart()).args(["--set", value]).output();
    let output = output.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success().then_some(()).ok_or(said)
}

/// No leader of the profile healthz would give it back.
async fn a_profile_without_a_leader_is_refused_while_the_ledger_has_an_entry(administrator: &Caller) {
    let upgrade = || try_upgrade(administrator, "profile=healthz");
    let map = format!("{MAPS}/{LEDGER}");
    let pools = ["/subscriptions/s/resourcegroups/g/providers/microsoft.network/loadbalancers/l/backendaddresspools/p"];
    let metadata = json!({"name": LEDGER});
    administrator.post(MAPS, json!({"metadata": metadata})).await;
    for stage in ["intended", "down", "restored"] {
        let entries = json!([[{format!("{stage} 2026-01-01T00:00:00Z"): [0]}, ["10.0.0.4"]]]);
        let ledger = json!({"version": 1, "generation": 3, "pools": pools, "entries": entries}).to_string();
        administrator
            .merge(&map, json!({"data": {"ledger.json": ledger}}))
            .await;
        let said = upgrade().expect_err(stage);
        assert_contains!(said, "settings.adminState.mode to Disabled", "the ledger has no entry");
    }
    let empty = json!({"version": 1, "generation": 4, "pools": [], "entries": []}).to_string();
    administrator.merge(&map, json!({"data": {"ledger.json": empty}})).await;
    upgrade().unwrap();
    administrator.delete(&map).await;
    upgrade().unwrap();
}

/// Helm would delete the earlier `DaemonSet` with its pods before the new one's are ready.
async fn another_name_is_refused_while_a_daemon_set_has_the_earlier_one(administrator: &Caller) {
    try_upgrade(administrator, "fullnameOverride=headgate").unwrap();
    let said = try_upgrade(administrator, "fullnameOverride=gate").unwrap_err();
    let (_, command) = said
        .split_once("first run `kubectl ")
        .unwrap_or_else(|| panic!("{said}"));
    let words = command.split('`').next().unwrap().split(' ');
    stdout_of(kubectl(&administrator.kubeconfig).args(words).arg("--wait=false"));
    // No garbage collector runs, which releases the pods and removes this.
    administrator
        .merge(DAEMONSET, json!({"metadata": {"finalizers": null}}))
        .await;
    try_upgrade(administrator, "fullnameOverride=gate").unwrap();
}

/// Each way to install: as the file of values says, from a bare cluster to a bare cluster, by way of the chart before its last change.
#[tokio::test]
async fn each_profile_is_installed_upgraded_rolled_back_and_uninstalled() {
    let control_plane = own_control_plane().await;
    let administrator = Caller::administrator(&control_plane);
    let create = |file: &Path| stdout_of(kubectl(&administrator.kubeconfig).args(["create", "-f"]).arg(file));
    let before = objects(&administrator);
    let versions = async || {
        let workload = administrator.get(DAEMONSET).await;
        let image = workload["spec"]["template"]["spec"]["containers"][0]["image"].clone();
        image.as_str().unwrap().rsplit_once(':').unwrap().1.to_owned()
    };
    let mut monitored = Vec::new();
    let previous = previous_chart();
    let package = packaged(&previous);
    for name in ["healthz", "azure", "aks", "no-azure", "everything"] {
        if name == "everything" {
            create(&definitions());
        }
        // No kubelet runs the hook.
        let bare = json!({"uninstall": {"restore": false}, "maintenance": {"keepCRDs": false}});
        let values = merged(profile(name), bare.clone());
        let file = previous.join(format!("ci/{name}-values.yaml"));
        let earlier =
            std::fs::read_to_string(file).map_or_else(|_| profile(name), |text| serde_yaml::from_str(&text).unwrap());
        apply(&administrator, "install", &package, &merged(earlier, bare));
        let installed = objects(&administrator);
        assert!(installed.len() > before.len(), "{name}");
        apply(&administrator, "upgrade", &chart(), &values);
        assert_eq!(versions().await, env!("CARGO_PKG_VERSION"), "{name}");
        stdout_of(&mut helm_as(&administrator, &["rollback", "headgate", "1"]));
        assert_eq!(versions().await, EARLIER, "{name}");
        if name == "everything" {
            let list = ["get", "podmonitors,prometheusrules", "--all-namespaces", "-o", "name"];
            let listed = stdout_of(kubectl(&administrator.kubeconfig).args(list));
            monitored = listed.lines().map(ToOwned::to_owned).collect();
        }
        lists_of_custom_resources_answer(&administrator).await;
        stdout_of(&mut helm_as(&administrator, &["uninstall", "headgate"]));
        // A definition stays until the API server has deleted its objects, which helm does not wait for.
        eventually(SOON, name, async || {
            let left = objects(&administrator);
            met(left == before, format!("{left:?}"))
        })
        .await;
    }
    assert_eq!(monitored.len(), 3, "{monitored:?}");
    control_plane.stop().await;
}

/// Lists each kind that a definition of headgate declares, as a controller does that watches it. Without that, kube-apiserver's own first
/// list of a kind that is being deleted may fail, and its next attempt 5 ms later meets a conflict, after which it waits for the next
/// resync, up to five minutes (apiextensions-apiserver, `crd_finalizer.go`).
async fn lists_of_custom_resources_answer(administrator: &Caller) {
    let prefix = "customresourcedefinition.apiextensions.k8s.io/";
    let names = objects(administrator);
    for definition in names.iter().filter_map(|name| name.strip_prefix(prefix)) {
        let (plural, group) = definition.split_once('.').unwrap();
        eventually(SOON, definition, async || {
            let (status, body) = administrator
                .ask(&ApiRequest::get(&format!("/apis/{group}/v1alpha1/{plural}")))
                .await;
            met(status == 200, body)
        })
        .await;
    }
}

fn merged_maintenance(mut values: Value) -> Value {
    values["maintenance"] = json!({"enabled": true});
    values
}

/// The settings that the pods of the agents read.
pub(super) async fn settings(administrator: &Caller) -> String {
    let daemonset = administrator.get(DAEMONSET).await;
    let volumes = daemonset["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    let name = volumes
        .iter()
        .find_map(|volume| volume["configMap"]["name"].as_str())
        .unwrap();
    let path = format!("/api/v1/namespaces/kube-system/configmaps/{name}");
    let found = administrator.get(&path).await;
    found["data"]["settings.yaml"].as_str().unwrap().to_owned()
}

/// A controller with a pod's token and the settings of the `ConfigMap`, as its pod would run. Dropping it kills the process.
pub(super) async fn controller(administrator: &Caller, pod: &Caller, world: &World) -> Process {
    let directory = scratch("release");
    std::fs::write(directory.join("settings.yaml"), settings(administrator).await).unwrap();
    let deployment = administrator.get(DEPLOYMENT).await;
    let shipped = deployment["spec"]["template"]["spec"]["containers"][0]["args"].clone();
    let shipped: Vec<String> = serde_json::from_value(shipped).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command.current_dir(&directory).env_remove("KUBECONFIG");
    for argument in shipped {
        let argument = argument.replace("/etc/headgate/azure.json", world.azure_json.to_str().unwrap());
        command.arg(argument.replace("/etc/headgate/", &format!("{}/", directory.display())));
    }
    command.args([
        "--node-name=node-1",
        "--metrics-bind-address=127.0.0.1:0",
        "--kubeconfig",
    ]);
    command
        .arg(&pod.kubeconfig)
        .arg("--state-dir")
        .arg(directory.join("state"));
    Process::start("headgate", command, &directory.join("log")).unwrap()
}

/// Waits until node-2 is `Down` in the pools, or nothing is.
async fn is_down(world: &World, nodes: &[&str]) {
    eventually(Duration::from_mins(2), &format!("{nodes:?} are Down"), async || {
        let down = world.all_down().await;
        let is_so = ["kubernetes", "kubernetes-IPv6"]
            .iter()
            .all(|pool| down[*pool] == nodes);
        met(is_so, format!("{down:?}"))
    })
    .await;
}

/// Waits until the maintenance that the leader created for node-2 has a stage, and its finalizer where that is not over.
async fn maintenance_is(administrator: &Caller, stage: &str) {
    let path = "/apis/headgate.dev/v1alpha1/nodemaintenances/automatic-node-2";
    eventually(SOON, &format!("the maintenance is in {stage}"), async || {
        let (_, found) = administrator.ask(&ApiRequest::get(path)).await;
        let is_over = found["metadata"].get("finalizers").is_none();
        let is_so = found["spec"]["stage"] == stage && is_over == (stage == "Complete");
        met(is_so, found.to_string())
    })
    .await;
}

/// Runs what the hook's container runs, with the token of its `ServiceAccount` and perhaps another bound on its time.
async fn run_hook(administrator: &Caller, uninstaller: &Caller, timeout: Option<&str>) -> Output {
    let job = administrator.get(JOB).await;
    let shipped = job["spec"]["template"]["spec"]["containers"][0]["args"].clone();
    let mut arguments: Vec<String> = serde_json::from_value(shipped).unwrap();
    arguments.retain(|argument| timeout.is_none() || !argument.starts_with("--timeout="));
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command.env_remove("KUBECONFIG").args(arguments);
    if let Some(timeout) = timeout {
        command.args(["--timeout", timeout]);
    }
    command.arg("--kubeconfig").arg(&uninstaller.kubeconfig);
    tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap()
}

/// What the hook says when its time is over.
async fn hook_fails(administrator: &Caller, uninstaller: &Caller) -> String {
    let output = run_hook(administrator, uninstaller, Some("4s")).await;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    said
}

/// Starts an uninstall, up to the hook's new Job, and gets a token of its `ServiceAccount` with a pod on a node.
async fn begin_uninstall(world: &World, administrator: &Caller, node: &str) -> (JoinHandle<Output>, Caller) {
    let job = async || administrator.ask(&ApiRequest::get(JOB)).await;
    let (_, earlier) = job().await;
    let mut uninstall = helm_as(administrator, &["uninstall", "headgate", "--timeout", "5m"]);
    let uninstall = tokio::task::spawn_blocking(move || uninstall.output().unwrap());
    eventually(SOON, "the hook's Job", async || match job().await {
        (200, job) if job["metadata"]["uid"] != earlier["metadata"]["uid"] => Ok(()),
        (_, body) => Err(body.to_string()),
    })
    .await;
    let account = Account {
        namespace: "kube-system",
        name: "headgate-uninstall",
    };
    (uninstall, acting_on(&world.control_plane, account, node).await)
}

/// Reports the end of the hook's Job.
async fn end_job(administrator: &Caller, conditions: [&str; 2], more: Value) {
    let condition = |name: &str| json!({"type": name, "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"});
    let [before, end] = conditions.map(condition);
    let mut conditions = vec![end];
    // 1.30 has it for Jobs with a policy only, newer ones require it.
    if !is_kubernetes_1_30(&administrator.client).await {
        conditions.insert(0, before);
    }
    let status = merged(
        json!({"startTime": "2026-01-01T00:00:00Z", "conditions": conditions}),
        more,
    );
    administrator
        .merge(&format!("{JOB}/status"), json!({"status": status}))
        .await;
}

/// What restarted the pods that may lead last.
async fn roll(administrator: &Caller) -> Value {
    let deployment = administrator.get(DEPLOYMENT).await;
    deployment["spec"]["template"]["metadata"]["annotations"]["headgate.dev/admin-state-mode"].clone()
}

/// A hook that runs out of time leaves the mode `Disabled`, and says how to go on with headgate.
async fn a_failed_uninstall_is_taken_back_by_the_commands_of_the_page(world: &World, administrator: &Caller) {
    let (uninstall, uninstaller) = begin_uninstall(world, administrator, "node-3").await;
    let said = hook_fails(administrator, &uninstaller).await;
    assert!(settings(administrator).await.contains("Disabled"));
    assert_contains!(
        said,
        "adminState.mode is Disabled now",
        "earlier ones still may",
        "helm rollback",
        "kubectl -n kube-system rollout restart deployment/headgate-controller"
    );
    let job = administrator.get(JOB).await;
    assert_eq!(job["spec"]["backoffLimit"], 0, "one failed pod ends it");
    let rules = json!([{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]);
    assert_eq!(
        job["spec"]["podFailurePolicy"]["rules"], rules,
        "an evicted pod does not"
    );
    end_job(administrator, ["FailureTarget", "Failed"], json!({"failed": 1})).await;
    let output = uninstall.await.unwrap();
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let account = "/api/v1/namespaces/kube-system/serviceaccounts/headgate-uninstall";
    for gone in [account, JOB] {
        let (status, body) = administrator.ask(&ApiRequest::get(gone)).await;
        assert_eq!(status, 404, "nothing of a failed uninstall goes on: {body}");
    }

    let page = text("docs/guides/upgrade-uninstall.md");
    let mut blocks = page.split("```sh cloud\n").skip(1);
    let block = blocks.find(|block| block.starts_with("helm rollback")).unwrap();
    for line in block.split("```").next().unwrap().lines() {
        let command = line.split('#').next().unwrap().replace("REVISION", "1");
        let (program, arguments) = command.trim().split_once(' ').unwrap();
        let words: Vec<_> = arguments.split_whitespace().collect();
        match program {
            "helm" => stdout_of(&mut helm_as(administrator, &words)),
            "kubectl" => stdout_of(kubectl(&administrator.kubeconfig).args(words)),
            _ => panic!("{line}"),
        };
    }
    let settings = settings(administrator).await;
    assert!(
        settings.contains("Enforce") && !settings.contains("Disabled"),
        "{settings}"
    );
    let deployment = administrator.get(DEPLOYMENT).await;
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    assert!(
        annotations["kubectl.kubernetes.io/restartedAt"].is_string(),
        "{annotations}"
    );
}

#[tokio::test]
async fn an_uninstall_first_gives_back_what_is_down() {
    let world = World::start().await;
    let administrator = Caller::administrator(&world.control_plane);
    let before = objects(&administrator);
    let maintenance = json!({"maintenance": {"enabled": true, "automatic": ["autoscaler"], "keepCRDs": false}});
    apply(
        &administrator,
        "install",
        &chart(),
        &merged(hardened("Enforce"), maintenance),
    );
    let pod = acting_on(&world.control_plane, CONTROLLER, "node-1").await;
    in_force(&pod).await;
    let mut leader = controller(&administrator, &pod, &world).await;
    let taint = json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]);
    world.taint("node-2", taint).await;
    is_down(&world, &["node-2"]).await;
    maintenance_is(&administrator, "Drain").await;

    a_failed_uninstall_is_taken_back_by_the_commands_of_the_page(&world, &administrator).await;
    let earlier_roll = roll(&administrator).await;
    let (uninstall, uninstaller) = begin_uninstall(&world, &administrator, "node-1").await;

    // With the earlier settings still running, the command waits to the end of its time.
    let said = hook_fails(&administrator, &uninstaller).await;
    assert_contains!(said, "the rollout of deployment/headgate-controller is not complete");
    assert!(said.contains("headgate restore"), "{said}");
    assert_ne!(roll(&administrator).await, earlier_roll, "the pods restart again");

    // The rollout is complete and no new pod has led yet: what is Down still stands.
    leader.signal(Signal::SIGTERM);
    assert!(leader.wait(SOON).await.unwrap().success());
    let generation = administrator.get(DEPLOYMENT).await["metadata"]["generation"].clone();
    let status = json!({"status": {"observedGeneration": generation, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2,
        "availableReplicas": 2}});
    let rolled_out = ApiRequest::merge(&format!("{DEPLOYMENT}/status"), status);
    administrator.done(&rolled_out).await;
    let said = hook_fails(&administrator, &uninstaller).await;
    assert_contains!(said, "entries are Down by headgate", "127.0.0.2");

    // A pod with the new settings leads.
    let settings = settings(&administrator).await;
    assert!(
        settings.contains("Disabled") && !settings.contains("Enforce"),
        "{settings}"
    );
    let successor = controller(&administrator, &pod, &world).await;
    is_down(&world, &[]).await;
    maintenance_is(&administrator, "Complete").await;
    let said = hook_fails(&administrator, &uninstaller).await;
    assert_contains!(said, "entries were given back, and the leader watches them for 5 min");

    // Five minutes later the leader has removed them.
    drop(successor);
    let empty = json!({"version": 1, "generation": 100, "pools": [], "entries": []}).to_string();
    administrator
        .merge(&format!("{MAPS}/{LEDGER}"), json!({"data": {"ledger.json": empty}}))
        .await;
    let output = run_hook(&administrator, &uninstaller, None).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "Nothing is Down by headgate and no maintenance is left; it can be deleted.\n"
    );
    is_down(&world, &[]).await;
    assert!(!uninstall.is_finished(), "helm waits for the Job");

    let times_and_count = json!({"completionTime": "2026-01-01T00:00:01Z", "succeeded": 1});
    end_job(&administrator, ["SuccessCriteriaMet", "Complete"], times_and_count).await;
    let output = uninstall.await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    only_the_commands_of_the_page_are_left_to_run(&administrator, &before).await;
    world.control_plane.stop().await;
}

/// What the leader made at run time is left, and docs/guides/upgrade-uninstall.md has the commands that delete it.
async fn only_the_commands_of_the_page_are_left_to_run(administrator: &Caller, before: &[String]) {
    let left = || -> Vec<String> {
        let names = objects(administrator).into_iter();
        names.filter(|name| !before.contains(name)).collect()
    };
    let expected = [
        format!("configmap/{LEDGER}"),
        format!("lease.coordination.k8s.io/{OWN}"),
    ];
    assert_eq!(left(), expected);
    let page = text("docs/guides/upgrade-uninstall.md");
    let (_, section) = page.split_once("\n## Uninstall\n").unwrap();
    let (_, section) = section.split_once("\n3. Delete what the leader made").unwrap();
    for command in section.lines().filter_map(|line| line.strip_prefix("kubectl ")) {
        let words = command.split('#').next().unwrap().split_whitespace();
        stdout_of(kubectl(&administrator.kubeconfig).args(words));
    }
    assert_eq!(left(), Vec::<String>::new());
    assert_eq!(
        administrator.ask(&ApiRequest::get(&format!("{MAPS}/{LEDGER}"))).await.0,
        404
    );
}
