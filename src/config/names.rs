//! The name of a Secret with its namespace. Pure.

use std::fmt;
use std::str::FromStr;

use headgate_core::settings::is_subdomain;

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
        let is_label = |name: &str| is_subdomain(name) && !name.contains('.') && name.len() <= 63;
        match text.split_once('/') {
            Some((namespace, name)) if is_label(namespace) && is_subdomain(name) => Ok(Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }),
            _ => Err(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
