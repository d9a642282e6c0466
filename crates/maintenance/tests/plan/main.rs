//! The plan, carried out on a cluster that is a value: nodes, pods, maintenances and Evacuations change by the plan's actions only.

mod end;
mod gate;
mod model;
mod properties;
mod vectors;
mod world;
