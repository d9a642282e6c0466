//! Commands to try, ready to be pasted into another terminal.

use std::env;
use std::ffi::OsStr;
use std::fmt::{Display, Write as _};
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

/// The programs of the commands, and the files that they read, quoted for a shell.
struct Programs {
    kubectl: String,
    headgate: String,
    kubeconfig: String,
    azure_json: String,
}

/// The text, with commands for the first node without the leader.
pub(super) fn text(context: &HintContext<'_>) -> String {
    let HintContext {
        program,
        kubeconfig,
        assets,
        nodes,
        leader,
        azure_json,
        control,
        logs,
        has_local_service,
        maintenances,
    } = *context;
    let kubectl = kubectl(env::var_os("PATH").as_deref(), assets);
    let kubeconfig = quoted(&kubeconfig.to_string_lossy());
    let programs = Programs {
        kubectl: format!("{kubectl} --kubeconfig {kubeconfig}"),
        headgate: quoted(&program.to_string_lossy()),
        kubeconfig,
        azure_json: quoted(&azure_json.to_string_lossy()),
    };
    let mut text = String::new();
    let other = nodes.iter().find(|node| Some(&*node.name) != leader);
    let Some(marked) = other.or(nodes.first()) else {
        return without_agents(&programs, context);
    };
    let Programs {
        kubectl,
        headgate,
        kubeconfig,
        azure_json,
    } = &programs;
    let (name, address, operations) = (&marked.name, marked.addresses.healthz, marked.addresses.metrics);
    let commands = [
        (
            "Mark a node for removal, as cluster-autoscaler does:",
            format!("{kubectl} taint node {name} {TAINT}=1:NoSchedule"),
        ),
        (
            "Send a load balancer's probe; after a 503 the node gets no new connections:",
            format!("curl -i http://{address}/healthz"),
        ),
        (
            "Explain the node's health:",
            format!("{headgate} why {name} --kubeconfig {kubeconfig} --statusz http://{operations}/statusz"),
        ),
        (
            "Show the leader, and the node's admin state in each pool of the emulated Azure; -o wide shows more:",
            format!(
                "{headgate} status --kubeconfig {kubeconfig} --azure-config-file {azure_json} --statusz \
                 {name}=http://{operations}/statusz"
            ),
        ),
        (
            "Remove the mark, then probe again:",
            format!("{kubectl} taint node {name} {TAINT}-"),
        ),
        ("List the nodes:", format!("{kubectl} get nodes")),
        (
            "Show the emulated Azure's load balancers; lab/azure-emulator/README.md has more:",
            format!("curl -s http://{control}/emulator/v1/state"),
        ),
    ];
    text.push_str("Try these in another terminal:\n\n");
    text.push_str(&listed(&commands));
    if has_local_service {
        text.push_str(&local_service_commands(&programs, context));
    }
    if !maintenances.is_empty() {
        text.push_str(&maintenance_commands(kubectl, maintenances));
    }
    let _ = write!(text, "\nLogs are in {}. Ctrl-C stops the sandbox.\n", logs.display());
    text
}

/// The commands for a sandbox in which the user installs headgate.
fn without_agents(programs: &Programs, context: &HintContext<'_>) -> String {
    let Programs {
        kubectl,
        headgate,
        kubeconfig,
        azure_json,
    } = programs;
    let (control, logs) = (context.control, context.logs.display());
    format!(
        "No agent runs. docs/dev/lab.md installs the Helm chart here and runs its processes. It uses these:\n  \
         export KUBECONFIG={kubeconfig} AZURE_JSON={azure_json} EMULATOR=http://{control}\n\
         List the nodes:\n  {kubectl} get nodes\n\
         Show the nodes and the load balancers of the emulated Azure:\n  \
         {headgate} status --all --kubeconfig {kubeconfig} --azure-config-file {azure_json}\n\
         \nLogs are in {logs}. Ctrl-C stops the sandbox.\n"
    )
}

