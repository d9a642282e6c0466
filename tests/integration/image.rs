//! The container image without a container: its program, `target/static/headgate`, in an empty root
//! directory, and what the Dockerfile says.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use headgate::config::{HEALTHZ_PORT, METRICS_PORT, Settings};
use headgate_sandbox::agents::Addresses;
use headgate_sandbox::{process, process::Process};
use headgate_test_kubernetes::{control_plane, create_node, eventually, met, scratch, set_taints, write_program};
use kube::config::Kubeconfig;
use serde_json::{Value, json};

use crate::docs;
use crate::harness::{SOON, http, settings_file};

const TAINT: &str = "ToBeDeletedByClusterAutoscaler";

/// The path to which `make static-binary` writes.
fn static_binary() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").filter(|directory| !directory.is_empty());
    let target = target.map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(target)
        .join("static/headgate");
    assert!(path.is_file(), "no {}: run `make static-binary` first", path.display());
    path
}

/// A root directory that contains only the program.
fn empty_root() -> PathBuf {
    let root = scratch("root");
    write_program(&root.join("headgate"), fs::read(static_binary()).unwrap());
    root
}

/// The program, with `root` as its root directory and no environment.
fn headgate_in(root: &Path) -> Command {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let mut command = if is_root {
        process::command_in("chroot", root)
    } else {
        let mut command = process::command_in("unshare", root);
        command.arg("--map-root-user");
        command
    };
    let arguments: &[&str] = if is_root { &["."] } else { &["--root=.", "--wd=/"] };
    command.args(arguments).arg("/headgate");
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

/// All files below a directory.
fn files(directory: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| {
        if path.is_dir() { files(&path) } else { [path].into() }
    };
    entries.flat_map(below).collect()
}

/// The types of a 64-bit little-endian ELF file's segments, and the tags of its dynamic section.
fn elf(file: &[u8]) -> (Vec<u64>, Vec<u64>) {
    let number = |at: usize, bytes: usize| {
        let mut value = [0; 8];
        value[..bytes].copy_from_slice(&file[at..at + bytes]);
        u64::from_le_bytes(value)
    };
    let offset = |at: usize| usize::try_from(number(at, 8)).unwrap();
    assert_eq!(file[..6], *b"\x7fELF\x02\x01");
    let (table, size, count) = (offset(32), number(54, 2), number(56, 2));
    let headers: Vec<usize> = (0..count)
        .map(|index| table + usize::try_from(index * size).unwrap())
        .collect();
    let mut tags = Vec::new();
    for header in headers.iter().filter(|header| number(**header, 4) == PT_DYNAMIC) {
        let (start, length) = (offset(header + 8), offset(header + 32));
        tags.extend((start..start + length).step_by(16).map(|entry| number(entry, 8)));
    }
    (headers.iter().map(|header| number(*header, 4)).collect(), tags)
}

const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_NEEDED: u64 = 1;

#[test]
fn the_program_is_statically_linked() {
    let (segments, tags) = elf(&fs::read(static_binary()).unwrap());
    assert!(
        !segments.contains(&PT_INTERP) && !tags.contains(&DT_NEEDED),
        "{segments:?} {tags:?}"
    );
    // Checks the reader itself: a shell is dynamically linked, and this test in CI is not.
    let (segments, tags) = elf(&fs::read("/bin/sh").unwrap());
    assert!(
        segments.contains(&PT_INTERP) && tags.contains(&DT_NEEDED),
        "{segments:?} {tags:?}"
    );
}

#[test]
#[ignore = "needs user namespaces, or root"]
fn the_program_runs_in_an_empty_root_without_a_sandbox() {
    let root = empty_root();
    let version = format!("headgate {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(headgate_in(&root).args(["--version"])), (Some(0), version));
    let defaults = Settings::default().to_yaml();
    assert_eq!(
        run(headgate_in(&root).args(["agent", "--check-config"])),
        (Some(0), defaults)
    );
    let (code, said) = run(headgate_in(&root).args(["probe", "livez"]));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("/var/lib/headgate/headgate.sock"), "{said}");
    let (code, said) = run(headgate_in(&root).args(["sandbox", "--help"]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("unrecognized subcommand 'sandbox'"), "{said}");
    assert_eq!(files(&root), [root.join("headgate")].into(), "it wrote nothing");
}

/// Runs an agent in `root` with this environment, and checks that it observes a taint on its Node.
async fn follows_its_taint(node: &str, root: &Path, environment: &[(&str, &str)]) {
    let headgate = || {
        let mut command = headgate_in(root);
        command.envs(environment.iter().copied());
        command
    };
    let settings = settings_file(
        "healthzBindAddress: 127.0.0.1:0\nkubeProxyHealthzUrl: Disabled\nmetricsBindAddress: 127.0.0.1:0\n",
    );
    let mut command = headgate();
    command.args(["agent", "--node-name", node, "--config=/etc/headgate/settings.yaml"]);
    command.args(["--state-dir=/state", "--addresses-file=/state/addresses.json"]);
    for (file, text) in [("etc/headgate/settings.yaml", settings.as_str()), ("state/.keep", "")] {
        fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
        fs::write(root.join(file), text).unwrap();
    }
    let shipped = files(root);
    let log = scratch("image").join("agent.log");
    let agent = Process::start("the agent in an empty root", command, &log).unwrap();
    let with_log = |reason: String| format!("{reason}; its log:\n{}", process::last_log_lines(&log));
    let addresses: Addresses = eventually(SOON, "its addresses", async || {
        let text = fs::read(root.join("state/addresses.json")).map_err(|error| with_log(error.to_string()))?;
        Ok(serde_json::from_slice(&text).unwrap())
    })
    .await;
    let client = control_plane().client();
    for (status, taints) in [
        (200, json!(null)),
        (503, json!([{"key": TAINT, "effect": "NoSchedule"}])),
        (200, json!(null)),
    ] {
        set_taints(&client, node, taints).await;
        eventually(SOON, &format!("{status} from the watch"), async || {
            let answer = http::get(addresses.healthz, "/healthz").await.unwrap();
            met(
                answer.status == status && answer.json()["source"] == "watch",
                with_log(answer.text()),
            )
        })
        .await;
    }
    let statusz = format!("http://{}/statusz", addresses.metrics);
    for arguments in [
        &["probe", "readyz", "--state-dir=/state"][..],
        &["why", node, "--statusz", &statusz],
    ] {
        let (code, said) = run(headgate().args(arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
    }
    assert!(
        agent.stop(SOON).await.unwrap().success(),
        "{}",
        process::last_log_lines(&log)
    );
    fs::remove_dir_all(root.join("state")).unwrap();
    assert!(
        files(root).is_subset(&shipped),
        "it writes to its state directory only: {:?}",
        files(root)
    );
}

#[tokio::test]
#[ignore = "needs user namespaces, or root"]
async fn an_agent_in_an_empty_root_watches_its_node_with_a_kubeconfig() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "image").await;
    let root = empty_root();
    fs::copy(&cluster.kubeconfig, root.join("kubeconfig")).unwrap();
    follows_its_taint(&node, &root, &[("KUBECONFIG", "/kubeconfig")]).await;
}

/// As in the Pod, with the service account's files; but with a host name of the API server instead of an address,
/// which a static program has to resolve without glibc's shared libraries.
#[tokio::test]
#[ignore = "needs user namespaces, or root"]
async fn an_agent_in_an_empty_root_watches_its_node_with_a_service_account() {
    let cluster = control_plane();
    let node = create_node(&cluster.client(), "image-pod").await;
    let root = empty_root();
    let kubeconfig = Kubeconfig::read_from(&cluster.kubeconfig).unwrap();
    let text = fs::read_to_string(&cluster.kubeconfig).unwrap();
    let token = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("token: "))
        .unwrap();
    let authority = kubeconfig.clusters[0].cluster.as_ref().unwrap();
    let authority = authority.certificate_authority_data.as_ref().unwrap();
    let authority: k8s_openapi::ByteString = serde_json::from_value(json!(authority)).unwrap();
    let account = root.join("var/run/secrets/kubernetes.io/serviceaccount");
    fs::create_dir_all(&account).unwrap();
    fs::write(account.join("token"), token.trim_matches('"')).unwrap();
    fs::write(account.join("ca.crt"), authority.0).unwrap();
    fs::write(account.join("namespace"), "kube-system").unwrap();
    fs::create_dir(root.join("etc")).unwrap();
    fs::write(
        root.join("etc/hosts"),
        format!("{} kubernetes.default.svc\n", Ipv4Addr::LOCALHOST),
    )
    .unwrap();
    let server: SocketAddr = cluster.server.strip_prefix("https://").unwrap().parse().unwrap();
    let environment = [
        ("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc"),
        ("KUBERNETES_SERVICE_PORT", &server.port().to_string()),
    ];
    follows_its_taint(&node, &root, &environment).await;
}

/// The Dockerfile's instructions, continued lines joined, by stage.
fn stages() -> Vec<Vec<(String, String)>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Dockerfile");
    let file = fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = file.lines().filter(|line| !line.starts_with('#')).collect();
    let mut stages = Vec::new();
    for line in lines.join("\n").replace("\\\n", " ").lines() {
        let Some((instruction, rest)) = line.split_once(' ') else {
            continue;
        };
        if instruction == "FROM" {
            stages.push(Vec::new());
        }
        let rest = rest.split_whitespace().collect::<Vec<_>>().join(" ");
        stages.last_mut().unwrap().push((instruction.to_owned(), rest));
    }
    stages
}

