//! What `make release` writes without a compiler: the OCI image layout, and the plugin manifest for krew. Building the programs takes too long for CI;
//! `release/twice.sh` does it, twice.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use headgate::config::{HEALTHZ_PORT, METRICS_PORT};
use headgate_test_kubernetes::scratch;
use serde_json::{Value, json};

use crate::harness::{stdout_of, succeed};

/// Writes a layout with two programs into a new directory.
fn layout() -> PathBuf {
    let directory = scratch("release");
    let (bundle, output) = (directory.join("bundle.crt"), directory.join("image"));
    std::fs::write(&bundle, "authorities").unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new("python3");
    command
        .arg(root.join("release/oci.py"))
        .args(["--version=1.2.3", "--revision=abc", "--created=1700000000"]);
    for architecture in ["arm64", "amd64"] {
        let program = directory.join(architecture);
        std::fs::write(&program, format!("the program for {architecture}")).unwrap();
        command.arg(format!("--program={architecture}={}", program.display()));
    }
    for (flag, path) in [
        ("ca-bundle", &bundle),
        ("dockerfile", &root.join("Dockerfile")),
        ("output", &output),
    ] {
        command.arg(format!("--{flag}={}", path.display()));
    }
    succeed(&mut command);
    output
}

/// All files of a layout, by their paths in it.
fn files(layout: &Path) -> BTreeMap<String, Vec<u8>> {
    let blobs = std::fs::read_dir(layout.join("blobs/sha256")).unwrap();
    let names = blobs.map(|entry| format!("blobs/sha256/{}", entry.unwrap().file_name().to_str().unwrap()));
    let names = names.chain(["index.json".to_owned(), "oci-layout".to_owned()]);
    names
        .map(|name| (name.clone(), std::fs::read(layout.join(&name)).unwrap()))
        .collect()
}

/// The JSON document that a descriptor names. Its size must be the descriptor's.
fn document(files: &BTreeMap<String, Vec<u8>>, descriptor: &Value) -> Value {
    serde_json::from_slice(blob(files, descriptor)).unwrap()
}

fn blob<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
    let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let content = &files[&format!("blobs/sha256/{digest}")];
    assert_eq!(descriptor["size"], content.len(), "{descriptor}");
    content
}

/// What `program` prints for `input`.
fn filtered(program: &str, arguments: &[&str], input: &[u8]) -> String {
    let file = scratch("filtered").join("input");
    std::fs::write(&file, input).unwrap();
    succeed(Command::new(program).args(arguments).arg(&file))
}

