//! The rows, in the order they are measured.

mod clients;
mod large_pool;
mod memory;

use crate::measuring::selection::Benchmark;
use crate::world::World;

/// All rows.
pub(crate) const ROWS: &[Benchmark<World>] = &[
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
