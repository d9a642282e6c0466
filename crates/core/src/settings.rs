//! The common form of settings: how a file is read, how values and durations are written, how violations are reported.
//!
//! `azure.json` and headgate's own settings file belong to different crates; this module makes their errors look the same.
//! Those crates define which settings exist.

mod file;
mod int_or_percent;
mod lines;
mod names;
mod value;
mod violation;

pub use file::read_text_file;
pub use int_or_percent::IntOrPercent;
pub use lines::{MAX_LINES, line_at};
pub use names::{is_qualified_name, is_subdomain};
pub use value::{EnvironmentLookup, describe_value, duration_up_to, format_duration, parse_duration, scalar_text};
pub use violation::{Printable, SettingsError, Violation};