#[test]
fn image_layout_has_an_image_for_each_platform() {
    let files = files(&layout());
    for (name, content) in &files {
        if let Some(digest) = name.strip_prefix("blobs/sha256/") {
            let shown = filtered("sha256sum", &[], content);
            assert!(shown.starts_with(digest), "{name}: {shown}");
        }
    }
    let top: Value = serde_json::from_slice(&files["index.json"]).unwrap();
    let tagged = &top["manifests"][0];
    assert_eq!(tagged["annotations"]["org.opencontainers.image.ref.name"], "1.2.3");
    let index = document(&files, tagged);
    let platforms: Vec<_> = index["manifests"].as_array().unwrap().iter().collect();
    assert_eq!(platforms.len(), 2);
    for (descriptor, architecture) in platforms.into_iter().zip(["amd64", "arm64"]) {
        assert_eq!(
            descriptor["platform"],
            json!({"architecture": architecture, "os": "linux"})
        );
        let manifest = document(&files, descriptor);
        let config = document(&files, &manifest["config"]);
        assert_eq!(config["architecture"], architecture);
        let run = &config["config"];
        assert_eq!(run["User"], "65532:65532");
        assert_eq!(run["Entrypoint"], json!(["/headgate"]));
        let ports = [HEALTHZ_PORT, METRICS_PORT].map(|port| (format!("{port}/tcp"), json!({})));
        assert_eq!(run["ExposedPorts"], Value::Object(ports.into_iter().collect()));
        let labels = &run["Labels"];
        assert_eq!(labels["org.opencontainers.image.version"], "1.2.3");
        assert_eq!(labels["org.opencontainers.image.revision"], "abc");
        assert_eq!(
            labels["org.opencontainers.image.description"],
            env!("CARGO_PKG_DESCRIPTION")
        );

        let layers = manifest["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 1);
        let layer = blob(&files, &layers[0]);
        let listed = filtered(
            "tar",
            &["--list", "--verbose", "--numeric-owner", "--gzip", "--file"],
            layer,
        );
        let lines: Vec<_> = listed
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .collect();
        let shown: Vec<_> = lines.iter().map(|words| (words[0], words[1], words[5])).collect();
        assert_eq!(
            shown,
            [
                ("drwxr-xr-x", "0/0", "etc/"),
                ("drwxr-xr-x", "0/0", "etc/ssl/"),
                ("drwxr-xr-x", "0/0", "etc/ssl/certs/"),
                ("-rw-r--r--", "0/0", "etc/ssl/certs/ca-certificates.crt"),
                ("-rwxr-xr-x", "0/0", "headgate"),
            ]
        );
        let program = filtered(
            "tar",
            &["--extract", "--to-stdout", "--gzip", "headgate", "--file"],
            layer,
        );
        assert_eq!(program, format!("the program for {architecture}"));
    }
}

#[test]
fn same_input_gives_the_same_layout() {
    assert_eq!(files(&layout()), files(&layout()));
}

/// What release/krew.sh does with archives of a program for both platforms in `directory`.
fn krew(directory: &Path, repository: &str) -> Output {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("release/krew.sh");
    let mut command = Command::new(script);
    command.arg("1.2.3").arg(directory).env("REPOSITORY_URL", repository);
    command.output().unwrap()
}

/// An archive as release/build.sh writes it, with these files, each with its name as its content.
fn archive(directory: &Path, architecture: &str, files: &[&str]) {
    let name = format!("headgate-1.2.3-linux-{architecture}");
    std::fs::create_dir_all(directory.join(&name)).unwrap();
    for file in files {
        let path = directory.join(&name).join(file);
        std::fs::write(&path, file).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }
    let archive = directory.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--file"])
        .arg(archive)
        .arg("--directory");
    assert!(tar.arg(directory).arg(name).status().unwrap().success());
}

#[test]
fn krew_accepts_the_plugin_manifest_and_installs_the_archives() {
    let directory = scratch("krew");
    for architecture in ["amd64", "arm64"] {
        archive(&directory, architecture, &["headgate", "LICENSE"]);
    }
    stdout_of(krew(&directory, "https://example.com/o/headgate"));
    let manifest = std::fs::read_to_string(directory.join("headgate-1.2.3-krew.yaml")).unwrap();
    let manifest: Value = serde_yaml::from_str(&manifest).unwrap();
    assert_eq!(manifest["spec"]["version"], "v1.2.3");
    for (platform, architecture) in manifest["spec"]["platforms"]
        .as_array()
        .unwrap()
        .iter()
        .zip(["amd64", "arm64"])
    {
        let archive = format!("headgate-1.2.3-linux-{architecture}.tar.gz");
        let digest = filtered("sha256sum", &[], &std::fs::read(directory.join(&archive)).unwrap());
        assert!(digest.starts_with(platform["sha256"].as_str().unwrap()), "{platform}");
        let url = format!("https://example.com/o/headgate/releases/download/v1.2.3/{archive}");
        assert_eq!(platform["uri"], url);
    }
}

#[test]
fn krew_refuses_archives_without_the_files_that_the_manifest_names() {
    for files in [["headgate", "README"], ["program", "LICENSE"]] {
        let directory = scratch("krew");
        archive(&directory, "amd64", &["headgate", "LICENSE"]);
        archive(&directory, "arm64", &files);
        let output = krew(&directory, "https://example.com/o/headgate");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains("failed: "),
            "{files:?}: {errors}"
        );
        assert!(!directory.join("headgate-1.2.3-krew.yaml").exists());
    }
    let output = krew(&scratch("krew"), "http://example.com/$(id)");
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("allowed: an https URL"), "{errors}");
}

