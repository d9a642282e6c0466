//! What is said about mistakes in settings: where, which key, which value, what is allowed.

use std::fmt;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The file or flag it stands in.
    pub origin: String,
    /// The dotted key, where there is one.
    pub key: Option<String>,
    /// What is wrong and what is allowed.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{}: {}: {}", self.origin, Printable(key), self.message),
            None => write!(f, "{}: {}", self.origin, self.message),
        }
    }
}

/// More of a value or key than anybody looks at.
const MAX_SHOWN_CHARS: usize = 200;
/// What is kept of the end of a longer text, where an error says the line.
const LAST_CHARS: usize = 60;

/// Text from a file, on one line, without what a terminal would obey, and the middle left out where it is long.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.chars().count();
        let left_out = if count > MAX_SHOWN_CHARS {
            MAX_SHOWN_CHARS - LAST_CHARS..count - LAST_CHARS
        } else {
            0..0
        };
        for (index, c) in self.0.chars().enumerate() {
            if left_out.contains(&index) {
                if index == left_out.start {
                    f.write_str("…")?;
                }
            } else if c.is_control() {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

/// All mistakes found, never empty, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsError(pub Vec<Violation>);

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(
            f,
            "{count} {} in the settings",
            if count == 1 { "mistake" } else { "mistakes" }
        )?;
        for mistake in &self.0 {
            write!(f, "\n  {mistake}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_holds_is_shown_on_one_line_and_not_at_length() {
        for (text, shown) in [
            ("proxy.pollInterval", "proxy.pollInterval"),
            ("größe", "größe"),
            ("a\nb\u{1b}[31m\0", "a\\nb\\u{1b}[31m\\u{0}"),
            (&"x".repeat(200), &"x".repeat(200)),
            (
                &format!("{}{}", "x".repeat(150), "y".repeat(60)),
                &format!("{}…{}", "x".repeat(140), "y".repeat(60)),
            ),
        ] {
            assert_eq!(Printable(text).to_string(), shown);
        }
    }
}
