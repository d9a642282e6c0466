//! How settings are written, whichever file they stand in: values and durations as text, and mistakes in words.
//!
//! `azure.json` and headgate's own settings are read by different crates; a mistake in either reads the same. Which
//! settings there are is for those crates to say.

mod value;
mod violation;

pub use value::{EnvironmentLookup, describe_value, format_duration, scalar_text};
pub use violation::{Printable, SettingsError, Violation};
