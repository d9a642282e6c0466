//! The rows, in the order in which they are measured.

mod clients;
mod large_pool;
mod memory;

use crate::fixture::Fixture;
use crate::measuring::selection::Benchmark;

pub(crate) const ROWS: &[Benchmark<Fixture>] = &[
    Benchmark {
        name: "emulator-large-pool",
        about: "GET and PUT of a pool of 5,000 addresses, beside serde_json with the same documents",
        measure: |fixture| Box::pin(large_pool::measure(fixture)),
    },
    Benchmark {
        name: "emulator-clients",
        about: "100 clients at once that read load balancers and pools and write pools of 20 load balancers",
        measure: |fixture| Box::pin(clients::measure(fixture)),
    },
    Benchmark {
        name: "emulator-memory",
        about: "memory at the start, with 4 pools of 5,000 addresses, and over 100,000 requests after that",
        measure: |fixture| Box::pin(memory::measure(fixture)),
    },
];
