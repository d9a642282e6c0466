//! `headgate plan`: what a drain would do, without writing anything. The order in which pods leave, what blocks them, and the pools
//! that lose entries.
//!
//! The [`Preview`] is a pure function of a [`PreviewSnapshot`]; the order, the blockers and the nodes come from the same functions
//! as the controllers' own decisions. It is a forecast: pods, budgets and pools change.

mod report;
mod snapshot;
mod text;

pub(crate) use report::Preview;
pub(crate) use snapshot::take_snapshot;
