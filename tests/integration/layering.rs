//! The layering of crates and modules: which crate may depend on which, and which module may use which. The test reads
//! manifests and imports from the source; docs/architecture.md shows the same layers with their reasons.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// A crate of the workspace, named for its directory.
struct Crate {
    /// Directory, relative to the repository; empty for the root package.
    directory: &'static str,
    /// Each module with the modules that it may use in addition to itself and `USABLE_BY_ALL`. A single module stands
    /// for the whole crate.
    modules: &'static [(&'static str, &'static [&'static str])],
    /// Modules that only the crate's tests may use. Their crates appear only under `[dev-dependencies]`, so the
    /// compiler rejects any other use.
    tests: &'static [&'static str],
}

/// The crates in the order of their layers: each comes before those that depend on it.
const CRATES: &[Crate] = &[
    Crate {
        directory: "crates/clock",
        modules: &[("clock", &[])],
        tests: &[],
    },
    Crate {
        directory: "crates/settings",
        modules: &[("settings", &[])],
        tests: &[],
    },
    Crate {
        directory: "crates/telemetry",
        modules: &[("telemetry", &[])],
        tests: &[],
    },
    Crate {
        directory: "crates/otlp",
        modules: &[("otlp", &[])],
        tests: &[],
    },
    Crate {
        directory: "crates/certificates",
        modules: &[("certificates", &[])],
        tests: &[],
    },
    Crate {
        directory: "crates/http",
        modules: &[
            ("body", &["telemetry"]),
            ("client", &["body", "proxies", "telemetry"]),
            ("proxies", &["telemetry"]),
            ("server", &[]),
            ("lib", &[]),
        ],
        tests: &[],
    },
    Crate {
        directory: "crates/notify",
        modules: &[("notify", &[])],
        tests: &["certificates"],
    },
    Crate {
        directory: "crates/azure-emulator",
        modules: &[("azure_emulator", &["certificates", "server"])],
        tests: &[],
    },
    Crate {
        directory: "crates/azure",
        modules: &[("azure", &[])],
        tests: &["azure_emulator", "otlp"],
    },
    Crate {
        directory: "crates/kubernetes",
        modules: &[("kubernetes", &[])],
        tests: &[],
    },
    Crate {
        directory: "crates/node",
        modules: &[("node", &["kubernetes"])],
        tests: &[],
    },
    Crate {
        directory: "crates/health",
        modules: &[("health", &["kubernetes", "node", "server"])],
        tests: &[],
    },
    Crate {
        directory: "crates/spot",
        modules: &[("spot", &["kubernetes", "node"])],
        tests: &["azure_emulator"],
    },
    Crate {
        directory: "crates/leader",
        modules: &[("leader", &["kubernetes", "node"])],
        tests: &[],
    },
    Crate {
        directory: "crates/local-pools",
        modules: &[("local_pools", &[])],
        tests: &[],
    },
    Crate {
        directory: "crates/controller",
        modules: &[
            ("pool", &["azure", "leader", "local_pools", "node", "spot"]),
            (
                "local_service",
                &["azure", "kubernetes", "leader", "local_pools", "pool"],
            ),
            (
                "admin_state",
                &[
                    "azure",
                    "kubernetes",
                    "leader",
                    "local_pools",
                    "local_service",
                    "node",
                    "other_nodes",
                    "pool",
                    "preempt_events",
                ],
            ),
            ("other_nodes", &["kubernetes", "leader"]),
            ("preempt_events", &["kubernetes", "leader", "node", "spot"]),
            ("restore", &["admin_state", "leader", "node"]),
            ("lib", &[]),
        ],
        tests: &[],
    },
    Crate {
        directory: "crates/maintenance",
        modules: &[("maintenance", &["kubernetes", "leader", "node", "spot"])],
        tests: &[],
    },
    Crate {
        directory: "crates/sandbox",
        modules: &[("sandbox", &["certificates", "kubernetes", "leader", "maintenance"])],
        tests: &["azure_emulator", "node"],
    },
    Crate {
        directory: "crates/budget",
        modules: &[("budget", &[])],
        tests: &[],
    },
    Crate {
        directory: "crates/drill",
        modules: &[(
            "drill",
            &[
                "azure_emulator",
                "budget",
                "kubernetes",
                "leader",
                "maintenance",
                "sandbox",
            ],
        )],
        tests: &[],
    },
    Crate {
        directory: "crates/test-kubernetes",
        modules: &[("test_kubernetes", &["sandbox"])],
        tests: &[],
    },
    Crate {
        directory: "",
        modules: &[
            (
                "config",
                &[
                    "admin_state",
                    "health",
                    "local_pools",
                    "local_service",
                    "node",
                    "notify",
                    "server",
                ],
            ),
            ("api_error", &[]),
            ("readable_objects", &["kubernetes"]),
            ("drain", &["api_error", "kubernetes", "maintenance"]),
            (
                "preview",
                &[
                    "admin_state",
                    "api_error",
                    "kubernetes",
                    "maintenance",
                    "readable_objects",
                    "status",
                ],
            ),
            ("agent_status", &["health", "local_service", "node", "spot"]),
            (
                "why",
                &[
                    "agent_status",
                    "api_error",
                    "kubernetes",
                    "maintenance",
                    "node",
                    "readable_objects",
                ],
            ),
            ("uninstall", &["admin_state", "kubernetes", "maintenance"]),
            (
                "status",
                &[
                    "admin_state",
                    "agent_status",
                    "api_error",
                    "azure",
                    "config",
                    "kubernetes",
                    "leader",
                    "local_pools",
                    "local_service",
                    "maintenance",
                    "node",
                    "pool",
                    "readable_objects",
                    "why",
                ],
            ),
            (
                "agent",
                &[
                    "admin_state",
                    "agent_status",
                    "azure",
                    "config",
                    "health",
                    "kubernetes",
                    "leader",
                    "local_service",
                    "maintenance",
                    "node",
                    "notify",
                    "other_nodes",
                    "preempt_events",
                    "server",
                    "spot",
                ],
            ),
            (
                "cli",
                &[
                    "admin_state",
                    "agent",
                    "api_error",
                    "azure",
                    "azure_emulator",
                    "budget",
                    "config",
                    "drain",
                    "drill",
                    "kubernetes",
                    "leader",
                    "local_pools",
                    "maintenance",
                    "node",
                    "otlp",
                    "preview",
                    "readable_objects",
                    "restore",
                    "sandbox",
                    "server",
                    "status",
                    "uninstall",
                    "why",
                ],
            ),
            ("main", &["cli"]),
            ("lib", &[]),
        ],
        tests: &[],
    },
];

