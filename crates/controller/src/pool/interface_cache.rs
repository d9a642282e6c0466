//! The machines of network interfaces, cached from lookups at ARM.
//!
//! A scale set's interface has its machine in its id; every other interface has to be looked up. A machine is cached for
//! [`MACHINE_TTL`] or up to half as much again, everything else for less. Only interfaces of the present pools are kept.
//! A plan never waits for a lookup: an entry whose interface is not in the cache belongs to no Node yet.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{ArmError, ErrorClass, NetworkInterfaceId, PoolId};
use tokio::time::Instant;

use super::pool_entry::{NodeMatcher, PoolEntry};
use super::retry::LastError;
use super::view::{LoadBalancerView, PoolView};

/// A machine usually keeps its interfaces for as long as it exists.
const MACHINE_TTL: Duration = Duration::from_hours(1);
/// An interface may be in a pool before its machine exists: it is due again with each list.
const NO_MACHINE_TTL: Duration = Duration::ZERO;
/// After a failure that may pass.
const RETRIABLE_TTL: Duration = Duration::from_secs(5);
/// After a failure that lasts, such as a right that is missing.
const TERMINAL_TTL: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
struct CachedInterface {
    /// The resource id in lower case; kept when a later lookup fails.
    machine: Option<String>,
    /// What the last lookup failed with.
    last_error: Option<LastError>,
    /// When the lookup was sent that this is the answer to.
    requested_at: Instant,
    /// Lookups since then have failed.
    is_failing: bool,
    expires_at: Instant,
}

impl CachedInterface {
    /// Whether the answer was that no machine has it, or that it does not exist.
    fn has_no_machine(&self) -> bool {
        self.machine.is_none() && self.last_error.is_none()
    }
}

/// A pool with an interface whose machine is unknown because its lookup failed.
#[derive(Clone, Debug, PartialEq)]
pub struct UnreadablePool {
    /// The pool's resource id.
    pub pool: PoolId,
    /// The failure of the first such interface by name; its message names pool and interface.
    pub last_error: LastError,
}

/// The machines of network interfaces, as far as they have been looked up.
#[derive(Clone, Debug, Default)]
pub struct InterfaceCache(HashMap<NetworkInterfaceId, CachedInterface>);

impl InterfaceCache {
    /// The resource id of the machine that has the interface, in lower case; `None` if it is not known.
    pub(crate) fn machine_of(&self, id: &NetworkInterfaceId) -> Option<&str> {
        self.0.get(id)?.machine.as_deref()
    }

    /// Whether a lookup of the interface has ended, with whatever result.
    fn has_answer(&self, id: &NetworkInterfaceId) -> bool {
        self.0.contains_key(id)
    }

    /// Whether no lookup of the interface has succeeded.
    pub(super) fn is_unanswered(&self, id: &NetworkInterfaceId) -> bool {
        let has_failed = |cached: &CachedInterface| cached.machine.is_none() && cached.last_error.is_some();
        self.0.get(id).is_none_or(has_failed)
    }

    /// Whether every interface of these pools has been looked up, with whatever result. Until then an entry that matches no
    /// Node may still belong to one.
    pub fn covers(&self, view: &LoadBalancerView) -> bool {
        let mut ids = view.pools.iter().flat_map(|pool| &pool.interfaces);
        ids.all(|id| self.has_answer(id))
    }

    /// Whether it is known which machine every interface of the pool has, if any. A failure that may pass is no answer; one that lasts,
    /// as a right that is missing, is: nothing more will be known.
    pub(crate) fn knows_pool(&self, pool: &PoolView) -> bool {
        let may_pass = |error: &LastError| error.class != ErrorClass::Terminal;
        let is_known = |cached: &CachedInterface| {
            cached.machine.is_some() || !cached.is_failing && !cached.last_error.as_ref().is_some_and(may_pass)
        };
        pool.interfaces.iter().all(|id| self.0.get(id).is_some_and(is_known))
    }

    /// When the oldest of the answers was requested that an interface of a used pool has no machine. It may have one since.
    pub(crate) fn no_machine_since(&self, view: &LoadBalancerView) -> Option<Instant> {
        let used = view.pools.iter().filter(|pool| pool.is_used());
        let cached = used.flat_map(|pool| &pool.interfaces).filter_map(|id| self.0.get(id));
        let without = cached.filter(|cached| cached.has_no_machine());
        without.map(|cached| cached.requested_at).min()
    }

