//! Vocabulary: rejects the item names that this project retired and a short list of words in prose. docs/glossary.md has
//! the terms that are used instead. Ordinary words of the field (line, record, stage, claim) are allowed in prose.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// Names that no type, trait, alias or enum variant may have.
const RETIRED_TYPES: &[&str] = &[
    "Announced",
    "Around",
    "Book",
    "Claim",
    "Crowd",
    "Desk",
    "Door",
    "Keeper",
    "Office",
    "Outlet",
    "Pauses",
    "Questions",
    "Reached",
    "Rival",
    "Said",
    "Sight",
    "Standing",
    "Stands",
    "Tally",
    "Tenure",
    "Trouble",
    "Truth",
    "Wanted",
    "Wish",
];

/// Names that no function, module, field, constant or source file may have. Compared in lower case.
const RETIRED_NAMES: &[&str] = &[
    "again",
    "desk",
    "heed",
    "in_office",
    "is_said",
    "keeper",
    "knocked",
    "last_errands",
    "mistrust",
    "most",
    "pauses",
    "relief",
    "said",
    "sight",
    "stood_in",
    "told",
    "trouble",
    "whom_to_tell",
    "wish",
];

/// Words that neither prose nor an identifier may contain. Compared in lower case, as whole words.
const REJECTED_WORDS: &[&str] = &[
    "errand",
    "errands",
    "heed",
    "heeded",
    "heeds",
    "knocked",
    "mistrust",
    "mistrusted",
    "nobody",
    "somebody",
    "tells",
    "tenure",
    "told",
    "whoever",
    "whom",
    "wish",
    "wished",
    "wishes",
];

/// Where files are read from, relative to the repository.
const ROOTS: &[&str] = &["benches", "crates", "docs", "manifests", "src", "tests"];
/// Single files at the top level.
const TOP_LEVEL: &[&str] = &["CHANGELOG.md", "Cargo.toml", "Dockerfile", "Makefile", "README.md"];
/// File name extensions that are checked for words; only `rs` is checked for item names.
const EXTENSIONS: &[&str] = &["go", "md", "py", "rs", "sh", "toml", "yaml", "yml"];

/// Collects the names of the items that a Rust file defines.
#[derive(Default)]
struct Definitions {
    types: Vec<String>,
    names: Vec<String>,
}

impl<'ast> Visit<'ast> for Definitions {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.types.push(item.ident.to_string());
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.types.push(item.ident.to_string());
        visit::visit_item_enum(self, item);
    }

    fn visit_variant(&mut self, item: &'ast syn::Variant) {
        self.types.push(item.ident.to_string());
        visit::visit_variant(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.types.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.types.push(item.ident.to_string());
        visit::visit_item_type(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.names.push(signature.ident.to_string());
        visit::visit_signature(self, signature);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.names.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.names.push(item.ident.to_string());
        visit::visit_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.names.push(item.ident.to_string());
        visit::visit_item_static(self, item);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.names.extend(field.ident.as_ref().map(ToString::to_string));
        visit::visit_field(self, field);
    }
}

/// The retired names that a Rust file defines.
fn retired_names(file: &Path, source: &str) -> Vec<String> {
    let mut definitions = Definitions::default();
    definitions.visit_file(&syn::parse_file(source).unwrap());
    let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap();
    definitions.names.push(stem.to_owned());
    let types = definitions
        .types
        .into_iter()
        .filter(|name| RETIRED_TYPES.contains(&name.as_str()));
    let names = definitions.names.into_iter();
    let names = names.filter(|name| RETIRED_NAMES.contains(&name.to_lowercase().as_str()));
    types.chain(names).collect()
}

/// The rejected words of a text, each with the number of its line. A word ends where letters end, so that the parts of
/// `snake_case` count as words.
fn rejected_words(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for word in line.split(|letter: char| !letter.is_alphabetic()) {
            let word = word.to_lowercase();
            if REJECTED_WORDS.contains(&word.as_str()) {
                found.push((number + 1, word));
            }
        }
    }
    found
}

/// Every checked file below a directory; build output and this file are left out.
fn files(directory: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        if path.is_dir() {
            if !matches!(name, "corpus" | "node_modules" | "target") {
                files(&path, found);
            }
        } else if name != "wording.rs"
            && path
                .extension()
                .is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
        {
            found.insert(path);
        }
    }
}

#[test]
fn no_retired_name_and_no_rejected_word_is_used() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut checked: BTreeSet<_> = TOP_LEVEL.iter().map(|name| root.join(name)).collect();
    for directory in ROOTS {
        files(&root.join(directory), &mut checked);
    }
    assert!(checked.len() > 500, "only {} files were found", checked.len());
    let mut problems = Vec::new();
    for file in checked {
        let text = std::fs::read_to_string(&file).unwrap();
        let shown = file.strip_prefix(root).unwrap().display();
        let words = rejected_words(&text).into_iter();
        problems.extend(words.map(|(line, word)| format!("{shown}:{line}: the word `{word}`")));
        if file.extension().is_some_and(|extension| extension == "rs") {
            let names = retired_names(&file, &text).into_iter();
            problems.extend(names.map(|name| format!("{shown}: the name `{name}`")));
        }
    }
    assert!(
        problems.is_empty(),
        "see docs/glossary.md for the terms:\n{}",
        problems.join("\n")
    );
}

#[test]
fn retired_names_and_rejected_words_are_found() {
    for (source, expected) in [
        ("struct Sight;", "Sight"),
        ("enum Fault { Trouble }", "Trouble"),
        ("struct S { stood_in: bool }", "stood_in"),
        ("impl S { fn told(&self) {} }", "told"),
        ("const LAST_ERRANDS: u8 = 1;", "LAST_ERRANDS"),
        ("trait Wish {} mod keeper {}", "Wish keeper"),
        (
            "struct SightSeeing; // Sight and wish in a comment are not definitions",
            "",
        ),
    ] {
        assert_eq!(retired_names(Path::new("a.rs"), source).join(" "), expected, "{source}");
    }
    assert_eq!(retired_names(Path::new("sight.rs"), ""), ["sight"]);
    assert_eq!(
        rejected_words("a\nWhoever said it: `is_told`"),
        [(2, "whoever".to_owned()), (2, "told".to_owned())]
    );
    assert_eq!(rejected_words("untold wishful heedless"), []);
}
