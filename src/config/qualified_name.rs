//! Kubernetes' names: qualified names, which taint keys are, and DNS subdomains, which objects' names are. Pure.

/// Kubernetes' qualified name: an optional DNS subdomain and a slash, then at most 63 characters.
pub(super) fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    is_bounded(name, |c| c.is_ascii_alphanumeric() || "-_.".contains(c)) && prefix.is_none_or(is_subdomain)
}

/// A DNS subdomain: labels with dots between them, 253 characters in all.
pub(super) fn is_subdomain(name: &str) -> bool {
    let label = |label: &str| is_bounded(label, |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    name.len() <= 253 && name.split('.').all(label)
}

/// At most 63 of these characters, with a letter or a digit at both ends.
fn is_bounded(part: &str, inner: impl Fn(char) -> bool) -> bool {
    part.len() <= 63
        && part.starts_with(|first: char| first.is_ascii_alphanumeric())
        && part.ends_with(|last: char| last.is_ascii_alphanumeric())
        && part.chars().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taint_keys_are_qualified_names() {
        for (key, good) in [
            ("ToBeDeletedByClusterAutoscaler", true),
            ("node.kubernetes.io/out-of-service", true),
            ("a", true),
            ("", false),
            ("a/", false),
            ("/a", false),
            ("a/b/c", false),
            ("a b", false),
            ("UPPER.io/a", false),
            ("key=value:NoSchedule", false),
            ("-a", false),
            (&"x".repeat(64), false),
        ] {
            assert_eq!(is_qualified_name(key), good, "{key}");
        }
    }
}