    /// The used pools with an interface whose machine is unknown because its lookup failed.
    pub fn unreadable_pools(&self, view: &LoadBalancerView) -> Vec<UnreadablePool> {
        let used = view.pools.iter().filter(|pool| pool.is_used());
        used.filter_map(|pool| self.unreadable_pool(pool)).collect()
    }

    fn unreadable_pool(&self, pool: &PoolView) -> Option<UnreadablePool> {
        let failed = || {
            pool.interfaces.iter().filter_map(|id| {
                let cached = self.0.get(id).filter(|cached| cached.machine.is_none())?;
                Some((id, cached.last_error.as_ref()?))
            })
        };
        // The first by name, so that the event does not change with the order of the document.
        let (interface, error) = failed().min_by_key(|(interface, _)| interface.name())?;
        let more = match failed().count() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (name, right) = (interface.name(), missing_right(interface, error));
        let id = &pool.id;
        let message = format!(
            "the network interface {name}{more} in {}/{} cannot be read{right}, so it is not known whether it is this node's: {}",
            id.load_balancer().name(),
            id.name(),
            error.message
        );
        Some(UnreadablePool {
            pool: id.clone(),
            last_error: LastError {
                message,
                ..error.clone()
            },
        })
    }

    /// Why it is not known which Node the entry belongs to: the lookup of its interface failed. `None` for any other entry.
    pub fn lookup_error(&self, entry: &PoolEntry) -> Option<LastError> {
        let NodeMatcher::Interface(id) = &entry.matcher else {
            return None;
        };
        let cached = self.0.get(id).filter(|cached| cached.machine.is_none())?;
        let error = cached.last_error.as_ref()?;
        let (name, right) = (id.name(), missing_right(id, error));
        let message = format!(
            "the network interface {name} cannot be read{right}, so it is not known which node it belongs to: {}",
            error.message
        );
        Some(LastError {
            message,
            ..error.clone()
        })
    }

    /// The interfaces of these pools that have to be looked up. Removes all others from the cache.
    pub(super) fn take_due(&mut self, views: &[&Arc<LoadBalancerView>], now: Instant) -> HashSet<NetworkInterfaceId> {
        let pools = views.iter().flat_map(|view| &view.pools);
        let mut ids: HashSet<NetworkInterfaceId> = pools.flat_map(|pool| &pool.interfaces).cloned().collect();
        self.0.retain(|id, _| ids.contains(id));
        ids.retain(|id| self.0.get(id).is_none_or(|cached| cached.expires_at <= now));
        ids
    }

    /// Stores the result of a lookup that was sent then.
    pub fn store(&mut self, id: NetworkInterfaceId, requested_at: Instant, result: Result<Option<String>, ArmError>) {
        // What was known of an interface without a machine is older now, and that counts.
        if let Err(error) = &result
            && !(error.class() == ErrorClass::Terminal || error.is_about_missing_resource())
            && let Some(cached) = self.0.get_mut(&id).filter(|cached| cached.has_no_machine())
        {
            if !std::mem::replace(&mut cached.is_failing, true) {
                tracing::info!(interface = ?id, %error, "network interface without a machine not read again");
            }
            return;
        }
        let previous = self.0.remove(&id);
        let (machine, last_error, ttl) = match result {
            Ok(Some(machine)) => (Some(machine), None, MACHINE_TTL),
            Ok(None) => (None, None, NO_MACHINE_TTL),
            Err(error) if error.is_about_missing_resource() => {
                // That the interface no longer exists is an answer; its last machine counts until it leaves the pool.
                let machine = previous.and_then(|cached| cached.machine);
                (machine, None, NO_MACHINE_TTL)
            }
            Err(error) => {
                let previous_error = previous.as_ref().and_then(|cached| cached.last_error.as_ref());
                let last_error = LastError::from_arm(&error, previous_error);
                if previous_error.is_none_or(|previous| !previous.is_same_kind(&last_error)) {
                    tracing::info!(interface = ?id, %error, "network interface not read; its last known machine counts");
                }
                let ttl = match error.class() {
                    ErrorClass::Terminal => TERMINAL_TTL,
                    ErrorClass::Stale | ErrorClass::Retriable => RETRIABLE_TTL,
                };
                (previous.and_then(|cached| cached.machine), Some(last_error), ttl)
            }
        };
        let cached = CachedInterface {
            expires_at: Instant::now() + spread(&id, ttl),
            machine,
            last_error,
            requested_at,
            is_failing: false,
        };
        self.0.insert(id, cached);
    }
}

