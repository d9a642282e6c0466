//! The leader's controllers: what is done in a leader's term.
//!
//! `pool` reads and writes backend pools, `admin_state` says what is to be changed in them, `restore` gives back what is
//! ours in a term of its own. Who leads, and how Azure and the API server are spoken to, is the business of other crates.

pub mod admin_state;
pub mod pool;
pub mod restore;