#[test]
fn the_image_contains_only_the_static_program_and_a_ca_bundle() {
    let stages = stages();
    let [build, image] = &stages[..] else {
        panic!("two stages")
    };
    let all = |stage: &[(String, String)], instruction: &str| -> Vec<String> {
        let these = stage.iter().filter(|(name, _)| name == instruction);
        these.map(|(_, rest)| rest.clone()).collect()
    };
    let [from] = &all(build, "FROM")[..] else {
        panic!("one FROM")
    };
    let (tag, digest) = from.split_once('@').expect("a digest");
    assert_eq!(tag, format!("rust:{}.0-bookworm", env!("CARGO_PKG_RUST_VERSION")));
    let hash = digest
        .strip_prefix("sha256:")
        .and_then(|rest| rest.strip_suffix(" AS build"));
    assert!(hash.is_some_and(|hash| hash.len() == 64), "{digest}");
    let [cargo] = &all(build, "RUN")[..] else {
        panic!("one RUN")
    };
    for part in [
        // Cargo compares times, so without this it would use what another checkout has built later than these files were written.
        "find . -type f -exec touch {} +",
        "RUSTFLAGS='-C target-feature=+crt-static'",
        "cargo build --locked --release --no-default-features",
        "--target \"$host\"",
    ] {
        assert!(cargo.contains(part), "{part} is not in {cargo}");
    }
    // `make static-binary` and a release build with the default features.
    for (file, from) in [("release/build.sh", "programs() {"), ("Makefile", "\nstatic-binary:")] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let build = text
            .split_once(from)
            .unwrap()
            .1
            .lines()
            .find(|line| line.contains("cargo build"));
        assert!(!build.unwrap().contains("features"), "{file}: {build:?}");
    }
    let manifest = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    assert!(manifest.contains("\ndefault = [\"otlp\"]\n"));
    let arguments = all(build, "ARG");
    assert!(arguments.contains(&"FEATURES=\"otlp\"".to_owned()), "{arguments:?}");
    assert_eq!(all(image, "FROM"), ["scratch"]);
    let bundle = "/etc/ssl/certs/ca-certificates.crt";
    assert_eq!(
        all(image, "COPY"),
        [
            format!("--from=build {bundle} {bundle}"),
            "--from=build /headgate /headgate".to_owned()
        ]
    );
    assert_eq!(all(image, "USER"), ["65532:65532"]);
    assert_eq!(all(image, "EXPOSE"), [format!("{HEALTHZ_PORT} {METRICS_PORT}")]);
    assert_eq!(all(image, "ENTRYPOINT"), ["[\"/headgate\"]"]);
    assert_eq!(
        all(image, "RUN"),
        Vec::<String>::new(),
        "there is nothing to run it with"
    );
}

