//! The rows in their order: those with few Nodes first, because Nodes are not deleted.

mod confirmed;
mod decision;
mod flood;
mod pace;

use crate::measuring::selection::Benchmark;
use crate::world::World;

/// All rows.
pub(crate) const ROWS: &[Benchmark<World>] = &[
    Benchmark {
        name: "leader-decision",
        about: "processor time of deciding and encoding for 1,000 Nodes tainted at once in 4 load balancers of 5,000 entries",
        measure: |_| Box::pin(decision::measure()),
    },
    Benchmark {
        name: "leader-pace",
        about: "signal read until the ARM Lease is asked for, and Lease had until ARM is asked, with 70 Nodes in 2 load balancers",
        measure: |world| Box::pin(pace::small(world)),
    },
    Benchmark {
        name: "leader-taint-to-down",
        about: "PATCH of a taint until Down was read back, in one pool and in four, beside a failed probe",
        measure: |world| Box::pin(confirmed::measure(world)),
    },
    Benchmark {
        name: "leader-pace-large",
        about: "the same as leader-pace, with 5,000 Nodes in 4 load balancers",
        measure: |world| Box::pin(pace::large(world)),
    },
    Benchmark {
        name: "leader-flood",
        about: "all processor time and all bytes for 1,000 of 5,000 Nodes tainted at once, in 4 load balancers",
        measure: |world| Box::pin(flood::measure(world)),
    },
];
