//! An emulator of Azure Resource Manager's load balancers, and of what stands around them: tokens,
//! IMDS, throttling, long-running operations, faults on demand.
//!
//! What it answers follows recorded traffic where there is some; docs/azure-emulator.md says for each
//! behaviour how sure it is. Time is a parameter everywhere; nothing here waits in the background:
//! an operation that is due is completed by the next request that looks.

mod accept;
mod arm;
mod compute;
mod error;
mod etag;
mod guids;
mod id;
mod lists;
mod load_balancer;
mod members;
mod network;
mod operations;
mod pool;
mod record;
mod request;
mod seed;
mod settings;
mod store;
#[cfg_attr(not(test), expect(dead_code))]
mod throttle;
mod tls;
