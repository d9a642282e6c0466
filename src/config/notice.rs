//! Notices: what a settings file has that is read today and not by the next version. Pure.

use std::fmt;

use headgate_settings::Printable;

/// A spelling that the next version does not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The file that has it.
    pub origin: String,
    /// The dotted key as it is spelled there; `None` if the notice is about the whole file.
    pub key: Option<String>,
    /// What to write instead.
    pub message: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{}: {}: {}", self.origin, Printable(key), self.message),
            None => write!(f, "{}: {}", self.origin, self.message),
        }
    }
}
