//! The election on the fake and on the real Kubernetes API: leaders that are killed, frozen and cut off, and fleets of up to 5,000
//! candidates in paused time.

mod election_faults;
mod election_fixture;
mod election_on_both_apis;
mod election_scenarios;
mod fleet_costs;
