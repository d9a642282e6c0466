//! The rows in their order: memory first, before any load; rows that change the cluster
//! for later ones last.

mod hostile;
mod memory;
mod size;
mod taint;
mod throughput;

use crate::measuring::selection::Benchmark;
use crate::world::World;

/// All rows.
pub(crate) const ROWS: &[Benchmark<World>] = &[
    Benchmark {
        name: "resident-memory",
        about: "memory of the agent after its first sync and after 1,000 changes of its Node, beside kube-proxy's",
        measure: |world| Box::pin(memory::measure(world)),
    },
    Benchmark {
        name: "taint-to-503",
        about: "from the API server's answer to a taint until /healthz says 503, beside kube-proxy's",
        measure: |world| Box::pin(taint::measure(world)),
    },
    Benchmark {
        name: "healthz-keep-alive",
        about: "/healthz on one core over 32 kept connections, beside kube-proxy and a bare hyper responder",
        measure: |world| Box::pin(throughput::keep_alive(world)),
    },
    Benchmark {
        name: "healthz-new-connections",
        about: "/healthz on one core, a new connection each, beside kube-proxy",
        measure: |world| Box::pin(throughput::new_connections(world)),
    },
    Benchmark {
        name: "half-sent-requests",
        about: "10,000 connections that send half a request and stop, beside kube-proxy (up to 2 minutes)",
        measure: |world| Box::pin(hostile::half_sent(world)),
    },
    Benchmark {
        name: "hostile-clients",
        about: "1,000 connections each of garbage, endless headers, and peers that never read, beside kube-proxy",
        measure: |world| Box::pin(hostile::clients(world)),
    },
    Benchmark {
        name: "binary-size",
        about: "the stripped release binary",
        measure: |_| Box::pin(async { size::measure() }),
    },
];
