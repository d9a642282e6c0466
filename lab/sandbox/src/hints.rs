//! Commands to try, ready to be pasted into another terminal.

use std::env;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::assets::Assets;
use super::azure::LOAD_BALANCER;
use super::directory::NodeAddresses;
use super::local_service::{INTERVAL_SECONDS, NAME, POOL, SLICE};
use super::workloads::{MAINTENANCES, NAMESPACE};

/// The taint key in the commands: cluster-autoscaler's.
const TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// The values in the commands.
pub(super) struct HintContext<'a> {
    pub(super) program: &'a Path,
    pub(super) kubeconfig: &'a Path,
    pub(super) assets: Option<&'a Assets>,
    pub(super) nodes: &'a [NodeAddresses],
    /// The node on which the leader runs, if one is elected: another one is marked, because the leader would hand over.
    pub(super) leader: Option<&'a str>,
    pub(super) azure_json: &'a Path,
    pub(super) control: SocketAddr,
    pub(super) logs: &'a Path,
    /// Whether the sandbox has a Local Service, because the control plane is its own.
    pub(super) has_local_service: bool,
    /// The manifests of maintenances, if the sandbox has workloads.
    pub(super) maintenances: &'a [PathBuf],
}

/// kubectl with its flag, the program headgate, the kubeconfig and the `azure.json`, each quoted for a shell.
type Programs = [String; 4];

/// The text, with commands for the first node without the leader.
pub(super) fn text(context: &HintContext<'_>) -> String {
    let kubectl = kubectl(env::var_os("PATH").as_deref(), context.assets);
    let [headgate, kubeconfig, azure_json] =
        [context.program, context.kubeconfig, context.azure_json].map(|path| quoted(&path.to_string_lossy()));
    let programs = [
        format!("{kubectl} --kubeconfig {kubeconfig}"),
        headgate,
        kubeconfig,
        azure_json,
    ];
    let other = context.nodes.iter().find(|node| Some(&*node.name) != context.leader);
    let text = match other.or(context.nodes.first()) {
        None => without_agents(&programs, context),
        Some(marked) => {
            let mut text = node_commands(&programs, context, marked);
            if context.has_local_service {
                text.push_str(&local_service_commands(&programs, context));
            }
            if !context.maintenances.is_empty() {
                text.push_str(&maintenance_commands(&programs, context.maintenances));
            }
            text
        }
    };
    format!(
        "{text}\nLogs are in {}. Ctrl-C stops the sandbox.\n",
        context.logs.display()
    )
}

/// The commands about one node and the emulated Azure.
fn node_commands(programs: &Programs, context: &HintContext<'_>, marked: &NodeAddresses) -> String {
    let [kubectl, headgate, kubeconfig, azure_json] = programs;
    let NodeAddresses { name, addresses } = marked;
    let (address, operations, control) = (addresses.healthz, addresses.metrics, context.control);
    format!(
        "Try these in another terminal:

Mark a node for removal, as cluster-autoscaler does:
  {kubectl} taint node {name} {TAINT}=1:NoSchedule
Send a load balancer's probe; after a 503 the node gets no new connections:
  curl -i http://{address}/healthz
Explain the node's health:
  {headgate} why {name} --kubeconfig {kubeconfig} --statusz http://{operations}/statusz
Show the leader, and the node's admin state in each pool of the emulated Azure; -o wide shows more:
  {headgate} status --kubeconfig {kubeconfig} --azure-config-file {azure_json} --statusz {name}=http://{operations}/statusz
Remove the mark, then probe again:
  {kubectl} taint node {name} {TAINT}-
List the nodes:
  {kubectl} get nodes
Show the emulated Azure's load balancers; lab/azure-emulator/README.md has more:
  curl -s http://{control}/emulator/v1/state
"
    )
}

/// The commands for a sandbox in which the user installs headgate.
fn without_agents(programs: &Programs, context: &HintContext<'_>) -> String {
    let [kubectl, headgate, kubeconfig, azure_json] = programs;
    let control = context.control;
    format!(
        "No agent runs. docs/dev/lab.md installs the Helm chart here and runs its processes. It uses these:
  export KUBECONFIG={kubeconfig} AZURE_JSON={azure_json} EMULATOR=http://{control}
List the nodes:
  {kubectl} get nodes
Show the nodes and the load balancers of the emulated Azure:
  {headgate} status --all --kubeconfig {kubeconfig} --azure-config-file {azure_json}
"
    )
}

