//! The ARM lock beside somebody who locks as cloud-controller-manager does: the same stories on the Kubernetes API made
//! up and real; then, in paused time, what can go wrong on the way and what takes its time.

mod cases;
mod faults;
mod random;
mod rivals;
mod world;
