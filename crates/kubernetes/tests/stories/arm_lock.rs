//! The ARM lock beside another process that locks as cloud-controller-manager does: the same cases on the fake and on the real
//! Kubernetes API, then faults and long waits in paused time.

mod lock_faults;
mod lock_fixture;
mod lock_on_both_apis;
mod lock_rivals;
mod random_lock_faults;
