//! What operators see: metric text and logs.
//!
//! Modules own their metrics and register them here; nothing in this crate knows what they mean. Events for `kubectl` are
//! `headgate-kubernetes`'s, spans `headgate-otlp`'s.

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
