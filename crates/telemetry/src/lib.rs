//! What operators see: metric text and logs.
//!
//! Rooms own their metrics and register them here; nothing in this room knows what they mean.

mod build;
mod logs;
mod named;
mod process;
mod text;

pub use build::{VERSION, register as register_build};
pub use logs::{chain, install as install_logs, install_with as install_logs_and};
pub use named::{Announced, Tally};
pub use process::register as register_process;
pub use text::{Format, content_type, encode};