/// Modules that every module may use, except these four among each other.
const USABLE_BY_ALL: [&str; 6] = ["body", "client", "clock", "proxies", "settings", "telemetry"];

/// Crates that must not depend on Kubernetes client crates.
const WITHOUT_KUBERNETES: [&str; 10] = [
    "headgate_azure",
    "headgate_azure_emulator",
    "headgate_certificates",
    "headgate_clock",
    "headgate_http",
    "headgate_local_pools",
    "headgate_notify",
    "headgate_otlp",
    "headgate_settings",
    "headgate_telemetry",
];
/// The Kubernetes client crates.
const KUBERNETES: [&str; 2] = ["k8s-openapi", "kube"];

/// The modules that a file uses: through paths that start with `crate` or another crate's name, and through `super`
/// paths that reach the crate's root.
struct Uses {
    used: BTreeSet<String>,
    /// Path of the module that is being visited, from the crate's root.
    module: Vec<String>,
    /// The crate that is being visited.
    krate: &'static Crate,
}

impl Crate {
    /// The crate's name in Rust paths, such as `headgate_azure_emulator`.
    fn name(&self) -> String {
        let (_, last) = self.directory.rsplit_once('/').unwrap_or_default();
        let words = ["headgate", last].into_iter().filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join("_").replace('-', "_")
    }

    fn sources(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(self.directory).join("src")
    }

