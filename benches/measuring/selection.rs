//! Selects the rows to measure: all, or those whose names contain a given word.

use std::env;
use std::pin::Pin;
use std::process::ExitCode;

use super::output::say;
use super::report::Row;

/// One row and how it is measured in a world.
pub(crate) struct Benchmark<W: 'static> {
    /// The name of the row and of its file.
    pub(crate) name: &'static str,
    /// One line of description.
    pub(crate) about: &'static str,
    /// The function that measures the row.
    pub(crate) measure: for<'a> fn(&'a mut W) -> Measuring<'a>,
}

/// The future of a measurement.
pub(crate) type Measuring<'a> = Pin<Box<dyn Future<Output = anyhow::Result<Row>> + 'a>>;

/// The arguments from `cargo bench`.
pub(crate) struct Arguments {
    words: Vec<String>,
    strict: bool,
}

impl Arguments {
    /// Parses them; `None` if `cargo bench` did not start this process, such as with `cargo test --benches`.
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
    /// No row has such a name.
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

    /// The exit code, from whether every budget was kept.
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