/// The commands about the Local Service: endpoints on one node, on the others, and a write that Azure refuses.
fn local_service_commands(programs: &Programs, context: &HintContext<'_>) -> String {
    let [kubectl, headgate, kubeconfig, azure_json] = programs;
    let names: Vec<_> = context.nodes.iter().map(|node| node.name.as_str()).collect();
    let (first, others) = names.split_at(names.len().min(1));
    let others = if others.is_empty() { first } else { others };
    let [one_node, other_nodes] = [first, others].map(|nodes| {
        let endpoint = |(place, node)| json!({"addresses": [format!("10.244.0.{}", place + 1)], "nodeName": node});
        let endpoints: Vec<_> = nodes.iter().enumerate().map(endpoint).collect();
        let patch = quoted(&json!({"endpoints": endpoints}).to_string());
        format!("{kubectl} patch endpointslice {SLICE} --type=merge -p {patch}")
    });
    let refusal = json!({"match": {"method": "PUT", "path": format!("/{POOL}$")}, "times": 1,
        "action": {"answer": {"status": 409}}});
    let (control, refusal) = (context.control, quoted(&refusal.to_string()));
    format!(
        "The Service {NAME} has the policy Local, and the pool {LOAD_BALANCER}/{POOL}. Give it an endpoint; within \
         {INTERVAL_SECONDS} s the node joins the pool:
  {one_node}
Move its endpoints; the pool follows:
  {other_nodes}
Let Azure refuse the pool's next write, then move them again; the leader retries with its next tick:
  curl -s http://{control}/emulator/v1/faults -d {refusal}
Show what was reported on the Service:
  {kubectl} get events --field-selector involvedObject.name={NAME}
Explain the members of its pool:
  {headgate} why service default/{NAME} --kubeconfig {kubeconfig} --azure-config-file {azure_json}
"
    )
}

/// The commands about maintenances, in the order in which they are to be tried.
fn maintenance_commands([kubectl, ..]: &Programs, manifests: &[PathBuf]) -> String {
    let file = |file: &PathBuf| format!("-f {}", quoted(&file.to_string_lossy()));
    let files = manifests.iter().map(file).collect::<Vec<_>>().join(" ");
    let [first, second] = MAINTENANCES;
    format!(
        "Show the pods that are to be moved:
  {kubectl} -n {NAMESPACE} get pods -o wide
Drain two nodes by each of two maintenances, which have one node in common:
  {kubectl} apply {files}
Follow them:
  {kubectl} get hgnm -w
Show what a maintenance waits for on each node, and its events:
  {kubectl} describe hgnm {first}
List the pods that are evacuated:
  {kubectl} get evac -A
Once both are drained, put the nodes back into service:
  {kubectl} delete hgnm {first} {second}
"
    )
}

/// `kubectl` if it is in `PATH`, otherwise the path of the one among the control plane's programs.
fn kubectl(path: Option<&OsStr>, assets: Option<&Assets>) -> String {
    let on_path = path.is_some_and(|path| env::split_paths(path).any(|directory| directory.join("kubectl").is_file()));
    let own = assets.and_then(|assets| assets.program("kubectl").ok());
    match own {
        Some(own) if !on_path => quoted(&own.to_string_lossy()),
        _ => "kubectl".to_owned(),
    }
}

