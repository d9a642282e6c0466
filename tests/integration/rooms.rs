//! The house's plan, held: which room may use which. The imports are read from the source.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// What each room may use besides itself; `clock`, `config` and `telemetry` are open to all above them.
const MAY_USE: &[(&str, &[&str])] = &[
    ("clock", &[]),
    ("config", &[]),
    ("telemetry", &[]),
    ("fetch", &["telemetry"]),
    ("server", &[]),
    ("node", &[]),
    ("health", &["node", "server"]),
    ("spot", &["node"]),
    ("agent", &["health", "node", "server", "spot"]),
    ("sandbox", &["agent", "health", "node", "server"]),
    ("cli", &["agent", "health", "node", "sandbox", "server", "why"]),
    ("why", &["node"]),
    ("main", &["cli"]),
    ("lib", &[]),
];
const OPEN_TO_ALL: [&str; 4] = ["clock", "config", "fetch", "telemetry"];

/// The first names of every path that starts at the crate's root.
#[derive(Default)]
struct Rooms(BTreeSet<String>);

impl Rooms {
    fn tree(&mut self, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => drop(self.0.insert(path.ident.to_string())),
            syn::UseTree::Name(name) => drop(self.0.insert(name.ident.to_string())),
            syn::UseTree::Rename(rename) => drop(self.0.insert(rename.ident.to_string())),
            syn::UseTree::Glob(_) => drop(self.0.insert("*".to_owned())),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(item)),
        }
    }
}

impl<'ast> Visit<'ast> for Rooms {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if let syn::UseTree::Path(path) = &item.tree
            && (path.ident == "crate" || path.ident == "headgate")
        {
            self.tree(&path.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let mut segments = path.segments.iter();
        if segments
            .next()
            .is_some_and(|first| first.ident == "crate" || first.ident == "headgate")
            && let Some(room) = segments.next()
        {
            self.0.insert(room.ident.to_string());
        }
        visit::visit_path(self, path);
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
        let mut used = Rooms::default();
        used.visit_file(&syn::parse_file(&std::fs::read_to_string(file).unwrap()).unwrap());
        for other in used.0.iter().filter(|other| **other != room) {
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
