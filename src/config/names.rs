//! Names in Kubernetes: qualified names, which taint keys are, and the name of a Secret with its namespace. Pure.

use std::fmt;
use std::str::FromStr;

/// Whether a text is a qualified name: an optional DNS subdomain and a slash, then at most 63 characters.
pub(super) fn is_qualified_name(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    is_label(name, |c| c.is_ascii_alphanumeric() || "-_.".contains(c)) && prefix.is_none_or(is_subdomain)
}

/// Whether a text is a DNS subdomain: labels separated by dots, 253 characters at most.
fn is_subdomain(name: &str) -> bool {
    let label = |label: &str| is_label(label, |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    name.len() <= 253 && name.split('.').all(label)
}

/// Whether a text has at most 63 allowed characters, with a letter or a digit at both ends.
fn is_label(part: &str, is_allowed: impl Fn(char) -> bool) -> bool {
    part.len() <= 63
        && part.starts_with(|first: char| first.is_ascii_alphanumeric())
        && part.ends_with(|last: char| last.is_ascii_alphanumeric())
        && part.chars().all(is_allowed)
}

/// The name of a Secret, written `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName {
    /// The namespace of the Secret.
    pub namespace: String,
    /// The name within the namespace.
    pub name: String,
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl FromStr for SecretName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.split_once('/') {
            Some((namespace, name)) if is_subdomain(namespace) && !namespace.contains('.') && is_subdomain(name) => {
                Ok(Self {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                })
            }
            _ => Err(()),
        }
    }
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

    #[test]
    fn secret_names_have_namespace_and_name() {
        for (text, good) in [
            ("kube-system/azure-cloud-provider", true),
            ("a/b.c", true),
            ("a.b/c", false),
            ("azure-cloud-provider", false),
            ("/b", false),
            ("a/", false),
            ("a/b/c", false),
            ("A/b", false),
            ("", false),
        ] {
            let parsed = text.parse::<SecretName>();
            assert_eq!(parsed.is_ok(), good, "{text}");
            assert!(parsed.is_err() || parsed.is_ok_and(|name| name.to_string() == text));
        }
    }
}
