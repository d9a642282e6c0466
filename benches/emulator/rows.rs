//! The rows, in the order they are measured.

mod clients;
mod large_pool;
mod memory;

use std::future::Future;
use std::pin::Pin;

use crate::report::Row;
use crate::world::World;

/// One row and how it is measured.
pub(crate) struct Benchmark {
    /// Its name, and its file's.
    pub(crate) name: &'static str,
    /// What it is about, in a line.
    pub(crate) about: &'static str,
    /// Measures it.
    pub(crate) measure: for<'a> fn(&'a World) -> Measuring<'a>,
}

/// A measurement under way.
pub(crate) type Measuring<'a> = Pin<Box<dyn Future<Output = anyhow::Result<Row>> + 'a>>;

/// All rows.
pub(crate) const ROWS: &[Benchmark] = &[
    Benchmark {
        name: "emulator-large-pool",
        about: "GET and PUT of a pool of 5,000 addresses, beside serde_json with the same documents",
        measure: |world| Box::pin(large_pool::measure(world)),
    },
    Benchmark {
        name: "emulator-clients",
        about: "100 clients at once that read load balancers and pools and write pools of 20 load balancers",
        measure: |world| Box::pin(clients::measure(world)),
    },
    Benchmark {
        name: "emulator-memory",
        about: "memory at the start, with 4 pools of 5,000 addresses, and over 100,000 requests after that",
        measure: |world| Box::pin(memory::measure(world)),
    },
];
