//! Kubernetes' qualified names, which taint keys are. Pure.

/// Kubernetes' qualified name: an optional DNS subdomain and a slash, then at most 63 characters.
pub(super) fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let bounded = |part: &str, most: usize, inner: &dyn Fn(char) -> bool| {
        part.len() <= most
            && part.starts_with(|first: char| first.is_ascii_alphanumeric())
            && part.ends_with(|last: char| last.is_ascii_alphanumeric())
            && part.chars().all(inner)
    };
    let subdomain = |label: &str| bounded(label, 63, &|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    bounded(name, 63, &|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && prefix.is_none_or(|prefix| prefix.len() <= 253 && prefix.split('.').all(subdomain))
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
