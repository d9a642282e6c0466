//! Which rows are measured: all, or those that were asked for by a part of their names.

use std::env;
use std::pin::Pin;
use std::process::ExitCode;

use super::output::say;
use super::report::Row;

/// One row and how it is measured in a world.
pub(crate) struct Benchmark<W: 'static> {
    /// Its name, and its file's.
    pub(crate) name: &'static str,
    /// What it is about, in a line.
    pub(crate) about: &'static str,
    /// Measures it.
    pub(crate) measure: for<'a> fn(&'a mut W) -> Measuring<'a>,
}

/// A measurement under way.
pub(crate) type Measuring<'a> = Pin<Box<dyn Future<Output = anyhow::Result<Row>> + 'a>>;

/// What `cargo bench` hands on.
pub(crate) struct Arguments {
    words: Vec<String>,
    strict: bool,
}

impl Arguments {
    /// Reads them; none where this was not started by `cargo bench`, as by `cargo test --benches`.
    pub(crate) fn read() -> Option<Self> {
        let arguments: Vec<String> = env::args().skip(1).collect();
        let given = |flag: &str| arguments.iter().any(|argument| argument == flag);
        given("--bench").then(|| Self {
            strict: given("--strict"),
            words: arguments
                .iter()
                .filter(|word| !word.starts_with("--"))
                .cloned()
                .collect(),
        })
    }

    /// The rows whose names contain one of the words, or all.
    ///
    /// # Errors
    /// Where there are none.
    pub(crate) fn choose<W>(&self, rows: &'static [Benchmark<W>]) -> anyhow::Result<Vec<&'static Benchmark<W>>> {
        let Self { words, .. } = self;
        let chosen: Vec<_> = rows
            .iter()
            .filter(|row| words.is_empty() || words.iter().any(|word| row.name.contains(word.as_str())))
            .collect();
        if chosen.is_empty() {
            let names: Vec<_> = rows.iter().map(|row| row.name).collect();
            anyhow::bail!("no benchmark is called so; there are {}", names.join(", "));
        }
        Ok(chosen)
    }

    /// How the process ends, by whether every budget was kept.
    pub(crate) fn exit(&self, kept: anyhow::Result<bool>) -> ExitCode {
        match kept {
            Ok(kept) if kept || !self.strict => ExitCode::SUCCESS,
            Ok(_) => ExitCode::FAILURE,
            Err(error) => {
                say(&format!("error: {error:#}"));
                ExitCode::FAILURE
            }
        }
    }
}
