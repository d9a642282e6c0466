//! Which Secret: its namespace and its name. Pure.

use std::fmt;
use std::str::FromStr;

use super::qualified_name::is_subdomain;

/// A Secret in a namespace, written `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
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
    fn a_namespace_and_a_name() {
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
