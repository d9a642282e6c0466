//! What to try: commands that work when they are pasted into another terminal.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;

use super::assets::Assets;
use super::directory::NodeAddresses;

/// The drain signal to try: cluster-autoscaler's.
const TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// What the commands are made of.
pub(super) struct Tried<'a> {
    pub(super) program: &'a Path,
    pub(super) kubeconfig: &'a Path,
    pub(super) assets: Option<&'a Assets>,
    pub(super) nodes: &'a [NodeAddresses],
    pub(super) azure_json: &'a Path,
    pub(super) control: SocketAddr,
    pub(super) logs: &'a Path,
}

/// The text, made for the first of the nodes.
pub(super) fn text(tried: &Tried<'_>) -> String {
    let Tried {
        program,
        kubeconfig,
        assets,
        nodes,
        azure_json,
        control,
        logs,
    } = *tried;
    let kubectl = kubectl(env::var_os("PATH").as_deref(), assets);
    let kubeconfig = quoted(&kubeconfig.to_string_lossy());
    let kubectl = format!("{kubectl} --kubeconfig {kubeconfig}");
    let headgate = quoted(&program.to_string_lossy());
    let azure_json = quoted(&azure_json.to_string_lossy());
    let mut text = String::new();
    let Some(first) = nodes.first() else { return text };
    let (name, address, operations) = (&first.name, first.addresses.healthz, first.addresses.metrics);
    let commands = [
        (
            "Say that a node is about to go, as cluster-autoscaler does:",
            format!("{kubectl} taint node {name} {TAINT}=1:NoSchedule"),
        ),
        (
            "Ask as a load balancer does; 503 takes the node out:",
            format!("curl -i http://{address}/healthz"),
        ),
        (
            "Ask why, in words:",
            format!("{headgate} why {name} --kubeconfig {kubeconfig} --statusz http://{operations}/statusz"),
        ),
        (
            "See who leads, and the node's admin state in each pool of the emulated Azure; -o wide has more:",
            format!(
                "{headgate} status --kubeconfig {kubeconfig} --azure-config-file {azure_json} --statusz \
                 {name}=http://{operations}/statusz"
            ),
        ),
        (
            "Let it stay after all, and ask again:",
            format!("{kubectl} taint node {name} {TAINT}-"),
        ),
        ("See the nodes:", format!("{kubectl} get nodes")),
        (
            "See the emulated Azure's load balancers; docs/azure-emulator.md has more:",
            format!("curl -s http://{control}/emulator/v1/state"),
        ),
    ];
    text.push_str("To try in another terminal:\n\n");
    for (what, command) in commands {
        // Writing to a String cannot fail.
        let _ = write!(text, "{what}\n  {command}\n");
    }
    let _ = write!(text, "\nLogs are in {}. Ctrl-C ends everything.\n", logs.display());
    text
}

/// `kubectl` where the shell finds one, else the path of the one among the control plane's programs.
fn kubectl(path: Option<&OsStr>, assets: Option<&Assets>) -> String {
    let on_path = path.is_some_and(|path| env::split_paths(path).any(|directory| directory.join("kubectl").is_file()));
    let own = assets.and_then(|assets| assets.program("kubectl").ok());
    match own {
        Some(own) if !on_path => quoted(&own.to_string_lossy()),
        _ => "kubectl".to_owned(),
    }
}

/// A word as a shell reads it back.
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
    fn words_survive_a_shell() {
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
        let text = text(&Tried {
            program: Path::new("/usr/bin/headgate"),
            kubeconfig: Path::new("/tmp/a b/kubeconfig"),
            assets: None,
            nodes: &nodes,
            azure_json: Path::new("/tmp/a b/azure.json"),
            control: "127.0.0.1:1236".parse().unwrap(),
            logs: Path::new("/tmp/a b/logs"),
        });
        for command in [
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
    fn kubectl_is_the_shells_where_there_is_one() {
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
