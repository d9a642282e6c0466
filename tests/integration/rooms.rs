//! The house's plan, held: which room may use which. The imports are read from the source.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// What each room may use besides itself; `clock`, `config`, `fetch` and `telemetry` are open to all
/// above them. docs/architecture.md shows the same to people.
const MAY_USE: &[(&str, &[&str])] = &[
    ("clock", &[]),
    ("config", &[]),
    ("telemetry", &[]),
    ("fetch", &["telemetry"]),
    ("server", &[]),
    ("azure", &[]),
    ("node", &[]),
    ("health", &["node", "server"]),
    ("spot", &["node"]),
    ("leader", &["node"]),
    ("pool", &["azure", "leader", "node"]),
    ("admin_state", &["azure", "leader", "node", "pool"]),
    (
        "agent",
        &["admin_state", "azure", "health", "leader", "node", "server", "spot"],
    ),
    (
        "sandbox",
        &["agent", "health", "leader", "node", "server", "spot", "status"],
    ),
    (
        "cli",
        &[
            "admin_state",
            "agent",
            "azure",
            "health",
            "node",
            "restore",
            "sandbox",
            "server",
            "status",
            "why",
        ],
    ),
    ("why", &["node"]),
    ("status", &["admin_state", "azure", "leader", "node", "pool", "why"]),
    ("restore", &["admin_state", "leader", "node"]),
    ("main", &["cli"]),
    ("lib", &[]),
];
const OPEN_TO_ALL: [&str; 4] = ["clock", "config", "fetch", "telemetry"];

/// The rooms that a file's paths lead into: those that start at the crate's root, and those that climb
/// there by `super`.
struct Rooms {
    used: BTreeSet<String>,
    /// The modules around what is visited, from the root.
    module: Vec<String>,
}

impl Rooms {
    /// What the file `inside` (below `src`) uses.
    fn of(inside: &Path, source: &str) -> Self {
        let mut module: Vec<_> = inside
            .with_extension("")
            .iter()
            .map(|name| name.to_str().unwrap().to_owned())
            .collect();
        if module == ["lib"] || module == ["main"] {
            module.clear();
        }
        let used = BTreeSet::new();
        let mut rooms = Self { used, module };
        rooms.visit_file(&syn::parse_file(source).unwrap());
        rooms
    }

    fn path(&mut self, path: &[String]) {
        let room = match path.first().map(String::as_str) {
            Some("crate" | "headgate") => path.get(1),
            Some("super") => {
                let climbed = path.iter().take_while(|name| *name == "super").count();
                // Short of the root it stays in the room.
                (climbed >= self.module.len()).then(|| path.get(climbed)).flatten()
            }
            _ => None,
        };
        self.used.extend(room.cloned());
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

impl<'ast> Visit<'ast> for Rooms {
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
    ] {
        let rooms: Vec<_> = Rooms::of(Path::new(file), source).used.into_iter().collect();
        assert_eq!(rooms.join(" "), used, "{file}: {source}");
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
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let plan: BTreeMap<_, _> = MAY_USE.iter().copied().collect();
    let mut seen = BTreeSet::new();
    for file in &files {
        let inside = file.strip_prefix(&src).unwrap();
        let room = inside
            .iter()
            .next()
            .unwrap()
            .to_str()
            .unwrap()
            .trim_end_matches(".rs")
            .to_owned();
        let Some(allowed) = plan.get(room.as_str()) else {
            panic!("{} is in no room of the plan", inside.display())
        };
        let rooms = Rooms::of(inside, &std::fs::read_to_string(file).unwrap());
        for other in rooms.used.iter().filter(|other| **other != room) {
            let open = OPEN_TO_ALL.contains(&other.as_str()) && !OPEN_TO_ALL.contains(&room.as_str());
            assert!(
                open || allowed.contains(&other.as_str()),
                "{} uses {other}, which the plan does not allow to {room}",
                inside.display()
            );
        }
        seen.insert(room);
    }
    let planned: BTreeSet<_> = plan.keys().map(ToString::to_string).collect();
    assert_eq!(seen, planned, "the plan and src/ hold the same rooms");
}

#[test]
fn no_file_is_too_long_to_be_read() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    for file in files {
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= 400, "{} has {lines} lines", file.display());
    }
}