    /// The module to which a path within this crate belongs, given the path's first segment.
    fn module(&self, first: Option<&String>) -> Option<String> {
        match self.modules {
            [(only, _)] => Some((*only).to_owned()),
            _ => first.cloned(),
        }
    }

    /// Dependencies under `[dependencies]` that are crates of this workspace or Kubernetes client crates.
    fn dependencies(&self) -> BTreeSet<String> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(self.directory)
            .join("Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        let (_, dependencies) = manifest.split_once("\n[dependencies]\n").unwrap();
        let dependencies = dependencies.lines().take_while(|line| !line.starts_with('['));
        let names = dependencies.filter_map(|line| line.split(['.', ' ']).next());
        let known = names.filter(|name| name.starts_with("headgate-") || KUBERNETES.contains(name));
        known.map(|name| name.replace('-', "_")).collect()
    }
}

impl Uses {
    /// Parses the source of `file` (relative to `src`) and collects the modules that it uses.
    fn parse(krate: &'static Crate, file: &Path, source: &str) -> Self {
        let mut module: Vec<_> = file
            .with_extension("")
            .iter()
            .map(|name| name.to_str().unwrap().to_owned())
            .collect();
        if module == ["lib"] || module == ["main"] {
            module.clear();
        }
        let used = BTreeSet::new();
        let mut found = Self { used, module, krate };
        found.visit_file(&syn::parse_file(source).unwrap());
        found
    }

    fn path(&mut self, path: &[String]) {
        let module = match path.first().map(String::as_str) {
            Some("crate") => self.krate.module(path.get(1)),
            Some("super") => {
                let climbed = path.iter().take_while(|name| *name == "super").count();
                // A path that does not climb to the root stays within the module.
                (climbed >= self.module.len())
                    .then(|| self.krate.module(path.get(climbed)))
                    .flatten()
            }
            Some(first) => {
                let other = CRATES.iter().find(|krate| krate.name() == first);
                other.and_then(|krate| krate.module(path.get(1)))
            }
            None => None,
        };
        self.used.extend(module);
    }

    fn tree(&mut self, path: &mut Vec<String>, tree: &syn::UseTree) {
        let last = match tree {
            syn::UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.tree(path, &tree.tree);
                path.pop();
                return;
            }
            syn::UseTree::Group(group) => return group.items.iter().for_each(|item| self.tree(path, item)),
            syn::UseTree::Name(name) => name.ident.to_string(),
            syn::UseTree::Rename(rename) => rename.ident.to_string(),
            syn::UseTree::Glob(_) => "*".to_owned(),
        };
        path.push(last);
        self.path(path);
        path.pop();
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&mut Vec::new(), &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.path(&names);
        visit::visit_path(self, path);
    }
}

