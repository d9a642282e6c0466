//! The house's plan, held: which crate may depend on which, and which module may use which. Manifests and imports are
//! read from the source.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// A crate of the workspace, named for its directory.
struct Crate {
    /// Its directory, from the top.
    directory: &'static str,
    /// Each module, and what it may use besides itself and what is open to all. The only module of a crate is the
    /// whole crate.
    modules: &'static [(&'static str, &'static [&'static str])],
    /// What its tests may use besides. Only `[dev-dependencies]` name the crates of these, so nothing else can.
    tests: &'static [&'static str],
}

/// The crates, each below those that depend on it. docs/architecture.md shows the same to people.
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
            ("bounded_client", &["body", "telemetry"]),
            ("server", &[]),
            ("lib", &[]),
        ],
        tests: &[],
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
        modules: &[("spot", &["node"])],
        tests: &["azure_emulator"],
    },
    Crate {
        directory: "crates/leader",
        modules: &[("leader", &["kubernetes", "node"])],
        tests: &[],
    },
    Crate {
        directory: "crates/controller",
        modules: &[
            ("pool", &["azure", "leader"]),
            ("admin_state", &["azure", "kubernetes", "leader", "node", "pool"]),
            ("restore", &["admin_state", "leader", "node"]),
            ("lib", &[]),
        ],
        tests: &[],
    },
    Crate {
        directory: "crates/sandbox",
        modules: &[("sandbox", &["certificates", "kubernetes", "leader"])],
        tests: &["azure_emulator", "node"],
    },
    Crate {
        directory: "crates/test-kubernetes",
        modules: &[("test_kubernetes", &["sandbox"])],
        tests: &[],
    },
    Crate {
        directory: "",
        modules: &[
            ("config", &["admin_state", "health", "node", "server"]),
            ("why", &["node"]),
            (
                "status",
                &["admin_state", "azure", "config", "leader", "node", "pool", "why"],
            ),
            (
                "agent",
                &[
                    "admin_state",
                    "azure",
                    "config",
                    "health",
                    "kubernetes",
                    "leader",
                    "node",
                    "server",
                    "spot",
                ],
            ),
            (
                "cli",
                &[
                    "admin_state",
                    "agent",
                    "azure",
                    "azure_emulator",
                    "config",
                    "kubernetes",
                    "leader",
                    "otlp",
                    "restore",
                    "sandbox",
                    "server",
                    "status",
                    "why",
                ],
            ),
            ("main", &["cli"]),
            ("lib", &[]),
        ],
        tests: &[],
    },
];

/// What every module may use, but for these themselves.
const OPEN_TO_ALL: [&str; 5] = ["body", "bounded_client", "clock", "settings", "telemetry"];

/// Crates that know nothing of Kubernetes: their manifests do not name what speaks to it.
const WITHOUT_KUBERNETES: [&str; 8] = [
    "headgate_azure",
    "headgate_azure_emulator",
    "headgate_certificates",
    "headgate_clock",
    "headgate_http",
    "headgate_otlp",
    "headgate_settings",
    "headgate_telemetry",
];
const KUBERNETES: [&str; 2] = ["k8s-openapi", "kube"];

/// The modules that a file's paths lead into: those that start at the crate's root or at another crate, and those that
/// climb to the root by `super`.
struct Uses {
    used: BTreeSet<String>,
    /// The modules around what is visited, from the root.
    module: Vec<String>,
    /// The crate that is visited.
    inside: &'static Crate,
}

impl Crate {
    /// Its name in paths.
    fn name(&self) -> String {
        let (_, last) = self.directory.rsplit_once('/').unwrap_or_default();
        let words = ["headgate", last].into_iter().filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join("_").replace('-', "_")
    }

    fn sources(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(self.directory).join("src")
    }

    /// The module that a path within this crate begins with.
    fn module(&self, first: Option<&String>) -> Option<String> {
        match self.modules {
            [(only, _)] => Some((*only).to_owned()),
            _ => first.cloned(),
        }
    }

    /// The names of this workspace's and of Kubernetes' crates in the manifest's `[dependencies]`.
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
    /// What the file `file` (below `src`) of a crate uses.
    fn of(inside: &'static Crate, file: &Path, source: &str) -> Self {
        let mut module: Vec<_> = file
            .with_extension("")
            .iter()
            .map(|name| name.to_str().unwrap().to_owned())
            .collect();
        if module == ["lib"] || module == ["main"] {
            module.clear();
        }
        let used = BTreeSet::new();
        let mut found = Self { used, module, inside };
        found.visit_file(&syn::parse_file(source).unwrap());
        found
    }