/// The commands about the Local Service: endpoints on one node, on the others, and a write that Azure refuses.
fn local_service_commands(programs: &Programs, context: &HintContext<'_>) -> String {
    let Programs {
        kubectl,
        headgate,
        kubeconfig,
        azure_json,
    } = programs;
    let names: Vec<_> = context.nodes.iter().map(|node| node.name.as_str()).collect();
    let (first, others) = match names.as_slice() {
        [] => return String::new(),
        [only] => (*only, vec![*only]),
        [first, others @ ..] => (*first, others.to_vec()),
    };
    let moved_to = |nodes: &[&str]| {
        let endpoint = |(place, node)| json!({"addresses": [format!("10.244.0.{}", place + 1)], "nodeName": node});
        let endpoints: Vec<_> = nodes.iter().enumerate().map(endpoint).collect();
        let patch = quoted(&json!({"endpoints": endpoints}).to_string());
        format!("{kubectl} patch endpointslice {SLICE} --type=merge -p {patch}")
    };
    let refusal = json!({"match": {"method": "PUT", "path": format!("/{POOL}$")}, "times": 1,
        "action": {"answer": {"status": 409}}});
    let (control, refusal) = (context.control, quoted(&refusal.to_string()));
    let commands = [
        (
            format!(
                "The Service {NAME} has the policy Local, and the pool {LOAD_BALANCER}/{POOL}. Give it an endpoint; within \
                 {INTERVAL_SECONDS} s the node joins the pool:"
            ),
            moved_to(&[first]),
        ),
        ("Move its endpoints; the pool follows:".to_owned(), moved_to(&others)),
        (
            "Let Azure refuse the pool's next write, then move them again; the leader retries with its next tick:"
                .to_owned(),
            format!("curl -s http://{control}/emulator/v1/faults -d {refusal}"),
        ),
        (
            "Show what was reported on the Service:".to_owned(),
            format!("{kubectl} get events --field-selector involvedObject.name={NAME}"),
        ),
        (
            "Explain the members of its pool:".to_owned(),
            format!("{headgate} why service default/{NAME} --kubeconfig {kubeconfig} --azure-config-file {azure_json}"),
        ),
    ];
    listed(&commands)
}

/// The commands about maintenances, in the order in which they are to be tried.
fn maintenance_commands(kubectl: &str, manifests: &[PathBuf]) -> String {
    let files: Vec<_> = manifests
        .iter()
        .map(|file| format!("-f {}", quoted(&file.to_string_lossy())))
        .collect();
    let [first, second] = MAINTENANCES;
    let commands = [
        (
            "Show the pods that are to be moved:",
            format!("{kubectl} -n {NAMESPACE} get pods -o wide"),
        ),
        (
            "Drain two nodes by each of two maintenances, which have one node in common:",
            format!("{kubectl} apply {}", files.join(" ")),
        ),
        ("Follow them:", format!("{kubectl} get hgnm -w")),
        (
            "Show what a maintenance waits for on each node, and its events:",
            format!("{kubectl} describe hgnm {first}"),
        ),
        ("List the pods that are evacuated:", format!("{kubectl} get evac -A")),
        (
            "Once both are drained, put the nodes back into service:",
            format!("{kubectl} delete hgnm {first} {second}"),
        ),
    ];
    listed(&commands)
}

fn listed<W: Display>(commands: &[(W, String)]) -> String {
    commands.iter().fold(String::new(), |text, (what, command)| {
        format!("{text}{what}\n  {command}\n")
    })
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

    #[test]
    fn commands_name_the_first_node() {
        let addresses = Addresses {
            healthz: "127.0.0.1:1234".parse().unwrap(),
            metrics: "127.0.0.1:1235".parse().unwrap(),
        };
        let nodes = [NodeAddresses {
            name: "node-1".to_owned(),
            addresses,
        }];
        let text = text(&HintContext {
            program: Path::new("/usr/bin/headgate"),
            kubeconfig: Path::new("/tmp/a b/kubeconfig"),
            assets: None,
            nodes: &nodes,
            leader: None,
            azure_json: Path::new("/tmp/a b/azure.json"),
            control: "127.0.0.1:1236".parse().unwrap(),
            logs: Path::new("/tmp/a b/logs"),
            has_local_service: true,
            maintenances: &["/tmp/a b/maintenance-a.yaml".into(), "/tmp/b.yaml".into()],
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
        let node = |name: &str| NodeAddresses {
            name: name.to_owned(),
            addresses: Addresses {
                healthz: "127.0.0.1:1234".parse().unwrap(),
                metrics: "127.0.0.1:1235".parse().unwrap(),
            },
        };
        let marked = |nodes: &[NodeAddresses], leader| {
            let text = text(&HintContext {
                program: Path::new("headgate"),
                kubeconfig: Path::new("kubeconfig"),
                assets: None,
                nodes,
                leader,
                azure_json: Path::new("azure.json"),
                control: "127.0.0.1:1236".parse().unwrap(),
                logs: Path::new("logs"),
                has_local_service: false,
                maintenances: &[],
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
        let text = text(&HintContext {
            program: Path::new("/usr/bin/headgate"),
            kubeconfig: Path::new("/tmp/a b/kubeconfig"),
            assets: None,
            nodes: &[],
            leader: None,
            azure_json: Path::new("/tmp/azure.json"),
            control: "127.0.0.1:1236".parse().unwrap(),
            logs: Path::new("/tmp/logs"),
            has_local_service: true,
            maintenances: &[],
        });
        for command in [
            "export KUBECONFIG='/tmp/a b/kubeconfig' AZURE_JSON=/tmp/azure.json EMULATOR=http://127.0.0.1:1236",
            "/usr/bin/headgate status --all --kubeconfig '/tmp/a b/kubeconfig' --azure-config-file /tmp/azure.json",
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
