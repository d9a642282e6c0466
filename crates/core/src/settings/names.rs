//! Names in Kubernetes: qualified names, which keys of taints and labels are, and DNS subdomains. Pure.

/// Whether a text is a qualified name: an optional DNS subdomain and a slash, then at most 63 characters.
pub fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_name = |name: &str| is_label(name, |c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    name.len() <= 63 && is_name(name) && prefix.is_none_or(is_subdomain)
}

/// Whether a text is a DNS subdomain, as the name of a Node, a Pod or a Secret is: labels separated by dots, 253 characters at most.
///
/// A client puts names into URLs as they are, so one that no object can have must not reach it: `n?dryRun=All` would add a parameter,
/// `n/status` name a subresource.
pub fn is_subdomain(name: &str) -> bool {
    let label = |label: &str| is_label(label, |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    name.len() <= 253 && name.split('.').all(label)
}

/// Whether a text has allowed characters only, with a letter or a digit at both ends.
fn is_label(part: &str, is_allowed: impl Fn(char) -> bool) -> bool {
    part.starts_with(|first: char| first.is_ascii_alphanumeric())
        && part.ends_with(|last: char| last.is_ascii_alphanumeric())
        && part.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_qualified_names() {
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

    #[test]
    fn only_names_that_an_object_can_have_are_subdomains() {
        for name in ["n", "aks-pool-1.vm-2", "10.0.0.1", &"a".repeat(253)] {
            assert!(is_subdomain(name), "{name}");
        }
        let long = "a".repeat(254);
        for name in [
            "",
            ".",
            "a..b",
            "-a",
            "a-",
            "a/b",
            "n?dryRun=All",
            "a%2fb",
            "N",
            "a b",
            "ä",
            &long,
        ] {
            assert!(!is_subdomain(name), "{name}");
        }
    }
}
