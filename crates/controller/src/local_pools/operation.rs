//! One pending update of one pool for one Service: the full set of members that the pool is to have.
//!
//! Because an operation holds the whole set, a newer one replaces an older one and no history is replayed.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::time::Instant;

use headgate_core::service::NamespacedName;

/// A member that a pool is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredMember {
    /// The address of the node, in the pool's IP family.
    pub address: IpAddr,
    /// The name of a new entry: that of the node that has the address, and with the address behind it where several nodes claim it.
    pub node: Arc<str>,
    /// The node has a drain signal. If its entry is new, it is added as `Down`.
    pub is_draining: bool,
    /// The node is being deleted or is unknown: an entry that is there stays, and none is added.
    pub is_leaving: bool,
}

/// All members that a pool is to have, each address once, in the order of the addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredMembers(Arc<[DesiredMember]>);

impl FromIterator<DesiredMember> for DesiredMembers {
    /// Of several members with one address, the first counts. IPv4 addresses that are written as IPv6 addresses become IPv4.
    fn from_iter<I: IntoIterator<Item = DesiredMember>>(members: I) -> Self {
        let mut members: Vec<_> = members.into_iter().collect();
        for member in &mut members {
            member.address = member.address.to_canonical();
        }
        members.sort_by_key(|member| member.address);
        members.dedup_by_key(|member| member.address);
        Self(members.into())
    }
}

impl DesiredMembers {
    /// The members, in the order of their addresses.
    pub fn as_slice(&self) -> &[DesiredMember] {
        &self.0
    }

    /// Whether both have the same addresses, whatever else is known of the nodes.
    pub(crate) fn has_same_addresses(&self, other: &Self) -> bool {
        self.addresses().eq(other.addresses())
    }

    fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.0.iter().map(|member| member.address)
    }

    /// Whether this address is among them.
    pub fn contains(&self, address: IpAddr) -> bool {
        let found = self.0.binary_search_by_key(&address, |member| member.address);
        found.is_ok()
    }
}

/// A backend pool, by name. Names are in lower case: two spellings are one pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolKey {
    load_balancer: Arc<str>,
    pool: Arc<str>,
}

impl PoolKey {
    /// Both names are converted to lower case.
    pub fn new(load_balancer: &str, pool: &str) -> Self {
        Self {
            load_balancer: load_balancer.to_ascii_lowercase().into(),
            pool: pool.to_ascii_lowercase().into(),
        }
    }

    /// The load balancer's name, in lower case.
    pub fn load_balancer(&self) -> &str {
        &self.load_balancer
    }

    /// The pool's name, in lower case.
    pub fn pool(&self) -> &str {
        &self.pool
    }
}

impl fmt::Display for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.load_balancer, self.pool)
    }
}

/// What an operation is about. The queue has at most one operation for each key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationKey {
    /// The Service; its endpoints decide about the members.
    pub service: NamespacedName,
    /// The load balancer and name of the pool.
    pub pool: PoolKey,
}

/// A pending update of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The Service and the pool of the operation.
    pub key: OperationKey,
    /// The full set of members.
    pub members: DesiredMembers,
    /// Retriable failures so far.
    pub retry_count: u32,
    /// ARM is not called for the operation's pool before this time. The operation is *parked* until then.
    pub next_eligible_at: Option<Instant>,
    /// Since when an update of this pool has been pending. A replacement or a retry keeps it.
    pub pending_since: Instant,
    /// The number of the drain that has taken it out; an operation of the same key from a later drain is another one.
    pub drain: u64,
}

impl Operation {
    /// A fresh operation, eligible at once.
    pub fn new(key: OperationKey, members: DesiredMembers, now: Instant) -> Self {
        Self {
            key,
            members,
            retry_count: 0,
            next_eligible_at: None,
            pending_since: now,
            drain: 0,
        }
    }

    /// Replaces the members. For other addresses the retries begin anew.
    pub(crate) fn replace_members(&mut self, members: DesiredMembers) {
        if !self.members.has_same_addresses(&members) {
            self.retry_count = 0;
        }
        // The nodes may have changed although their addresses have not: a drain signal, a name.
        self.members = members;
    }

    /// Whether ARM has asked to wait longer.
    pub fn is_parked(&self, now: Instant) -> bool {
        self.next_eligible_at.is_some_and(|eligible_at| now < eligible_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_pools::fixtures::members;

    #[test]
    fn members_are_sorted_and_unique() {
        let set = members(&["10.0.0.2", "fd00::1", "10.0.0.1", "10.0.0.2"]);
        let addresses: Vec<_> = set.addresses().map(|address| address.to_string()).collect();
        assert_eq!(addresses, ["10.0.0.1", "10.0.0.2", "fd00::1"]);
        assert!(set.contains("fd00::1".parse().unwrap()) && !set.contains("10.0.0.3".parse().unwrap()));
    }

    #[test]
    fn equality_of_addresses_ignores_order_and_repetition() {
        for (one, other, is_same) in [
            (&[][..], &[][..], true),
            (&["10.0.0.1"], &["10.0.0.1"], true),
            (&["10.0.0.1", "10.0.0.2"], &["10.0.0.2", "10.0.0.1"], true),
            (&["10.0.0.1", "10.0.0.1"], &["10.0.0.1"], true),
            (&["10.0.0.1"], &["10.0.0.2"], false),
            (&["10.0.0.1"], &["10.0.0.1", "10.0.0.2"], false),
            (&["10.0.0.1"], &[], false),
            (&["fd00::1"], &["FD00:0::1"], true),
        ] {
            assert_eq!(
                members(one).has_same_addresses(&members(other)),
                is_same,
                "{one:?} {other:?}"
            );
        }
    }

    #[test]
    fn spellings_of_a_pool_are_one_key() {
        assert_eq!(PoolKey::new("LB", "Default-Web"), PoolKey::new("lb", "default-web"));
    }
}
