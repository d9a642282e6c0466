//! Nodes and pools side by side: what each node's signals are, what its probe says, which admin state its entries have
//! and whose it is, who leads, and whether any probe asks headgate at all.
//!
//! Asks; changes nothing. The [`Report`] is a pure function of what was seen ([`Sight`]): entries stand and are wished as
//! `admin_state`'s plan has them. Where Azure cannot be asked, it says why, and shows what Kubernetes alone knows.

mod agents;
mod ages;
mod columns;
mod look;
mod nodes;
mod reaches;
mod report;
mod text;

pub use agents::{Places, ask_agents};
pub use look::{AzureSight, Looking, Sight, StatusError, look};
pub use reaches::Reaches;
pub use report::{
    EntryRow, LedgerLine, LoadBalancerRow, NodeRow, Owner, PoolRow, ProbeRow, Report, RuleRow, Selection, SignalRow,
    VerdictRow,
};
pub use text::{Detail, text};