/// A word, quoted for a shell where necessary.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::Addresses;

    #[test]
    fn quoted_words_are_read_back_by_a_shell() {
        for word in ["/tmp/a-b_c.d", "/tmp/with space", "it's", "$HOME;`id`", ""] {
            let script = format!("printf %s {}", quoted(word));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
        assert_eq!(quoted("/tmp/a-b"), "/tmp/a-b");
    }

    fn node(name: &str) -> NodeAddresses {
        NodeAddresses {
            name: name.to_owned(),
            addresses: Addresses {
                healthz: "127.0.0.1:1234".parse().unwrap(),
                metrics: "127.0.0.1:1235".parse().unwrap(),
            },
        }
    }

    fn context(nodes: &[NodeAddresses]) -> HintContext<'_> {
        HintContext {
            program: Path::new("/usr/bin/headgate"),
            kubeconfig: Path::new("/tmp/a b/kubeconfig"),
            assets: None,
            nodes,
            leader: None,
            azure_json: Path::new("/tmp/a b/azure.json"),
            control: "127.0.0.1:1236".parse().unwrap(),
            logs: Path::new("/tmp/a b/logs"),
            has_local_service: true,
            maintenances: &[],
        }
    }

    #[test]
    fn commands_name_the_first_node() {
        let manifests = ["/tmp/a b/maintenance-a.yaml".into(), "/tmp/b.yaml".into()];
        let text = text(&HintContext {
            maintenances: &manifests,
            ..context(&[node("node-1")])
        });
        for command in [
            "kubectl --kubeconfig '/tmp/a b/kubeconfig' apply -f '/tmp/a b/maintenance-a.yaml' -f /tmp/b.yaml",
            "kubectl --kubeconfig '/tmp/a b/kubeconfig' get hgnm -w",
            "kubectl --kubeconfig '/tmp/a b/kubeconfig' delete hgnm maintenance-a maintenance-b",
            "kubectl --kubeconfig '/tmp/a b/kubeconfig' patch endpointslice web-1 --type=merge -p '{\"endpoints\":[{\"addresses\":[\"10.244.0.1\"],\"nodeName\":\"node-1\"}]}'",
            "kubectl --kubeconfig '/tmp/a b/kubeconfig' get events --field-selector involvedObject.name=web",
            "/usr/bin/headgate why service default/web --kubeconfig '/tmp/a b/kubeconfig' --azure-config-file '/tmp/a b/azure.json'",
            "kubectl --kubeconfig '/tmp/a b/kubeconfig' taint node node-1 ToBeDeletedByClusterAutoscaler=1:NoSchedule",
            "kubectl --kubeconfig '/tmp/a b/kubeconfig' taint node node-1 ToBeDeletedByClusterAutoscaler-",
            "curl -i http://127.0.0.1:1234/healthz",
            "/usr/bin/headgate status --kubeconfig '/tmp/a b/kubeconfig' --azure-config-file '/tmp/a b/azure.json' --statusz node-1=http://127.0.0.1:1235/statusz",
            "curl -s http://127.0.0.1:1236/emulator/v1/state",
            "/usr/bin/headgate why node-1 --kubeconfig '/tmp/a b/kubeconfig' --statusz http://127.0.0.1:1235/statusz",
        ] {
            assert!(text.lines().any(|line| line.trim() == command), "{command}\n{text}");
        }
    }

    #[test]
    fn the_leaders_node_is_not_marked() {
        let marked = |nodes: &[NodeAddresses], leader| {
            let text = text(&HintContext {
                leader,
                ..context(nodes)
            });
            let (_, rest) = text.split_once("taint node ").unwrap();
            rest.split(' ').next().unwrap().to_owned()
        };
        let nodes = [node("node-1"), node("node-2")];
        assert_eq!(marked(&nodes, Some("node-1")), "node-2");
        assert_eq!(marked(&nodes, Some("node-2")), "node-1");
        assert_eq!(marked(&nodes[..1], Some("node-1")), "node-1", "there is no other");
    }

    #[test]
    fn without_agents_the_commands_are_about_the_installation() {
        let text = text(&context(&[]));
        for command in [
            "export KUBECONFIG='/tmp/a b/kubeconfig' AZURE_JSON='/tmp/a b/azure.json' EMULATOR=http://127.0.0.1:1236",
            "/usr/bin/headgate status --all --kubeconfig '/tmp/a b/kubeconfig' --azure-config-file '/tmp/a b/azure.json'",
        ] {
            assert!(text.lines().any(|line| line.trim() == command), "{command}\n{text}");
        }
    }

    #[test]
    fn kubectl_in_path_is_preferred() {
        let directory = tempfile::tempdir().unwrap();
        for program in ["etcd", "kube-apiserver", "kubectl"] {
            let path = directory.path().join(program);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        let assets = Assets::find(Some(directory.path())).unwrap();
        assert_eq!(kubectl(Some(directory.path().as_os_str()), Some(&assets)), "kubectl");
        let own = directory.path().join("kubectl");
        assert_eq!(
            kubectl(Some(OsStr::new("/nonexistent")), Some(&assets)),
            own.to_string_lossy()
        );
        assert_eq!(kubectl(None, None), "kubectl");
    }
}