#[test]
fn notes_are_the_section_of_the_version() {
    let notes = |version: &str| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("release/notes.sh");
        Command::new(script).arg(version).output().unwrap()
    };
    let changelog = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("CHANGELOG.md")).unwrap();
    let (_, rest) = changelog.split_once("\n## [").unwrap();
    let (heading, section) = rest.split_once('\n').unwrap();
    let section = section.split("\n## [").next().unwrap();
    let output = notes(heading.split(']').next().unwrap());
    assert_eq!(stdout_of(output).trim(), section.trim());
    let output = notes("0.0.0");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("has no section 0.0.0"),
        "{errors}"
    );
}

/// Whether version `found` is at least `wanted`, of three numbers each.
fn is_at_least(found: &str, wanted: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> { text.split('.').map(|number| number.parse().unwrap()).collect() };
    numbers(found) >= numbers(wanted)
}

#[test]
fn advisories_that_are_said_to_be_fixed_are_of_older_versions_than_those_in_the_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document: Value =
        serde_json::from_str(&std::fs::read_to_string(root.join("release/openvex.json")).unwrap()).unwrap();
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap();
    for statement in document["statements"].as_array().unwrap() {
        assert_eq!(statement["status"], "fixed", "{statement}");
        let component = statement["products"][0]["subcomponents"][0]["@id"].as_str().unwrap();
        let crate_name = component.strip_prefix("pkg:cargo/").unwrap();
        let notes = statement["status_notes"].as_str().unwrap();
        let fixed = notes
            .strip_prefix(crate_name)
            .and_then(|rest| rest.strip_suffix(" and newer"))
            .unwrap()
            .trim();
        let before = format!("name = \"{crate_name}\"\nversion = \"");
        let versions = lock.split(before.as_str()).skip(1);
        let versions: Vec<&str> = versions.map(|rest| rest.split('"').next().unwrap()).collect();
        assert!(!versions.is_empty(), "{crate_name} is no dependency");
        for version in versions {
            assert!(is_at_least(version, fixed), "{statement}: {version}");
        }
    }
}

#[test]
fn code_of_others_is_pinned_and_has_no_right_to_publish() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_hexadecimal = |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut seen = 0;
    for entry in std::fs::read_dir(root.join(".github/workflows")).unwrap() {
        let path = entry.unwrap().path();
        let workflow: Value = serde_yaml::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(workflow["permissions"], json!({}), "{}", path.display());
        for (name, job) in workflow["jobs"].as_object().unwrap() {
            for step in job["steps"].as_array().unwrap() {
                if let Some(action) = step["uses"].as_str() {
                    assert!(is_hexadecimal(action.rsplit('@').next().unwrap(), 40), "{action}");
                    seen += 1;
                }
                let runs = step["run"].as_str().unwrap_or_default();
                let builds = ["make ", "cargo ", "release/", "apt-get", "pip "]
                    .iter()
                    .any(|it| runs.contains(it));
                let is_allowed = job["permissions"] == json!({"contents": "read"});
                assert!(!builds || is_allowed, "{name} runs code of others: {runs}");
            }
        }
    }
    assert!(seen >= 4, "{seen} actions");
    let mut installs = 0;
    for script in std::fs::read_dir(root.join("tests"))
        .unwrap()
        .chain(std::fs::read_dir(root.join("release")).unwrap())
    {
        let script = script.unwrap().path();
        let scripts = if script.is_dir() {
            vec![script.join("build.sh")]
        } else {
            vec![script]
        };
        for text in scripts.iter().filter_map(|path| std::fs::read_to_string(path).ok()) {
            for install in text
                .lines()
                .filter(|line| line.contains("pip ") && line.contains(" install "))
            {
                assert!(install.contains("--require-hashes --only-binary :all:"), "{install}");
                installs += 1;
            }
        }
    }
    assert!(installs > 0);
    let dockerfile = std::fs::read_to_string(root.join("Dockerfile")).unwrap();
    let images = dockerfile.lines().filter_map(|line| line.strip_prefix("FROM "));
    for image in images.filter(|image| *image != "scratch") {
        let digest = image.split_once("@sha256:").map_or("", |(_, digest)| digest);
        assert!(is_hexadecimal(digest.split(' ').next().unwrap(), 64), "{image}");
    }
}
