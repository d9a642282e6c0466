//! Backend pools of Local Services on the ARM emulator, with a fake Kubernetes API, in paused time.
//!
//! `updater` has the tests of the design of bounded retry, `desired` and `retries` those of cloud-provider-azure's updater and
//! of its open pull requests, `defects` the defects that headgate does not have, and `rows` which test is whose. `joined` has
//! what holds where updates and admin states are written together, `guarded` what the guard keeps in service then, `made_again`
//! what happens to a Service that is deleted and created again, `stale` what happens while a watch fails, `large` what a large load
//! balancer costs, `random` what holds whatever happens.

pub(crate) mod cluster;
mod defects;
mod desired;
mod guarded;
mod joined;
mod large;
mod made_again;
mod operations;
mod random;
mod retries;
mod rows;
mod stale;
mod updater;
