//! The settings file in the `ConfigMap`, and the snippets that the manifests' README offers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use headgate::config::Settings;
use headgate_test_kubernetes::scratch;
use serde_json::json;

use super::{assert_says, base, only, render, repository, stdout_of, text};

/// The settings in effect with this file, as the program prints them; it must accept the file.
pub(super) fn in_effect(settings: &str) -> String {
    let file = scratch("settings").join("settings.yaml");
    std::fs::write(&file, settings).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command.args(["agent", "--check-config", "--config"]).arg(file);
    stdout_of(command.env_remove("NODE_NAME").env_remove("KUBECONFIG"))
}

/// The names of all keys and sections.
fn names() -> BTreeSet<String> {
    let defaults = Settings::default().to_yaml();
    let key = |line: &str| Some(line.trim().split_once(':')?.0.to_owned());
    defaults
        .lines()
        .filter(|line| !line.contains("- "))
        .filter_map(key)
        .collect()
}

/// The file with its keys uncommented, and their names; a key is distinguished from prose by its name. The version and the kind are
/// not commented out.
fn uncommented(file: &str) -> (String, BTreeSet<String>) {
    let (known, mut found) = (names(), BTreeSet::new());
    let mut yaml = String::new();
    for line in file.lines() {
        let in_force = || Some(line).filter(|line| line.starts_with("apiVersion: ") || line.starts_with("kind: "));
        let Some(bare) = line.strip_prefix("# ").or_else(in_force) else {
            continue;
        };
        let name = bare.trim().split(':').next().unwrap_or_default();
        if known.contains(name) {
            found.insert(name.to_owned());
        } else if !bare.trim().starts_with("- ") {
            continue;
        }
        yaml.push_str(bare);
        yaml.push('\n');
    }
    (yaml, found)
}

#[test]
fn the_shipped_settings_list_every_key_with_its_default() {
    let objects = base();
    let shipped = only(&objects, "ConfigMap")["data"]["settings.yaml"].as_str().unwrap();
    let defaults = Settings::default().to_yaml();
    assert_eq!(in_effect(shipped), defaults);
    let file = text("manifests/settings.yaml");
    assert_eq!(in_effect(&file), defaults);
    let (yaml, found) = uncommented(&file);
    assert_eq!(found, names());
    assert_eq!(in_effect(&yaml), defaults);
    // Each key alone, in case one is valid only together with another.
    let header: String = yaml.split_inclusive('\n').take(2).collect();
    for section in ["signals", "outOfLoadBalancers"] {
        let start = yaml.find(&format!("{section}:")).unwrap();
        let lines = yaml[start..].lines().enumerate();
        let part: Vec<&str> = lines
            .take_while(|(number, line)| *number == 0 || line.starts_with(' '))
            .map(|(_, line)| line)
            .collect();
        let alone = format!("{header}{}", part.join("\n"));
        assert_eq!(in_effect(&alone), defaults, "{section}");
    }
}

/// The README's YAML blocks, in their order.
fn snippets() -> Vec<String> {
    let readme = text("manifests/README.md");
    let blocks = readme.split("```yaml\n").skip(1);
    blocks
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect()
}

/// The relative path from one absolute directory to another, as kustomize requires.
pub(super) fn relative(from: &Path, to: &Path) -> PathBuf {
    let up = from.components().skip(1).map(|_| "..");
    up.collect::<PathBuf>().join(to.strip_prefix("/").unwrap())
}

/// An overlay with everything that the README describes and its own settings, in a new directory.
pub(super) fn overlay(settings: &str) -> PathBuf {
    let directory = scratch("overlay").canonicalize().unwrap();
    let snippets = snippets();
    let [first, others @ ..] = &snippets[..] else {
        panic!("no YAML in the README")
    };
    let (ours, theirs) = (
        relative(&directory, &repository("manifests/healthz")),
        "../headgate/manifests/healthz",
    );
    assert!(first.contains(theirs), "{first}");
    let whole = first.replace(theirs, ours.to_str().unwrap()) + &others.concat();
    std::fs::write(directory.join("kustomization.yaml"), whole).unwrap();
    std::fs::write(directory.join("settings.yaml"), settings).unwrap();
    directory
}

#[test]
fn the_readme_overlay_sets_image_settings_and_api_server() {
    let settings = "logFormat: Text\n";
    let objects = render(&overlay(settings));
    let map = only(&objects, "ConfigMap");
    assert_eq!(map["data"], json!({"settings.yaml": settings}));
    assert_ne!(
        map["metadata"]["name"],
        only(&base(), "ConfigMap")["metadata"]["name"],
        "another text has another name, which rolls the DaemonSet"
    );
    let pod = &only(&objects, "DaemonSet")["spec"]["template"]["spec"];
    assert_says(
        &pod["volumes"][0],
        &json!({"configMap": {"name": map["metadata"]["name"]}}),
    );
    let container = &pod["containers"][0];
    let image = format!("registry.example.com/headgate:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(container["image"], image);
    let env = container["env"].as_array().unwrap();
    let name = |index: usize| env[index]["name"].as_str().unwrap();
    assert_eq!(
        (name(0), name(env.len() - 2), name(env.len() - 1)),
        ("NODE_NAME", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
    );
}
