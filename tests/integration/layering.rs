//! What Cargo cannot say about the crates: which of them stay free of Kubernetes' client. docs/architecture.md shows the layers.

use std::path::Path;

/// Crates whose `[dependencies]` reach no Kubernetes client, neither directly nor through another crate of the workspace.
const WITHOUT_KUBERNETES: [&str; 10] = [
    "azure",
    "azure-emulator",
    "certificates",
    "clock",
    "http",
    "local-pools",
    "notify",
    "otlp",
    "settings",
    "telemetry",
];

#[test]
fn crates_without_a_kubernetes_client_depend_on_none() {
    for name in WITHOUT_KUBERNETES {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut manifests = ["crates", "lab"]
            .map(|folder| root.join(folder).join(name).join("Cargo.toml"))
            .into_iter();
        let manifest = manifests.find(|manifest| manifest.exists()).unwrap();
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
        let dependencies = dependencies.lines().take_while(|line| !line.starts_with('['));
        for dependency in dependencies.filter_map(|line| line.split(['.', ' ']).next()) {
            let is_allowed = match dependency.strip_prefix("headgate-") {
                Some(ours) => WITHOUT_KUBERNETES.contains(&ours),
                None => !["k8s-openapi", "kube"].contains(&dependency),
            };
            assert!(is_allowed, "{name} depends on {dependency}");
        }
    }
}