/// The files of the repository that `cargo build` reads: every manifest, the targets of its package, which build scripts are, and what sources of
/// the product include. Modules are in the folder of their target.
fn read_by_the_build(root: &Path) -> BTreeSet<PathBuf> {
    let mut files: BTreeSet<PathBuf> = [root.join("Cargo.lock")].into();
    let mut cargo = process::command_in(env!("CARGO"), root);
    cargo.args(["metadata", "--locked", "--offline", "--no-deps", "--format-version=1"]);
    let workspace: Value = serde_json::from_slice(&cargo.output().unwrap().stdout).unwrap();
    for package in workspace["packages"].as_array().unwrap() {
        let targets = package["targets"].as_array().unwrap().iter();
        let named = targets
            .map(|target| &target["src_path"])
            .chain([&package["manifest_path"]]);
        files.extend(named.map(|path| PathBuf::from(path.as_str().unwrap())));
    }
    let mut sources = Vec::new();
    for directory in ["src", "crates"] {
        docs::sources(&root.join(directory), &mut sources);
    }
    for (source, text) in sources {
        let macros = ["include!(", "include_str!(", "include_bytes!("];
        for argument in macros.iter().flat_map(|name| text.split(name).skip(1)) {
            let file = argument.split('"').nth(1).unwrap();
            files.insert(source.parent().unwrap().join(file).canonicalize().unwrap());
        }
    }
    let relative = files.iter().map(|path| path.strip_prefix(root).unwrap().to_owned());
    relative.collect()
}

#[test]
fn the_build_has_every_file_that_it_reads() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
    let text = fs::read_to_string(root.join(".dockerignore")).unwrap();
    let mut patterns = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    assert_eq!(patterns.next(), Some("*"));
    let admitted: Vec<&str> = patterns.map(|pattern| pattern.strip_prefix('!').unwrap()).collect();
    assert!(!admitted.concat().contains(['*', '?', '[', '\\']), "{admitted:?}");
    let files = read_by_the_build(&root);
    for file in [
        "build.rs",
        "src/cli/azure_setup.sh",
        "crates/agent/Cargo.toml",
        "Cargo.lock",
    ] {
        assert!(files.contains(Path::new(file)), "{file} is not in {files:?}");
    }
    let missing: Vec<_> = files
        .iter()
        .filter(|file| !admitted.iter().any(|admitted| file.starts_with(admitted)))
        .collect();
    assert!(missing.is_empty(), ".dockerignore leaves out {missing:?}");
}