/// What the role lacks after this failure, if it is that. Before ARM's message, which may be cut off.
fn missing_right(id: &NetworkInterfaceId, error: &LastError) -> String {
    let is_right = ["AuthorizationFailed", "LinkedAuthorizationFailed"]
        .iter()
        .any(|code| code.eq_ignore_ascii_case(&error.code));
    let group = id.group().name();
    let right = format!(" (the role needs Microsoft.Network/networkInterfaces/read in the resource group {group})");
    if is_right { right } else { String::new() }
}

/// Between `time` and half as much again, fixed for each interface, so that not all expire at once.
fn spread(id: &NetworkInterfaceId, time: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    time + time * u32::try_from(hasher.finish() % 1000).unwrap_or_default() / 2000
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::fixtures::refused;
    use super::*;

    const GROUP: &str = "/subscriptions/s/resourceGroups/rg/providers";

    fn configuration(name: &str) -> String {
        format!("{GROUP}/Microsoft.Network/networkInterfaces/{name}/ipConfigurations/c")
    }

    fn id(name: &str) -> NetworkInterfaceId {
        NetworkInterfaceId::parse(&configuration(name)).unwrap()
    }

    /// A pool of these interfaces and of one of a scale set.
    fn view(names: &[&str], used: bool) -> Arc<LoadBalancerView> {
        let lb = format!("{GROUP}/Microsoft.Network/loadBalancers/lb");
        let instance = format!(
            "{GROUP}/Microsoft.Compute/virtualMachineScaleSets/v/virtualMachines/0/networkInterfaces/n/ipConfigurations/c"
        );
        let all = names.iter().map(|name| configuration(name)).chain([instance]);
        let entries: Vec<Value> = all
            .map(|id| json!({"name": id, "properties": {"networkInterfaceIPConfiguration": {"id": id}}}))
            .collect();
        let rule =
            json!({"name": "r", "properties": {"backendAddressPool": {"id": format!("{lb}/backendAddressPools/p")}}});
        let document = json!({"id": lb, "properties": {
            "backendAddressPools": [{"name": "p", "properties": {"loadBalancerBackendAddresses": entries}}],
            "loadBalancingRules": if used { vec![rule] } else { Vec::new() }}});
        Arc::new(LoadBalancerView::new(&document).unwrap())
    }

    #[test]
    fn unreadable_interface_is_reported_unless_cached_or_deleted() {
        let without_c = view(&["b", "gone", "known"], true);
        let view = view(&["B", "c", "gone", "known"], true);
        let mut interfaces = InterfaceCache::default();
        assert_eq!(
            interfaces.take_due(&[&view], Instant::now()).len(),
            4,
            "the id of the scale set's interface contains the machine"
        );
        assert!(!interfaces.covers(&view) && interfaces.unreadable_pools(&view).is_empty());
        let forbidden = || Err(refused(403, "AuthorizationFailed", None));
        interfaces.store(id("known"), Instant::now(), Ok(Some("/vm".to_owned())));
        interfaces.store(id("known"), Instant::now(), forbidden());
        interfaces.store(id("gone"), Instant::now(), Err(refused(404, "ResourceNotFound", None)));
        interfaces.store(id("c"), Instant::now(), Ok(None));
        assert!(
            interfaces.unreadable_pools(&view).is_empty(),
            "the last one has no result yet"
        );
        // The page of a proxy.
        interfaces.store(id("b"), Instant::now(), Err(refused(404, "", None)));
        assert_eq!(interfaces.unreadable_pools(&view).len(), 1);
        interfaces.store(id("b"), Instant::now(), forbidden());
        assert!(interfaces.covers(&view));
        assert_eq!(interfaces.machine_of(&id("KNOWN")), Some("/vm"));
        let unread = interfaces.unreadable_pools(&view);
        let [UnreadablePool { pool, last_error }] = unread.as_slice() else {
            panic!("{unread:?}")
        };
        assert_eq!(
            (pool.name(), last_error.class, &*last_error.code),
            ("p", ErrorClass::Terminal, "AuthorizationFailed")
        );
        assert_eq!(
            last_error.message,
            "the network interface b in lb/p cannot be read (the role needs Microsoft.Network/networkInterfaces/read \
             in the resource group rg), so it is not known whether it is this node's: ARM answered 403: AuthorizationFailed"
        );
        let denied = Err(refused(403, "DenyAssignmentAuthorizationFailed", None));
        interfaces.store(id("b"), Instant::now(), denied);
        let message = interfaces.unreadable_pools(&view).remove(0).last_error.message;
        assert!(message.contains("cannot be read, so"), "no role helps: {message}");
        interfaces.store(id("b"), Instant::now(), forbidden());
        // That it had no machine stays known.
        interfaces.store(id("c"), Instant::now(), Err(ArmError::DeadlineExceeded));
        assert_eq!(interfaces.unreadable_pools(&view), unread);
        interfaces.take_due(&[&without_c], Instant::now());
        interfaces.store(id("c"), Instant::now(), Err(ArmError::DeadlineExceeded));
        let message = interfaces.unreadable_pools(&view).remove(0).last_error.message;
        assert!(
            message.starts_with("the network interface b and 1 more in lb/p cannot be read"),
            "{message}"
        );
        let unread: Vec<_> = view.pools[0]
            .entries
            .iter()
            .filter_map(|entry| interfaces.lookup_error(entry))
            .collect();
        let messages: Vec<_> = unread.iter().map(|error| error.message.as_str()).collect();
        assert_eq!(messages.len(), 2, "not of what is known or gone: {messages:?}");
        assert!(
            messages[0].starts_with("the network interface b cannot be read (the role needs"),
            "{messages:?}"
        );
        assert!(
            messages[1].starts_with("the network interface c cannot be read, so"),
            "{messages:?}"
        );
        interfaces.store(id("b"), Instant::now(), Ok(Some("/vm".to_owned())));
        let message = interfaces.unreadable_pools(&view).remove(0).last_error.message;
        assert!(
            message.starts_with("the network interface c in lb/p cannot be read, so"),
            "{message}"
        );
    }

    #[test]
    fn answer_that_an_interface_has_no_machine_is_due_with_each_list_and_keeps_its_age() {
        let (view, asked) = (view(&["a"], true), Instant::now());
        let mut interfaces = InterfaceCache::default();
        interfaces.store(id("a"), asked, Ok(None));
        assert!(interfaces.knows_pool(&view.pools[0]));
        assert_eq!(interfaces.take_due(&[&view], Instant::now()).len(), 1);
        let later = asked + RETRIABLE_TTL;
        interfaces.store(id("a"), later, Err(refused(500, "", None)));
        assert_eq!(interfaces.no_machine_since(&view), Some(asked));
        assert!(!interfaces.knows_pool(&view.pools[0]), "it may have one by now");
        interfaces.store(id("a"), later, Err(refused(404, "ResourceNotFound", None)));
        assert_eq!(interfaces.no_machine_since(&view), Some(later));
        interfaces.store(id("a"), later, Ok(Some("/vm".to_owned())));
        assert_eq!(interfaces.no_machine_since(&view), None);
    }

    #[test]
    fn unreadable_interface_of_an_unused_pool_is_not_reported() {
        let mut interfaces = InterfaceCache::default();
        interfaces.store(id("a"), Instant::now(), Err(ArmError::DeadlineExceeded));
        assert!(interfaces.unreadable_pools(&view(&["a"], false)).is_empty());
        assert_eq!(interfaces.unreadable_pools(&view(&["a"], true)).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn interfaces_that_left_are_dropped_and_machines_are_cached_for_an_hour() {
        let mut interfaces = InterfaceCache::default();
        interfaces.store(id("a"), Instant::now(), Ok(Some("/vm".to_owned())));
        interfaces.store(id("b"), Instant::now(), Err(ArmError::DeadlineExceeded));
        let (both, now) = (view(&["a", "b"], true), Instant::now());
        assert!(interfaces.take_due(&[&both], now).is_empty());
        assert_eq!(
            interfaces.take_due(&[&both], now + RETRIABLE_TTL * 2),
            HashSet::from([id("b")])
        );
        assert_eq!(interfaces.take_due(&[&both], now + MACHINE_TTL * 2).len(), 2);
        interfaces.take_due(&[&view(&["b"], true)], now);
        assert_eq!(interfaces.machine_of(&id("a")), None);
    }
}
