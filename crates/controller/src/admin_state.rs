//! Admin states: from what Nodes say to `Down` on their entries in every pool, and back.
//!
//! Invariants (DESIGN decisions 1 and 10): desired states follow from all that is known, never from an event alone; no
//! entry is set `Down` without a signal on its Node, nor restored unless the ledger says that the `Down` is ours;
//! nothing is restored before every Node is known; what is about to be written is on record first; entries of no
//! Node are left alone. How pools are written is `pool`'s business, who may write `leader`'s.
//!
//! `desired` is what Nodes wish, `plan` the edits that follow, `ledger` the record, `announce` what people are told;
//! `nodes`, `editor` and `work` carry it out; `restore` gives back what is ours, where nobody leads any more.

mod announce;
mod desired;
mod editor;
#[cfg(test)]
mod fixtures;
mod ledger;
mod metrics;
mod nodes;
mod plan;
mod reached;
mod restore;
mod settings;
mod work;

pub use desired::{Desired, Episode, Wish, signals};
pub use ledger::{Book, LEDGER, LedgerError, Line, Page, Record, Stage, Stands, read as read_ledger};
pub use metrics::Metrics;
pub use plan::{Plan, Policy, PoolCounts, Probed, Standing, plan};
pub use reached::Reached;
pub use restore::{Ours, RestoreError, Restored, Restoring, restore};
pub use settings::{AdminStateMode, AdminStateSettings, ForeignDown};
pub use work::{Parts, WorkError, not_begun, run};