    fn path(&mut self, path: &[String]) {
        let module = match path.first().map(String::as_str) {
            Some("crate") => self.inside.module(path.get(1)),
            Some("super") => {
                let climbed = path.iter().take_while(|name| *name == "super").count();
                // Short of the root it stays in the module.
                (climbed >= self.module.len())
                    .then(|| self.inside.module(path.get(climbed)))
                    .flatten()
            }
            Some(first) => {
                let of = CRATES.iter().find(|of| of.name() == first);
                of.and_then(|of| of.module(path.get(1)))
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
fn every_way_into_another_room_is_seen() {
    let root = CRATES.iter().find(|of| of.directory.is_empty()).unwrap();
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
        let uses: Vec<_> = Uses::of(root, Path::new(file), source).used.into_iter().collect();
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
fn each_room_uses_only_what_the_plan_allows() {
    for of in CRATES {
        let src = of.sources();
        let mut files = Vec::new();
        sources(&src, &mut files);
        let plan: BTreeMap<_, _> = of.modules.iter().copied().collect();
        let mut seen = BTreeSet::new();
        for file in &files {
            let inside = file.strip_prefix(&src).unwrap();
            let first = inside.iter().next().unwrap().to_str().unwrap();
            let module = of.module(Some(&first.trim_end_matches(".rs").to_owned())).unwrap();
            let shown = file.display();
            let Some(allowed) = plan.get(module.as_str()) else {
                panic!("{shown} is in no module of the plan")
            };
            let uses = Uses::of(of, inside, &std::fs::read_to_string(file).unwrap());
            for other in uses.used.iter().filter(|other| **other != module) {
                let open = OPEN_TO_ALL.contains(&other.as_str()) && !OPEN_TO_ALL.contains(&module.as_str());
                assert!(
                    open || allowed.contains(&other.as_str()) || of.tests.contains(&other.as_str()),
                    "{shown} uses {other}, which the plan does not allow to {module}"
                );
            }
            seen.insert(module);
        }
        let planned: BTreeSet<_> = plan.keys().map(ToString::to_string).collect();
        assert_eq!(seen, planned, "the plan and {} hold the same modules", src.display());
    }
}

#[test]
fn each_crate_depends_only_on_what_the_plan_allows() {
    for of in CRATES {
        let name = of.name();
        let without_kubernetes = |name: &str| WITHOUT_KUBERNETES.contains(&name);
        let allowed = of.modules.iter().flat_map(|(_, uses)| uses.iter()).chain(&OPEN_TO_ALL);
        let allowed: BTreeSet<_> = allowed.map(|module| holder(module).name()).collect();
        for dependency in of.dependencies() {
            let ours = dependency.starts_with("headgate");
            assert!(
                !ours || allowed.contains(&dependency),
                "{name} depends on {dependency}, which the plan does not allow"
            );
            assert!(
                !without_kubernetes(&name) || (ours && without_kubernetes(&dependency)),
                "{name} depends on {dependency}, which knows Kubernetes"
            );
        }
    }
}

/// The crate that holds a module.
fn holder(module: &str) -> &'static Crate {
    let holds = |of: &&Crate| of.modules.iter().any(|(name, _)| *name == module);
    CRATES
        .iter()
        .find(holds)
        .unwrap_or_else(|| panic!("no crate holds {module}"))
}

#[test]
fn the_plan_and_the_workspace_hold_the_same_crates() {
    let members = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("crates")).unwrap();
    let members = members.map(|member| format!("crates/{}", member.unwrap().file_name().to_str().unwrap()));
    let planned = CRATES.iter().map(|of| of.directory.to_owned());
    assert_eq!(
        members.collect::<BTreeSet<_>>(),
        planned.filter(|directory| !directory.is_empty()).collect()
    );
}

/// A file of more lines is an exception: one idea that a split would only hide.
const RECOMMENDED_MAX_LINES: usize = 400;
/// A file of more lines holds more than one idea.
const MAX_LINES: usize = 600;

#[test]
fn long_files_are_exceptions() {
    let mut files = Vec::new();
    for of in CRATES {
        sources(&of.sources(), &mut files);
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
