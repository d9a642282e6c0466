//! Backend pools of Local Services on the ARM emulator, with a fake Kubernetes API, in paused time.
//!
//! `updater` has one story for each way in which an update ends, `desired` which pools and members are written, `operations`
//! what a long operation means, `joined` what holds where updates and admin states are written together, `guarded` what the
//! guard keeps in service then, `stale` what happens while a watch fails, `large` what a large load balancer costs, `random`
//! what holds whatever happens.

pub(crate) mod cluster;
mod desired;
mod guarded;
mod joined;
mod large;
mod operations;
mod random;
mod stale;
mod updater;
