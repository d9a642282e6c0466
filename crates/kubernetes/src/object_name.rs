//! Names of objects that come from other objects' fields. A client puts names into URLs as they are, so one that no object can have
//! must not reach it: `n?dryRun=All` would add a parameter, `n/status` name a subresource.

/// The most that Kubernetes allows.
const MAX_LENGTH: usize = 253;

/// Whether this may be the name of a Node, a Pod or another object whose name is a DNS subdomain (RFC 1123).
pub fn is_dns_subdomain(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| {
        !label.is_empty() && !label.starts_with('-') && !label.ends_with('-') && label.bytes().all(is_inner)
    };
    name.len() <= MAX_LENGTH && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_an_object_can_have_are_names() {
        for name in ["n", "aks-pool-1.vm-2", "10.0.0.1", &"a".repeat(253)] {
            assert!(is_dns_subdomain(name), "{name}");
        }
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
            &"a".repeat(254),
        ] {
            assert!(!is_dns_subdomain(name), "{name}");
        }
    }
}
