//! The files of an archive, and what is missing in it.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde::Serialize;
use tar::{Builder, Header};

use super::redact::scrub;

/// The bytes of all files together, before they are compressed.
const MAX_BYTES: usize = 128 * 1024 * 1024;
/// The list of files and of what is missing.
const CONTENTS: &str = "contents.txt";

/// A file, or why it is missing.
pub(crate) enum Part {
    File {
        path: String,
        text: String,
        /// What it lacks.
        cut: Option<String>,
    },
    Missing {
        what: String,
        why: String,
    },
}

impl Part {
    pub(super) fn text(path: impl Into<String>, text: &str) -> Self {
        Self::File {
            path: path.into(),
            text: scrub(text),
            cut: None,
        }
    }

    /// The same part, where its file lacks something.
    pub(super) fn cut(mut self, lacks: Option<String>) -> Self {
        if let Self::File { cut, .. } = &mut self {
            *cut = lacks;
        }
        self
    }

    pub(super) fn json(path: &str, value: &impl Serialize) -> Self {
        match serde_json::to_string_pretty(value) {
            Ok(text) => Self::text(path, &text),
            Err(error) => Self::missing(path, error.to_string()),
        }
    }

    /// A file of a text that was read, or why it was not.
    pub(super) fn read(path: impl Into<String>, text: Result<String, String>) -> Self {
        match text {
            Ok(text) => Self::text(path, &text),
            Err(why) => Self::missing(path, why),
        }
    }

    pub(super) fn missing(what: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Missing {
            what: what.into(),
            why: scrub(&why.into()),
        }
    }
}

/// The parts of an archive.
#[derive(Default)]
pub(crate) struct Bundle {
    files: Vec<(String, String)>,
    /// What is missing, and why.
    missing: Vec<(String, String)>,
    bytes: usize,
}

impl Bundle {
    /// Adds a part, as long as there is room for it.
    pub(super) fn add(&mut self, part: Part) {
        match part {
            Part::Missing { what, why } => self.missing.push((what, why)),
            Part::File { path, text, .. } if self.bytes + text.len() > MAX_BYTES => {
                let why = format!("its {} bytes are more than the archive has room for", text.len());
                self.missing.push((path, why));
            }
            Part::File { path, text, cut } => {
                self.bytes += text.len();
                self.missing.extend(cut.map(|why| (path.clone(), why)));
                self.files.push((path, text));
            }
        }
    }

    /// The number of files.
    pub(crate) fn files(&self) -> usize {
        self.files.len()
    }

    /// What is missing, and why.
    pub(crate) fn missing(&self) -> &[(String, String)] {
        &self.missing
    }

    fn contents(&self, now: Timestamp) -> String {
        let files = self
            .files
            .iter()
            .map(|(path, text)| format!("{:>10}  {path}\n", text.len()));
        let missing = self.missing.iter().map(|(what, why)| format!("  {what}: {why}\n"));
        let missing: String = missing.collect();
        let missing = if missing.is_empty() {
            "Nothing is missing.\n".to_owned()
        } else {
            format!("Missing:\n{missing}")
        };
        format!(
            "headgate sysdump at {now:.0}. No Secret was read; URLs, tokens and settings that may be secret are cut.\n\n{missing}\nFiles:\n{}",
            files.collect::<String>()
        )
    }

    /// Writes the archive, a gzipped tar with one directory of this name.
    ///
    /// # Errors
    /// The writer's.
    pub(crate) fn write(&self, to: impl Write, directory: &str, now: Timestamp) -> io::Result<()> {
        let mut archive = Builder::new(GzEncoder::new(to, Compression::default()));
        let contents = (CONTENTS.to_owned(), self.contents(now));
        for (path, text) in std::iter::once(&contents).chain(&self.files) {
            let mut header = Header::new_gnu();
            header.set_size(u64::try_from(text.len()).unwrap_or_default());
            header.set_mode(0o600);
            header.set_mtime(u64::try_from(now.as_second()).unwrap_or_default());
            archive.append_data(&mut header, format!("{directory}/{path}"), text.as_bytes())?;
        }
        archive.into_inner()?.finish()?.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_listed() {
        let mut bundle = Bundle::default();
        let large = "x".repeat(MAX_BYTES / 2 + 1);
        bundle.add(Part::text("a", &large));
        bundle.add(Part::text("b", &large));
        bundle.add(Part::text("c", "small"));
        bundle.add(Part::missing("d", "refused"));
        assert_eq!(bundle.files(), 2);
        let contents = bundle.contents(Timestamp::UNIX_EPOCH);
        assert!(contents.contains("  b: its 67108865 bytes are more than"), "{contents}");
        assert!(contents.contains("  d: refused\n"), "{contents}");
        let mut written = Vec::new();
        bundle.write(&mut written, "dump", Timestamp::UNIX_EPOCH).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(written.as_slice()));
        let paths: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        assert_eq!(paths, ["dump/contents.txt", "dump/a", "dump/c"]);
    }
}
