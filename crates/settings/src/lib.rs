//! How settings are written, whichever file they stand in: values and durations as text, and mistakes in words.
//!
//! `azure.json` and headgate's own settings are read by different crates; a mistake in either reads the same. Which
//! settings there are is for those crates to say.

mod mistake;
mod value;

pub use mistake::{Mistake, Mistakes, Printable};
pub use value::{Environment, duration_text, shown, text};
