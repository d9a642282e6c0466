//! The names that connect a Service with its backend pools and rules in ARM.
//!
//! Invariant: names from here are lower case, because Azure and cloud-provider-azure compare names without regard to case.
//! Two Services can have one pool name (`a/b-c` and `a-b/c`); `placement` resolves that.
//!
//! Source: cloud-provider-azure `getLocalServiceBackendPoolName`, `GetLoadBalancerName` (base name) and `serviceOwnsRule`.

use headgate_core::service::{IpFamily, NamespacedName};

/// Ends the name of a pool for IPv6 addresses.
pub(crate) const IPV6_SUFFIX: &str = "-ipv6";
/// The longest base name: load balancer names in some clouds are limited to 32 characters.
const BASE_NAME_LENGTH: usize = 32;

/// The name of a Local Service's pool: `namespace-name`, and `-ipv6` after it for the pool of IPv6 addresses.
pub fn pool_name(service: &NamespacedName, family: IpFamily) -> String {
    let suffix = match family {
        IpFamily::IPv4 => "",
        IpFamily::IPv6 => IPV6_SUFFIX,
    };
    format!("{}-{}{suffix}", service.namespace(), service.name())
}

/// The prefix of a Service's rules, probes and frontends on a load balancer: `a` and its UID without dashes, at most 32
/// characters, in lower case. `None` for a Service without a UID.
pub fn base_name(uid: &str) -> Option<String> {
    let letters = uid.chars().filter(|character| *character != '-');
    let name: String = std::iter::once('a').chain(letters).take(BASE_NAME_LENGTH).collect();
    (name.len() > 1).then(|| name.to_ascii_lowercase())
}

/// Whether a load-balancing rule carries this base name: `BASE` itself, or `BASE-` and more.
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
}
