//! Mutations of a corpus: its files cut, joined, repeated and overwritten, with keywords of the format inserted.
//!
//! A stable compiler does not report which input reaches new code, so the corpus has to contain the formats.

use std::path::Path;
use std::time::Duration;

use bolero::generator::bolero_generator::driver::Driver;
use bolero::{ValueGenerator, check};

/// Seconds for each target unless `HEADGATE_FUZZ_SECONDS` is set.
const DEFAULT_SECONDS: u64 = 3;
/// Maximum size of an input; larger ones only take longer.
const MAX_BYTES: usize = 16 * 1024;

/// A corpus, and keywords of its format.
#[derive(Debug)]
pub(crate) struct MutatedCorpus {
    corpus: Vec<Vec<u8>>,
    words: &'static [&'static [u8]],
}

/// How long each target runs.
pub(crate) fn time() -> Duration {
    let seconds = std::env::var("HEADGATE_FUZZ_SECONDS").map_or(Ok(DEFAULT_SECONDS), |text| text.parse());
    Duration::from_secs(seconds.expect("HEADGATE_FUZZ_SECONDS is a number of seconds"))
}

/// Checks that `holds` for each file of the corpus `tests/fuzz/corpus/NAME`, then for inputs like them.
pub(crate) fn fuzz(name: &str, words: &'static [&'static [u8]], holds: impl Fn(&[u8]) + std::panic::RefUnwindSafe) {
    let mutated_corpus = MutatedCorpus::load(name, words);
    mutated_corpus.corpus.iter().for_each(|bytes| holds(bytes));
    check!(name = name)
        .with_generator(mutated_corpus)
        .with_test_time(time())
        .for_each(|bytes: &Vec<u8>| holds(bytes));
}

impl MutatedCorpus {
    /// Loads the corpus of that name and adds an empty input.
    pub(crate) fn load(name: &str, words: &'static [&'static [u8]]) -> Self {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fuzz/corpus")
            .join(name);
        let files = std::fs::read_dir(directory).unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        files.sort();
        let mut corpus: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
        assert!(!corpus.is_empty(), "the corpus {name} is empty");
        corpus.push(Vec::new());
        Self { corpus, words }
    }

    /// The unchanged files.
    pub(crate) fn files(&self) -> &[Vec<u8>] {
        &self.corpus
    }

    fn file<D: Driver>(&self, driver: &mut D) -> Option<&[u8]> {
        Some(&self.corpus[(0..self.corpus.len()).generate(driver)?])
    }

    /// One change to `bytes`.
    fn change<D: Driver>(&self, driver: &mut D, bytes: &mut Vec<u8>) -> Option<()> {
        let end = bytes.len();
        let from = (0..=end).generate(driver)?;
        let to = from + (0..=(end - from).min(64)).generate(driver)?;
        match (0u8..10).generate(driver)? {
            0 => bytes.truncate(from),
            1 => drop(bytes.drain(from..to)),
            2 => {
                let part = bytes[from..to].to_vec();
                let times = (1usize..200).generate(driver)?;
                bytes.splice(from..from, part.repeat(times));
            }
            3 => {
                let byte = driver.produce::<u8>()?;
                bytes.insert(from, byte);
            }
            4 => {
                let few = driver.produce::<[u8; 4]>()?;
                bytes.splice(from..to, few);
            }
            5 if from < end => bytes[from] ^= 1 << (0u8..8).generate(driver)?,
            6 => {
                let other = self.file(driver)?;
                let start = (0..=other.len()).generate(driver)?;
                let part = other[start..].to_vec();
                bytes.truncate(from);
                bytes.extend(part);
            }
            7 => {
                let other = self.file(driver)?;
                let start = (0..=other.len()).generate(driver)?;
                let stop = start + (0..=(other.len() - start).min(64)).generate(driver)?;
                let part = other[start..stop].to_vec();
                bytes.splice(from..from, part);
            }
            _ if !self.words.is_empty() => {
                let word = self.words[(0..self.words.len()).generate(driver)?];
                let to = if driver.produce::<bool>()? { from } else { to };
                bytes.splice(from..to, word.iter().copied());
            }
            _ => {}
        }
        bytes.truncate(MAX_BYTES);
        Some(())
    }
}

impl ValueGenerator for MutatedCorpus {
    type Output = Vec<u8>;

    fn generate<D: Driver>(&self, driver: &mut D) -> Option<Vec<u8>> {
        let mut bytes = self.file(driver)?.to_vec();
        for _ in 0..(0u8..8).generate(driver)? {
            self.change(driver, &mut bytes)?;
        }
        Some(bytes)
    }
}
