//! An emulator of Azure Resource Manager's load balancers, and of what stands around them: tokens,
//! IMDS, throttling, long-running operations, faults on demand.
//!
//! What it answers follows recorded traffic where there is some; docs/azure-emulator.md says for each
//! behaviour how sure it is. Time is a parameter everywhere; nothing here waits in the background:
//! an operation that is due is completed by the next request that looks.

#[expect(dead_code, reason = "the dispatcher is to call it")]
mod error;
#[expect(dead_code, reason = "the dispatcher is to call it")]
mod fault;
#[expect(dead_code, reason = "the dispatcher is to call it")]
mod faults;
mod fields;
#[cfg_attr(not(test), expect(dead_code, reason = "the dispatcher is to call it"))]
mod injected;
#[cfg_attr(not(test), expect(dead_code, reason = "the dispatcher is to call it"))]
mod journal;
#[allow(
    dead_code,
    reason = "the dispatcher is to call it; an expectation is not met, as it calls itself"
)]
mod merge;
mod pattern;
