//! Violations: settings that are not allowed, each with its source, line, key, value and what is allowed.

use std::fmt;

/// One setting that is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The file, Secret, variable or flag that has the setting.
    pub origin: String,
    /// The dotted key; `None` if the whole file is the problem.
    pub key: Option<String>,
    /// The line in the file, from 1; `None` if no line has the setting.
    pub line: Option<usize>,
    /// The value and what is allowed.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.origin)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(key) = &self.key {
            write!(f, ": {}", Printable(key))?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Length limit of a value or key in an error.
const MAX_SHOWN_CHARS: usize = 200;
/// Characters that are kept of the end of a longer text; YAML errors have the line there.
const MAX_TAIL_CHARS: usize = 60;

/// Whether a character breaks a line or changes the direction of those around it, and is no control character.
fn is_layout(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Displays text from a file on one line, without characters of control or direction, and without the middle of a long text.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.chars().count();
        let omitted = if count > MAX_SHOWN_CHARS {
            MAX_SHOWN_CHARS - MAX_TAIL_CHARS..count - MAX_TAIL_CHARS
        } else {
            0..0
        };
        for (index, c) in self.0.chars().enumerate() {
            if omitted.contains(&index) {
                if index == omitted.start {
                    f.write_str("…")?;
                }
            } else if c.is_control() || is_layout(c) {
                write!(f, "{}", c.escape_default())?;
            } else {
                write!(f, "{c}")?;
            }
        }
        Ok(())
    }
}

/// All violations of a load, at least one, in the order of the sources.
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
        for violation in &self.0 {
            write!(f, "\n  {violation}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_multiline_text_is_shortened() {
        for (text, shown) in [
            ("adminState.mode", "adminState.mode"),
            ("größe", "größe"),
            ("a\nb\u{1b}[31m\0", "a\\nb\\u{1b}[31m\\u{0}"),
            ("\u{202e}a\u{2028}", "\\u{202e}a\\u{2028}"),
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
