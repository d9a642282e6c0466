//! ARM resource ids, and etags.
//!
//! Ids compare without regard to case, as in ARM, and keep their own case for display. A name that would change the path
//! of a URL is rejected.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use headgate_core::lower_case_chars;
use hyper::header::HeaderValue;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

mod network_interface;

pub use network_interface::NetworkInterfaceId;

/// Characters that a segment of a URL's path encodes, without those that no name has.
const SEGMENT: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'[')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A text that is not the id of such a resource.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the id of {1}")]
pub struct InvalidId(String, &'static str);

/// One name in an id. Cheap to clone, because ids are cloned by the thousand.
#[derive(Clone)]
struct Name(Arc<str>);

impl Name {
    fn new(text: &str) -> Option<Self> {
        let is_segment = !text.is_empty() && text != "." && text != ".." && !text.contains(['/', '\\', '?', '#', '%']);
        (is_segment && !text.chars().any(char::is_control)).then(|| Self(text.into()))
    }

    fn lower_case(&self) -> impl Iterator<Item = char> + '_ {
        lower_case_chars(&self.0)
    }

    fn encoded(&self) -> impl fmt::Display + '_ {
        utf8_percent_encode(&self.0, SEGMENT)
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        // The first two cost less, and nearly always decide.
        Arc::ptr_eq(&self.0, &other.0)
            || self.0.eq_ignore_ascii_case(&other.0)
            || !(self.0.is_ascii() && other.0.is_ascii()) && self.lower_case().eq(other.lower_case())
    }
}

impl Eq for Name {}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) {
            return Ordering::Equal;
        }
        self.lower_case().cmp(other.lower_case())
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for character in self.lower_case() {
            character.hash(state);
        }
    }
}

/// The id of a resource group.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceGroupId {
    subscription: Name,
    name: Name,
}

/// The id of a load balancer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoadBalancerId {
    group: ResourceGroupId,
    name: Name,
}

/// The id of a backend pool.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId {
    load_balancer: LoadBalancerId,
    name: Name,
}

impl ResourceGroupId {
    /// The id of the resource group `name` in a subscription.
    ///
    /// # Errors
    /// When the subscription or the name is empty or has characters that no name has.
    pub fn new(subscription: &str, name: &str) -> Result<Self, InvalidId> {
        match (Name::new(subscription), Name::new(name)) {
            (Some(subscription), Some(name)) => Ok(Self { subscription, name }),
            _ => Err(InvalidId(format!("{subscription}/{name}"), "a resource group")),
        }
    }

    /// The id of its subscription, in its own case.
    pub fn subscription(&self) -> &str {
        &self.subscription.0
    }

    /// The last part of the id, in its own case.
    pub fn name(&self) -> &str {
        &self.name.0
    }

    /// The id of a load balancer in this group.
    ///
    /// # Errors
    /// When the name is empty or has characters that no name has.
    pub fn load_balancer(&self, name: &str) -> Result<LoadBalancerId, InvalidId> {
        let Some(name) = Name::new(name) else {
            return Err(InvalidId(name.to_owned(), "a load balancer"));
        };
        let group = self.clone();
        Ok(LoadBalancerId { group, name })
    }

    /// The id, as the path of a URL.
    pub fn path(&self) -> String {
        let (subscription, name) = (self.subscription.encoded(), self.name.encoded());
        format!("/subscriptions/{subscription}/resourceGroups/{name}")
    }

    /// The URL path of the list of load balancers.
    pub(super) fn load_balancers_path(&self) -> String {
        format!("{}/providers/Microsoft.Network/loadBalancers", self.path())
    }
}

impl LoadBalancerId {
    /// Parses ARM's form of the id.
    ///
    /// # Errors
    /// When it is not the id of a load balancer.
    pub fn parse(id: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId(id.to_owned(), "a load balancer");
        let (path, rest) = Self::split(id).ok_or_else(invalid)?;
        if rest.is_empty() { Ok(path) } else { Err(invalid()) }
    }

    /// The load balancer at the beginning of an id, and the segments after it.
    fn split(id: &str) -> Option<(Self, Vec<&str>)> {
        let mut segments = id.strip_prefix('/')?.split('/');
        let mut name_after = |word: &str| {
            let found = segments.next()?;
            found.eq_ignore_ascii_case(word).then(|| segments.next()).flatten()
        };
        let subscription = name_after("subscriptions")?;
        let group = name_after("resourceGroups")?;
        let provider = name_after("providers")?;
        let name = name_after("loadBalancers")?;
        if !provider.eq_ignore_ascii_case("Microsoft.Network") {
            return None;
        }
        let group = ResourceGroupId::new(subscription, group).ok()?;
        Some((group.load_balancer(name).ok()?, segments.collect()))
    }

    /// The id of its resource group.
    pub fn group(&self) -> &ResourceGroupId {
        &self.group
    }

    /// The last part of the id, in its own case.
    pub fn name(&self) -> &str {
        &self.name.0
    }

    /// The id of a pool of this load balancer.
    ///
    /// # Errors
    /// When the name is empty or has characters that no name has.
    pub fn pool(&self, name: &str) -> Result<PoolId, InvalidId> {
        let Some(name) = Name::new(name) else {
            return Err(InvalidId(name.to_owned(), "a backend pool"));
        };
        let load_balancer = self.clone();
        Ok(PoolId { load_balancer, name })
    }

