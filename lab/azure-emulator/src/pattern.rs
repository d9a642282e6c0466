//! Regular expressions of the control API's clients, bounded so that no pattern is slow.
//!
//! They match bytes and ASCII classes and ignore case, as ARM's paths do. The compiled size is bounded, and with it the
//! cost of a match, which is at most that size times the length of the text.

use regex::bytes::{Regex, RegexBuilder};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Length of a pattern: more than the longest ARM path with each segment written out.
pub(super) const MAX_PATTERN_BYTES: usize = 1024;
/// Size of a compiled pattern. One with a dozen segments and alternatives takes some 10 KiB; `(a{99}){99}` is refused.
const MAX_COMPILED_BYTES: usize = 64 * 1024;
/// Depth of groups, which bounds the stack that parsing needs.
const MAX_DEPTH: u32 = 20;

/// A pattern that may match anywhere in the text.
pub(super) fn unanchored(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(format!(
            "a pattern of at most {MAX_PATTERN_BYTES} bytes, this one has {}",
            pattern.len()
        ));
    }
    RegexBuilder::new(pattern)
        .case_insensitive(true)
        .unicode(false)
        .size_limit(MAX_COMPILED_BYTES)
        .dfa_size_limit(MAX_COMPILED_BYTES)
        .nest_limit(MAX_DEPTH)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => "a pattern with fewer repetitions: this one is too large".to_owned(),
            other => format!("a regular expression: {}", last_line(&other.to_string())),
        })
}

/// A pattern that must match the whole text.
pub(super) fn anchored(pattern: &str) -> Result<Regex, String> {
    // Compiled alone first: `a)(b` must not become valid between the added parentheses.
    unanchored(pattern)?;
    unanchored(&format!("^(?:{pattern})$")).map_err(|_| format!("a pattern of at most {} bytes", MAX_PATTERN_BYTES - 6))
}

/// Reads an [`unanchored`] pattern, if there is one.
pub(super) fn read_unanchored<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Regex>, D::Error> {
    read(deserializer, unanchored)
}

/// Reads an [`anchored`] pattern, if there is one.
pub(super) fn read_anchored<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Regex>, D::Error> {
    read(deserializer, anchored)
}

fn read<'de, D: Deserializer<'de>>(
    deserializer: D,
    compile: fn(&str) -> Result<Regex, String>,
) -> Result<Option<Regex>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let compiled = text.map(|text| compile(&text)).transpose();
    compiled.map_err(|what| D::Error::custom(format_args!("a pattern must be {what}")))
}

/// The reason in an error of `regex`, without the marked pattern above it.
fn last_line(error: &str) -> &str {
    let line = error.lines().last().unwrap_or_default();
    line.trim_start_matches("error: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_ignore_case() {
        for (pattern, text, found) in [
            ("loadBalancers/lb1$", "/x/loadbalancers/LB1", true),
            ("loadBalancers/lb1$", "/x/loadbalancers/lb10", false),
            (
                "^/subscriptions/[^/]+/resourceGroups/(a|b)/providers/Microsoft\\.Network/loadBalancers/\\w+/backendAddressPools/.*$",
                "/subscriptions/s/resourcegroups/B/providers/microsoft.network/loadBalancers/x/backendAddressPools/y",
                true,
            ),
            ("azsdk-(go|python)-arm", "azsdk-go-armnetwork/v9.0.0", true),
            ("", "", true),
        ] {
            assert_eq!(
                unanchored(pattern).unwrap().is_match(text.as_bytes()),
                found,
                "{pattern}"
            );
        }
    }

    #[test]
    fn an_anchored_pattern_matches_the_whole_text() {
        for (pattern, text, found) in [
            ("PUT", "put", true),
            ("PUT", "PUTS", false),
            ("PUT|DELETE", "DELETE", true),
        ] {
            assert_eq!(anchored(pattern).unwrap().is_match(text.as_bytes()), found, "{pattern}");
        }
    }

    #[test]
    fn invalid_patterns_are_refused() {
        let long = "a".repeat(MAX_PATTERN_BYTES + 1);
        let deep = "(".repeat(50) + &")".repeat(50);
        for (pattern, want) in [
            ("(", "a regular expression: unclosed group"),
            ("a)(b", "a regular expression: unopened group"),
            ("(a{99}){99}", "too large"),
            ("((a{1000}){1000}){1000}", "too large"),
            (long.as_str(), "at most 1024 bytes, this one has 1025"),
            (deep.as_str(), "nest"),
        ] {
            let error = anchored(pattern).unwrap_err();
            assert!(error.contains(want), "{pattern}: {error}");
        }
    }
}
