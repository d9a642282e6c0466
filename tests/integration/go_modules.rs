//! The Go programs of the tests share what they have compiled.

use std::collections::BTreeMap;
use std::fs;

fn go_mod(directory: &str) -> String {
    fs::read_to_string(format!("{}/tests/{directory}/go.mod", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The modules that a go.mod requires, and their versions.
fn requirements(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('\t'));
    lines.filter(|line| !line.contains("=>")).filter_map(module).collect()
}

fn module(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ');
    Some((words.next()?, words.next()?))
}

/// Go compiles a package again where its module has another version: without this, helm takes two minutes instead of half a one. What
/// counts is the version that is required, and the one that replaces it.
#[test]
fn helm_and_krew_require_the_versions_of_the_control_plane() {
    let control_plane = go_mod("control-plane");
    let versions = requirements(&control_plane);
    let replacements = control_plane.lines().filter_map(|line| line.split_once(" => "));
    let replacements: BTreeMap<_, _> = replacements
        .filter_map(|(_, replacement)| module(replacement))
        .collect();
    assert!(replacements.contains_key("k8s.io/client-go"));
    for directory in ["helm", "krew"] {
        let text = go_mod(directory);
        let mut shared = requirements(&text);
        shared.retain(|module, _| versions.contains_key(module));
        assert!(shared.len() > 10, "{shared:?}");
        for (module, version) in &shared {
            assert_eq!(versions[module], *version, "{directory}: {module}");
            let replacement = replacements.get(module);
            assert!(
                replacement.is_none_or(|replacement| replacement == version),
                "{directory}: {module}"
            );
        }
    }
}