    /// The URL path, with encoded names.
    pub(super) fn path(&self) -> String {
        format!("{}/{}", self.group.load_balancers_path(), self.name.encoded())
    }

    /// The URL path of the list of its parts of this kind, such as `probes`.
    pub(super) fn list_path(&self, kind: &str) -> String {
        format!("{}/{kind}", self.path())
    }
}

impl PoolId {
    /// Parses ARM's form of the id.
    ///
    /// # Errors
    /// When it is not the id of a backend pool.
    pub fn parse(id: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId(id.to_owned(), "a backend pool");
        match LoadBalancerId::split(id) {
            Some((load_balancer, rest)) if rest.len() == 2 && rest[0].eq_ignore_ascii_case("backendAddressPools") => {
                load_balancer.pool(rest[1]).map_err(|_| invalid())
            }
            _ => Err(invalid()),
        }
    }

    /// The id of its load balancer.
    pub fn load_balancer(&self) -> &LoadBalancerId {
        &self.load_balancer
    }

    /// The last part of the id, in its own case.
    pub fn name(&self) -> &str {
        &self.name.0
    }

    /// The name for people: `LOAD_BALANCER/POOL`.
    pub fn short_name(&self) -> String {
        format!("{}/{}", self.load_balancer.name(), self.name())
    }

    /// The URL path, with encoded names.
    pub(super) fn path(&self) -> String {
        format!(
            "{}/backendAddressPools/{}",
            self.load_balancer.path(),
            self.name.encoded()
        )
    }
}

impl fmt::Display for ResourceGroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "/subscriptions/{}/resourceGroups/{}",
            self.subscription.0, self.name.0
        )
    }
}

impl fmt::Display for LoadBalancerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/providers/Microsoft.Network/loadBalancers/{}",
            self.group, self.name.0
        )
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/backendAddressPools/{}", self.load_balancer, self.name.0)
    }
}

/// `Debug` is `Display`: the id in ARM's form.
macro_rules! debug_as_display {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}
debug_as_display!(ResourceGroupId, LoadBalancerId, PoolId);

/// The version of a load balancer; its pools share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Etag(String);

impl Etag {
    /// An etag as ARM wrote it; `None` if it cannot be the value of a header.
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        (!text.is_empty() && HeaderValue::from_str(text).is_ok()).then(|| Self(text.to_owned()))
    }

    /// The text with its quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_ignore_case_when_compared_and_keep_it_when_shown() {
        let id =
            "/subscriptions/S/resourcegroups/G/providers/microsoft.network/loadBalancers/Web/backendAddressPools/Nodes";
        let pool = PoolId::parse(id).unwrap();
        let other = ResourceGroupId::new("s", "g").unwrap().load_balancer("WEB").unwrap();
        let other = other.pool("nodes").unwrap();
        assert_eq!(pool, other);
        assert_eq!(pool.cmp(&other), Ordering::Equal);
        assert_eq!(HashSet::from([pool.clone(), other.clone()]).len(), 1);
        assert_ne!(pool, other.load_balancer().pool("other").unwrap());
        let group = |name| ResourceGroupId::new("s", name).unwrap();
        // 'İ' has one 'i' here, as in Go, and a sigma at the end is one like others.
        for (one, other) in [("RG-ÜBUNG", "rg-übung"), ("RG-ΟΔΟΣ", "rg-οδοσ"), ("İ", "i")] {
            let [one, other] = [one, other].map(group);
            assert_eq!(one.cmp(&other), Ordering::Equal);
            assert_eq!(HashSet::from([one, other]).len(), 1);
        }
        assert_ne!(group("rg-ü"), group("rg-u"));
        let shown =
            "/subscriptions/S/resourceGroups/G/providers/Microsoft.Network/loadBalancers/Web/backendAddressPools/Nodes";
        assert_eq!(pool.to_string(), shown);
        assert_eq!(PoolId::parse(shown), Ok(pool.clone()));
        let load_balancer = LoadBalancerId::parse(&pool.load_balancer().to_string());
        assert_eq!(load_balancer.as_ref(), Ok(pool.load_balancer()));
    }

    #[test]
    fn malformed_ids_are_rejected() {
        for id in [
            "",
            "/",
            "subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb",
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/loadBalancers/lb",
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/",
            "/subscriptions/s/resourceGroups/../providers/Microsoft.Network/loadBalancers/lb",
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb?x",
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb%2f",
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb/probes/p",
            "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/a\n",
        ] {
            assert!(LoadBalancerId::parse(id).is_err(), "{id}");
            assert!(PoolId::parse(id).is_err(), "{id}");
        }
    }

    #[test]
    fn names_are_encoded_in_paths() {
        let group = ResourceGroupId::new("s", "Gruppe (ü) [1]").unwrap();
        let path =
            "/subscriptions/s/resourceGroups/Gruppe%20(%C3%BC)%20%5B1%5D/providers/Microsoft.Network/loadBalancers";
        assert_eq!(group.load_balancers_path(), path);
    }

    #[test]
    fn etags_that_fit_into_a_header() {
        assert_eq!(Etag::new(" W/\"x\" ").unwrap().as_str(), "W/\"x\"");
        assert_eq!(Etag::new(""), None);
        assert_eq!(Etag::new("a\r\nb"), None);
    }
}
