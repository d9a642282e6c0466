//! Patterns that people give: regular expressions over what HTTP carries, which no pattern makes slow.
//!
//! They see bytes and ASCII classes only, and case never counts, as in ARM's paths. The compiled size is
//! bounded, and with it what one match costs: time is at most its product with the text's length.

use regex::bytes::{Regex, RegexBuilder};

/// No pattern is longer: the longest ARM path with each segment spelt out is shorter.
pub(super) const MAX_PATTERN_BYTES: usize = 1024;
/// No compiled pattern is larger. One with a dozen segments and alternatives takes some 10 KiB; `(a{99}){99}` is
/// refused.
const MAX_COMPILED_BYTES: usize = 64 * 1024;
/// No deeper groups, so that reading a pattern needs little stack.
const MAX_DEPTH: u32 = 20;

/// A pattern that is found anywhere in the text.
pub(super) fn anywhere(pattern: &str) -> Result<Regex, String> {
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

/// A pattern for the whole text.
pub(super) fn whole(pattern: &str) -> Result<Regex, String> {
    // Checked alone first: `a)(b` must not become valid by what is put around it.
    anywhere(pattern)?;
    anywhere(&format!("^(?:{pattern})$")).map_err(|_| format!("a pattern of at most {} bytes", MAX_PATTERN_BYTES - 6))
}

/// What is wrong, without the drawing above it.
fn last_line(error: &str) -> &str {
    let line = error.lines().last().unwrap_or_default();
    line.trim_start_matches("error: ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_found_whatever_the_case() {
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
            assert_eq!(anywhere(pattern).unwrap().is_match(text.as_bytes()), found, "{pattern}");
        }
    }

    #[test]
    fn a_whole_pattern_leaves_nothing_over() {
        for (pattern, text, found) in [
            ("PUT", "put", true),
            ("PUT", "PUTS", false),
            ("PUT|DELETE", "DELETE", true),
        ] {
            assert_eq!(whole(pattern).unwrap().is_match(text.as_bytes()), found, "{pattern}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_told() {
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
            let error = whole(pattern).unwrap_err();
            assert!(error.contains(want), "{pattern}: {error}");
        }
    }
}
