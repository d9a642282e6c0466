//! The Go programs of the tests share what they have compiled.

use std::collections::BTreeMap;
use std::fs;

/// The modules that a go.mod requires, and their versions.
fn requirements(directory: &str) -> BTreeMap<String, String> {
    let path = format!("{}/tests/{directory}/go.mod", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(path).unwrap();
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix('\t')?.split_once(" v"));
    let version = |rest: &str| rest.split(' ').next().unwrap().to_owned();
    // A line with an arrow says where a module is taken from, not which.
    let lines = lines.filter(|(module, _)| !module.contains("=>"));
    lines.map(|(module, rest)| (module.to_owned(), version(rest))).collect()
}

/// Go compiles a package again where the version of a module in its build is another one: without this, helm takes two minutes more.
#[test]
fn helm_and_krew_require_the_versions_of_the_control_plane() {
    let control_plane = requirements("control-plane");
    assert_eq!(
        control_plane["k8s.io/kubernetes"],
        control_plane["k8s.io/client-go"].replacen("0.", "1.", 1)
    );
    for directory in ["helm", "krew"] {
        let shared = requirements(directory).into_iter().filter_map(|(module, version)| {
            let other = control_plane.get(&module)?;
            Some((module, version, other))
        });
        let shared: Vec<_> = shared.collect();
        assert!(shared.len() > 10, "{shared:?}");
        let different: Vec<_> = shared.iter().filter(|(_, version, other)| version != *other).collect();
        assert!(different.is_empty(), "{directory}: {different:?}");
    }
}
