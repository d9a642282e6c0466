//! Backend pools of Local Services on the ARM emulator, with a fake Kubernetes API, in paused time.
//!
//! `updater` has the tests of the design of bounded retry and the defects of cloud-provider-azure's updater, `joined` what
//! holds where updates and admin states are written together, `stale` what happens while a watch fails, `random` what holds
//! whatever happens.

mod cluster;
mod joined;
mod random;
mod stale;
mod updater;
