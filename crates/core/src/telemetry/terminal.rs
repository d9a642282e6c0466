//! Text for terminals: what others sent is shown as text and cannot control the terminal.
//!
//! Invariant: the result has no character that a terminal may execute, that breaks a line, or that changes the order in which the
//! rest is shown. Nothing else changes, so that ordinary text of any language is shown as it is.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Whether a terminal may act on the character, or show others in another order or not at all.
fn is_unsafe(character: char) -> bool {
    character.is_control() // C0, DEL and C1, among them ESC, CSI and line breaks
        || matches!(character,
            '\u{ad}' // soft hyphen
            | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' // direction
            | '\u{2028}' | '\u{2029}' // line and paragraph separators
            | '\u{180e}' | '\u{200b}'..='\u{200d}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}' | '\u{feff}' // invisible
            | '\u{fff9}'..='\u{fffb}' // annotations
            | '\u{e0000}'..='\u{e007f}') // tags
}

/// `text` as one line, with unsafe characters as `\n`, `\t`, `\r` or `\u{1b}`.
pub fn escape_line(text: &str) -> Cow<'_, str> {
    escape(text, is_unsafe, |escaped, character| match character {
        '\n' | '\t' | '\r' => escaped.extend(character.escape_default()),
        _ => escaped.extend(character.escape_unicode()),
    })
}

/// As [`escape_line`], but line breaks stay.
pub fn escape_lines(text: &str) -> Cow<'_, str> {
    let is_unsafe = |character| character != '\n' && is_unsafe(character);
    escape(text, is_unsafe, |escaped, character| {
        escaped.extend(character.escape_unicode());
    })
}

/// JSON text with the same meaning, in which unsafe characters are escaped as JSON does. Line breaks, which can only be outside of
/// strings, stay.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    let is_unsafe = |character| character != '\n' && is_unsafe(character);
    escape(json, is_unsafe, |escaped, character| {
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    })
}

fn escape(text: &str, is_unsafe: impl Fn(char) -> bool, write: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(&is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_unsafe(character) {
            write(&mut escaped, character);
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_may_act_on_is_escaped() {
        for (text, escaped) in [
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("\u{1b}]0;title\u{7}", "\\u{1b}]0;title\\u{7}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("\u{7f}\u{8}", "\\u{7f}\\u{8}"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("a\u{2028}b\u{85}", "a\\u{2028}b\\u{85}"),
            ("\u{202e}nwoD\u{202c}", "\\u{202e}nwoD\\u{202c}"),
            ("\u{2067}x\u{2069}\u{200f}", "\\u{2067}x\\u{2069}\\u{200f}"),
            ("n\u{200b}1\u{e0041}", "n\\u{200b}1\\u{e0041}"),
        ] {
            assert_eq!(escape_line(text), escaped);
        }
    }

    #[test]
    fn ordinary_text_is_not_copied() {
        for text in [
            "",
            "node-1",
            "None→Down",
            "Knoten für Müller",
            "ノード",
            "\\u{1b}",
            "e\u{301}",
        ] {
            let is_same = matches!(escape_line(text), Cow::Borrowed(same) if same == text);
            assert!(is_same, "{text}");
        }
    }

    #[test]
    fn lines_stay_where_the_text_has_several() {
        assert_eq!(escape_lines("a\nb\u{1b}\r\n"), "a\nb\\u{1b}\\u{d}\n");
    }

    #[test]
    fn escaped_json_has_the_same_meaning() {
        let value = "\u{1b}\u{7f}\u{9b}\u{202e}\u{e0041}\n";
        let json = serde_json::to_string_pretty(&[value]).unwrap();
        let escaped = escape_json(&json);
        assert_eq!(escaped, "[\n  \"\\u001b\\u007f\\u009b\\u202e\\udb40\\udc41\\n\"\n]");
        let parsed: [String; 1] = serde_json::from_str(&escaped).unwrap();
        assert_eq!(parsed, [value]);
    }
}