#[test]
fn use_of_another_module_is_detected() {
    let root = CRATES.iter().find(|krate| krate.directory.is_empty()).unwrap();
    for (file, source, used) in [
        ("node/watch.rs", "use crate::health::Verdict;", "health"),
        ("node/watch.rs", "use super::super::health;", "health"),
        ("node/watch.rs", "use super::super::{server, node::x};", "node server"),
        ("node/watch.rs", "use super::super::*;", "*"),
        ("node/watch.rs", "fn f() { super::super::health::f() }", "health"),
        ("node/watch.rs", "use super::report::Report;", ""),
        ("node.rs", "use super::health::Verdict;", "health"),
        ("node.rs", "mod tests { use super::*; use super::super::why; }", "why"),
        ("node.rs", "mod tests { use super::signal::Facts; }", ""),
        ("main.rs", "fn main() { headgate::cli::run() }", "cli"),
        ("node.rs", "use headgate_clock::{self, Moment};", "clock"),
        ("node.rs", "fn f() { headgate_clock::Clock::System.now() }", "clock"),
    ] {
        let uses: Vec<_> = Uses::parse(root, Path::new(file), source).used.into_iter().collect();
        assert_eq!(uses.join(" "), used, "{file}: {source}");
    }
}

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn each_module_uses_only_allowed_modules() {
    for krate in CRATES {
        let src = krate.sources();
        let mut files = Vec::new();
        sources(&src, &mut files);
        let allowed_uses: BTreeMap<_, _> = krate.modules.iter().copied().collect();
        let mut seen = BTreeSet::new();
        for file in &files {
            let relative = file.strip_prefix(&src).unwrap();
            let first = relative.iter().next().unwrap().to_str().unwrap();
            let module = krate.module(Some(&first.trim_end_matches(".rs").to_owned())).unwrap();
            let shown = file.display();
            let Some(allowed) = allowed_uses.get(module.as_str()) else {
                panic!("{shown} belongs to no module of CRATES; add its module")
            };
            let uses = Uses::parse(krate, relative, &std::fs::read_to_string(file).unwrap());
            for other in uses.used.iter().filter(|other| **other != module) {
                let usable_by_all =
                    USABLE_BY_ALL.contains(&other.as_str()) && !USABLE_BY_ALL.contains(&module.as_str());
                assert!(
                    usable_by_all || allowed.contains(&other.as_str()) || krate.tests.contains(&other.as_str()),
                    "{shown} uses {other}, which CRATES does not allow for {module}"
                );
            }
            seen.insert(module);
        }
        let listed: BTreeSet<_> = allowed_uses.keys().map(ToString::to_string).collect();
        assert_eq!(seen, listed, "CRATES lists the modules of {}", src.display());
    }
}

#[test]
fn each_crate_depends_only_on_allowed_crates() {
    for krate in CRATES {
        let name = krate.name();
        let without_kubernetes = |name: &str| WITHOUT_KUBERNETES.contains(&name);
        let allowed = krate
            .modules
            .iter()
            .flat_map(|(_, uses)| uses.iter())
            .chain(&USABLE_BY_ALL);
        let allowed: BTreeSet<_> = allowed.map(|module| crate_of(module).name()).collect();
        for dependency in krate.dependencies() {
            let is_ours = dependency.starts_with("headgate");
            assert!(
                !is_ours || allowed.contains(&dependency),
                "{name} depends on {dependency}, which CRATES does not allow"
            );
            assert!(
                !without_kubernetes(&name) || (is_ours && without_kubernetes(&dependency)),
                "{name} depends on {dependency}, which depends on a Kubernetes client crate"
            );
        }
    }
}

/// The crate that contains a module.
fn crate_of(module: &str) -> &'static Crate {
    let contains = |krate: &&Crate| krate.modules.iter().any(|(name, _)| *name == module);
    CRATES
        .iter()
        .find(contains)
        .unwrap_or_else(|| panic!("no crate contains {module}"))
}

#[test]
fn layers_list_every_crate_of_the_workspace() {
    let members = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("crates")).unwrap();
    let members = members.map(|member| format!("crates/{}", member.unwrap().file_name().to_str().unwrap()));
    let listed = CRATES.iter().map(|krate| krate.directory.to_owned());
    assert_eq!(
        members.collect::<BTreeSet<_>>(),
        listed.filter(|directory| !directory.is_empty()).collect()
    );
}

/// A file of more lines is an exception: one idea that a split would only hide.
const RECOMMENDED_MAX_LINES: usize = 400;
/// A file of more lines holds more than one idea.
const MAX_LINES: usize = 600;

#[test]
fn long_files_are_exceptions() {
    let mut files = Vec::new();
    for krate in CRATES {
        sources(&krate.sources(), &mut files);
    }
    let lines = |file: &PathBuf| std::fs::read_to_string(file).unwrap().lines().count();
    let long: Vec<_> = files
        .iter()
        .map(|file| (lines(file), file))
        .filter(|(lines, _)| *lines > RECOMMENDED_MAX_LINES)
        .collect();
    assert!(long.iter().all(|(lines, _)| *lines <= MAX_LINES), "{long:?}");
    assert!(
        long.len() * 20 <= files.len(),
        "more than one file in 20 is long: {long:?}"
    );
}
