//! The election: on the Kubernetes API made up and real, leaders that die, stand still and are cut off, fleets of 1,000
//! and 5,000 in paused time.

mod election;
mod faults;
mod fleet;
mod stories;
mod world;
