//! The rows in their order: those with few Nodes first, because Nodes are not deleted.

mod confirmed;
mod decision;
mod flood;
mod local_latency;
mod local_memory;
mod local_slices;
mod local_tick;
mod maintenance;
mod maintenance_memory;
mod memory;
mod nic_pools;
mod pace;
mod writes;

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
        name: "leader-matchers",
        about: "the same as leader-pace, with 100 matchers and the marker, beside the default signals",
        measure: |world| Box::pin(pace::matchers(world)),
    },
    Benchmark {
        name: "leader-taint-to-down",
        about: "PATCH of a taint until Down was read back, in one pool and in four, beside a failed probe",
        measure: |world| Box::pin(confirmed::measure(world)),
    },
    Benchmark {
        name: "leader-local-slices",
        about: "processor time of accepting 10,000 events of EndpointSlices of 2,000 Local Services",
        measure: |_| Box::pin(async { local_slices::measure() }),
    },
    Benchmark {
        name: "leader-local-latency",
        about: "PATCH of a taint until Down was read back, while a tick writes 100 pools of Local Services, and without a tick",
        measure: |world| Box::pin(local_latency::measure(world)),
    },
    Benchmark {
        name: "leader-local-tick",
        about: "one tick over 2,000 Local Services: decisions with 5 pools of 100 entries each; processor time, PUTs and bytes for 100 that move",
        measure: |world| Box::pin(local_tick::measure(world)),
    },
    Benchmark {
        name: "leader-local-memory",
        about: "memory with 10,000 EndpointSlices of 2,000 Local Services, and with the updater off",
        measure: |world| Box::pin(local_memory::measure(world)),
    },
    Benchmark {
        name: "leader-writes",
        about: "PUTs for 1, 10, 100 and 1,000 tainted Nodes in 1, 2 and 4 pools",
        measure: |world| Box::pin(writes::measure(world)),
    },
    Benchmark {
        name: "leader-maintenance",
        about: "processor time and requests for 6,000 pods of 200 Nodes under 20 maintenances that have Nodes in common, and of one decision",
        measure: |world| Box::pin(maintenance::measure(world)),
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
    Benchmark {
        name: "leader-nic-pools",
        about: "memory and processor time for 1,000 of 5,000 Nodes in 3 NIC pools of one load balancer, and decisions while lists are read",
        measure: |world| Box::pin(nic_pools::measure(world)),
    },
    Benchmark {
        name: "leader-memory",
        about: "memory with 5,000 Nodes in 4 load balancers, and with 2,000 Services besides",
        measure: |world| Box::pin(memory::measure(world)),
    },
    Benchmark {
        name: "leader-maintenance-memory",
        about: "memory with 5,000 Nodes in 4 load balancers, 50 of them under maintenance, and without any",
        measure: |world| Box::pin(maintenance_memory::measure(world)),
    },
];
