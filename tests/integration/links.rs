//! The Markdown pages: each relative link leads to a file of the repository and to a heading in it, and the summary of the
//! book lists each page of the documentation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Directories whose pages are checked, relative to the repository. The root's own pages are checked as well.
const ROOTS: [&str; 4] = ["benches", "docs", "lab", "manifests"];

/// What a page links to, and the anchors of its headings.
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

/// The anchor of a heading, as GitHub and mdBook form it: lower case, spaces as hyphens, no punctuation.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|character| match character {
        ' ' => Some('-'),
        '-' | '_' => Some(character),
        _ if character.is_alphanumeric() => Some(character),
        _ => None,
    });
    kept.flat_map(char::to_lowercase).collect()
}

fn parse(text: &str) -> Page {
    let (mut links, mut anchors) = (Vec::new(), BTreeSet::new());
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => links.push(dest_url.to_string()),
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(part) | Event::Code(part) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&part);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let first = anchor(&heading.take().unwrap_or_default());
                // A repeated heading gets a number.
                let numbered = (1..).map(|number| format!("{first}-{number}"));
                let free = std::iter::once(first.clone()).chain(numbered);
                let unique = free.into_iter().find(|anchor| !anchors.contains(anchor)).unwrap();
                anchors.insert(unique);
            }
            _ => {}
        }
    }
    Page { links, anchors }
}

pub(crate) fn pages_below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages_below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path.canonicalize().unwrap());
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap()
}

/// The pages of the repository by their paths.
fn pages() -> BTreeMap<PathBuf, Page> {
    let top_level = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = top_level
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    for directory in ROOTS {
        pages_below(&root().join(directory), &mut paths);
    }
    let read = |path: PathBuf| {
        let page = parse(&std::fs::read_to_string(&path).unwrap());
        (path, page)
    };
    paths.into_iter().map(read).collect()
}

/// Where a link leads, if it leads to a file of the repository: the path and the fragment.
fn target(page: &Path, link: &str) -> Option<(PathBuf, String)> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, fragment) = link.split_once('#').unwrap_or((link, ""));
    let path = match path {
        "" => page.to_owned(),
        path => page.parent()?.join(path),
    };
    Some((path, fragment.to_owned()))
}

/// The links of `pages` that lead to no file or to no heading.
fn broken(pages: &BTreeMap<PathBuf, Page>) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, page) in pages {
        for link in &page.links {
            let Some((target, fragment)) = target(path, link) else {
                continue;
            };
            let found = if pages.contains_key(&target) {
                Some(target)
            } else {
                target.canonicalize().ok()
            };
            let has_anchor = |file: &PathBuf| {
                let page = pages.get(file);
                fragment.is_empty() || page.is_some_and(|page| page.anchors.contains(&fragment))
            };
            if !found.as_ref().is_some_and(has_anchor) {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    broken
}

#[test]
fn links_between_pages_lead_to_files_and_headings() {
    let pages = pages();
    let links: usize = pages.values().map(|page| page.links.len()).sum();
    assert!(pages.len() > 20 && links > 100, "{} pages, {links} links", pages.len());
    assert_eq!(broken(&pages), Vec::<String>::new());
}

#[test]
fn broken_links_are_found() {
    let page = root().join("docs/page.md");
    for (text, expected) in [
        ("[a](README.md)", true),
        ("[a](../README.md) [b](https://example.com/nothing#here)", true),
        ("# One two\n[a](#one-two)", true),
        ("# `code`, *and* more\n[a](#code-and-more)", true),
        ("# Twice\n# Twice\n[a](#twice-1)", true),
        ("```\n[a](nothing.md)\n```", true),
        ("[a](nothing.md)", false),
        ("[a](README.md#nothing)", false),
        ("[a](#nothing)", false),
    ] {
        let readme = parse("# headgate's documentation\n");
        let pages = [(root().join("docs/README.md"), readme), (page.clone(), parse(text))].into();
        assert_eq!(broken(&pages).is_empty(), expected, "{text}: {:?}", broken(&pages));
    }
}

#[test]
fn summary_of_the_book_lists_each_page() {
    let summary = root().join("docs/SUMMARY.md");
    let listed = parse(&std::fs::read_to_string(&summary).unwrap()).links;
    let listed: Vec<_> = listed
        .iter()
        .map(|link| target(&summary, link).unwrap().0.canonicalize().unwrap())
        .collect();
    let unique: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(unique.len(), listed.len(), "a page is listed twice");
    let mut written = Vec::new();
    pages_below(&root().join("docs"), &mut written);
    let missing: Vec<_> = written
        .iter()
        .filter(|page| **page != summary && !unique.contains(*page))
        .collect();
    assert!(missing.is_empty(), "add to docs/SUMMARY.md: {missing:?}");
}
