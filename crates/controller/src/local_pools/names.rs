//! The names that connect a Service with its backend pools and rules in ARM.
//!
//! Invariant: names from here are lower case, because Azure and cloud-provider-azure compare names without regard to case.
//! Two Services can have one pool name (`a/b-c` and `a-b/c`); `placement` resolves that.
//!
//! Source: cloud-provider-azure `getLocalServiceBackendPoolName`, `GetLoadBalancerName` (base name) and `serviceOwnsRule`.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// Ends the name of a pool for IPv6 addresses.
pub(crate) const IPV6_SUFFIX: &str = "-ipv6";
/// The longest base name: load balancer names in some clouds are limited to 32 characters.
const BASE_NAME_LENGTH: usize = 32;

/// Namespace and name of an object, in lower case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl NamespacedName {
    /// Both parts are converted to lower case.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_ascii_lowercase().into(),
            name: name.to_ascii_lowercase().into(),
        }
    }

    /// The namespace, in lower case.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name without its namespace, in lower case.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The family of an IP address. A backend pool has addresses of one family only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// IP version 4, `IPv4` in `spec.ipFamilies`.
    IPv4,
    /// IP version 6, `IPv6` in `spec.ipFamilies`.
    IPv6,
}

impl From<IpAddr> for IpFamily {
    /// An IPv4 address that is written as an IPv6 address counts as IPv4.
    fn from(address: IpAddr) -> Self {
        if address.to_canonical().is_ipv4() {
            Self::IPv4
        } else {
            Self::IPv6
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IPv4 => "IPv4",
            Self::IPv6 => "IPv6",
        })
    }
}

/// The name of a Local Service's pool: `namespace-name`, and `-ipv6` after it for the pool of IPv6 addresses.
#[must_use]
pub fn pool_name(service: &NamespacedName, family: IpFamily) -> String {
    let suffix = match family {
        IpFamily::IPv4 => "",
        IpFamily::IPv6 => IPV6_SUFFIX,
    };
    format!("{}-{}{suffix}", service.namespace, service.name)
}

/// The prefix of a Service's rules, probes and frontends on a load balancer: `a` and its UID without dashes, at most 32
/// characters, in lower case. `None` for a Service without a UID.
#[must_use]
pub fn base_name(uid: &str) -> Option<String> {
    let letters = uid.chars().filter(|character| *character != '-');
    let name: String = std::iter::once('a').chain(letters).take(BASE_NAME_LENGTH).collect();
    (name.len() > 1).then(|| name.to_ascii_lowercase())
}

/// Whether a load-balancing rule carries this base name: `BASE` itself, or `BASE-` and more.
#[must_use]
pub fn is_rule_of(rule: &str, base_name: &str) -> bool {
    let (Some(start), Some(rest)) = (rule.get(..base_name.len()), rule.get(base_name.len()..)) else {
        return false;
    };
    start.eq_ignore_ascii_case(base_name) && (rest.is_empty() || rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_names_are_lower_case_with_a_suffix_for_ipv6() {
        for (namespace, name, v4, v6) in [
            ("default", "web", "default-web", "default-web-ipv6"),
            ("Default", "WEB", "default-web", "default-web-ipv6"),
            ("a", "b-c", "a-b-c", "a-b-c-ipv6"),
            ("a-b", "c", "a-b-c", "a-b-c-ipv6"),
            ("x", "foo-ipv6", "x-foo-ipv6", "x-foo-ipv6-ipv6"),
        ] {
            let service = NamespacedName::new(namespace, name);
            assert_eq!(pool_name(&service, IpFamily::IPv4), v4);
            assert_eq!(pool_name(&service, IpFamily::IPv6), v6);
        }
    }

    #[test]
    fn base_names_are_cut_to_32_characters() {
        let uid = "0F8FAD5B-D9CB-469F-A165-70867728950E";
        let base = base_name(uid).unwrap();
        assert_eq!(base, "a0f8fad5bd9cb469fa16570867728950");
        assert_eq!(base.len(), 32);
        assert_eq!(base_name(""), None);
        for (rule, is_its) in [
            ("a0f8fad5bd9cb469fa16570867728950-TCP-80", true),
            ("A0F8FAD5BD9CB469FA16570867728950-subnet-TCP-80-IPv6", true),
            ("a0f8fad5bd9cb469fa16570867728950", true),
            ("a0f8fad5bd9cb469fa165708677289501-TCP-80", false),
            ("a0f8fad5bd9cb469fa1657086772895é-TCP-80", false),
            ("other-TCP-80", false),
            ("", false),
        ] {
            assert_eq!(is_rule_of(rule, &base), is_its, "{rule}");
        }
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        for (address, family) in [
            ("10.0.0.4", IpFamily::IPv4),
            ("::ffff:10.0.0.4", IpFamily::IPv4),
            ("fd00::4", IpFamily::IPv6),
        ] {
            assert_eq!(IpFamily::from(address.parse::<IpAddr>().unwrap()), family);
        }
    }
}
