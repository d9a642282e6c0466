//! Which virtual machine a network interface belongs to where its id does not say so: asked of ARM, and remembered.
//!
//! An answer is good for an hour or somewhat more, one that could not be had for a minute; only interfaces that stand in a pool are
//! remembered. An entry whose interface is not known is nobody's: to plan nobody waits for an answer.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use headgate_azure::{ArmError, ErrorClass, NetworkInterfaceId, PoolId};
use tokio::time::Instant;

use super::inventory::{PoolView, View};
use super::trouble::Trouble;

/// A machine keeps its interfaces for its life, mostly.
const KNOWN_FOR: Duration = Duration::from_hours(1);
/// Until it is asked again after a failure, or without a machine.
const UNKNOWN_FOR: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
struct Known {
    /// In lower case.
    machine: Option<String>,
    /// Why the last answer could not be had.
    trouble: Option<Trouble>,
    until: Instant,
}

/// A pool with interfaces that cannot be read, so that nobody knows whose they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Unread {
    /// Which.
    pub pool: PoolId,
    /// Why, and what to do about it.
    pub trouble: Trouble,
}

/// From this time to half as much again, so that not all are asked about at once again.
fn spread(id: &NetworkInterfaceId, time: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    time + time * u32::try_from(hasher.finish() % 1000).unwrap_or_default() / 2000
}

/// What is known.
#[derive(Clone, Debug, Default)]
pub struct Interfaces(HashMap<NetworkInterfaceId, Known>);

/// The interfaces that ARM has to be asked about.
fn of(view: &View) -> impl Iterator<Item = &NetworkInterfaceId> {
    view.pools.iter().flat_map(|pool| &pool.interfaces)
}

impl Interfaces {
    /// The virtual machine that an interface belongs to, in lower case, as far as it is known.
    #[must_use]
    pub fn machine_of(&self, id: &NetworkInterfaceId) -> Option<&str> {
        self.0.get(id)?.machine.as_deref()
    }

    /// Whether ARM was asked about every interface in these pools, with whatever outcome: until then, who is not found
    /// there may be there.
    #[must_use]
    pub fn were_asked_about(&self, view: &View) -> bool {
        of(view).all(|id| self.0.contains_key(id))
    }

    /// The pools in use with interfaces that cannot be read and of which nothing is known from before.
    #[must_use]
    pub fn unread(&self, view: &View) -> Vec<Unread> {
        let used = view.pools.iter().filter(|pool| pool.is_used());
        used.filter_map(|pool| self.unread_of(pool)).collect()
    }

    fn unread_of(&self, pool: &PoolView) -> Option<Unread> {
        let unread = || {
            pool.interfaces.iter().filter_map(|id| {
                let known = self.0.get(id).filter(|known| known.machine.is_none())?;
                Some((id.name(), known.trouble.as_ref()?))
            })
        };
        // Always the same one, however they are listed.
        let (name, trouble) = unread().min_by_key(|(name, _)| *name)?;
        let more = match unread().count() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        // What ARM says may be long.
        let right = match trouble.class {
            ErrorClass::Terminal => " (the role needs Microsoft.Network/networkInterfaces/read)",
            ErrorClass::Stale | ErrorClass::Retriable => "",
        };
        let id = &pool.id;
        let text = format!(
            "the network interface {name}{more} in {}/{} cannot be read{right}, so it is not known whether it is this node's: {}",
            id.load_balancer().name(),
            id.name(),
            trouble.text
        );
        let trouble = Trouble {
            text,
            ..trouble.clone()
        };
        let pool = id.clone();
        Some(Unread { pool, trouble })
    }

    /// Takes in what others know.
    pub(super) fn merge(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// The interfaces in these pools that have to be asked about; forgets all others.
    pub(super) fn due(&mut self, view: &View, now: Instant) -> HashSet<NetworkInterfaceId> {
        let mut ids: HashSet<NetworkInterfaceId> = of(view).cloned().collect();
        self.0.retain(|id, _| ids.contains(id));
        ids.retain(|id| self.0.get(id).is_none_or(|known| known.until <= now));
        ids
    }

    /// Takes in what came of a question.
    pub(super) fn answered(&mut self, id: NetworkInterfaceId, answer: Result<Option<String>, ArmError>) {
        let before = self.0.remove(&id);
        let (machine, trouble, known_for) = match answer {
            Ok(Some(machine)) => (Some(machine), None, KNOWN_FOR),
            Ok(None) => (None, None, UNKNOWN_FOR),
            Err(error) => {
                let before_that = before.as_ref().and_then(|known| known.trouble.as_ref());
                let trouble = Trouble::new(&error, before_that);
                if before_that.is_none_or(|before| !before.is_like(&trouble)) {
                    tracing::warn!(interface = ?id, %error, "whose network interface this is cannot be read; what was known of it goes on");
                }
                // One that is gone is nobody's.
                let trouble = Some(trouble).filter(|trouble| trouble.class != ErrorClass::Stale);
                (before.and_then(|known| known.machine), trouble, UNKNOWN_FOR)
            }
        };
        let known = Known {
            until: Instant::now() + spread(&id, known_for),
            machine,
            trouble,
        };
        self.0.insert(id, known);
    }
}

#[cfg(test)]
mod tests {
    use headgate_azure::{ErrorBody, LoadBalancer, LoadBalancerId};
    use hyper::StatusCode;
    use serde_json::{Value, json};

    use super::*;

    const GROUP: &str = "/subscriptions/s/resourceGroups/rg/providers";

    fn configuration(name: &str) -> String {
        format!("{GROUP}/Microsoft.Network/networkInterfaces/{name}/ipConfigurations/c")
    }

    fn id(name: &str) -> NetworkInterfaceId {
        NetworkInterfaceId::parse(&configuration(name)).unwrap()
    }

    /// A pool of these interfaces and of one of a scale set.
    fn view(names: &[&str], used: bool) -> View {
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
        View::of(LoadBalancer {
            id: LoadBalancerId::parse(&lb).unwrap(),
            etag: None,
            document: json!({"id": lb, "properties": {
                "backendAddressPools": [{"name": "p", "properties": {"loadBalancerBackendAddresses": entries}}],
                "loadBalancingRules": if used { vec![rule] } else { Vec::new() }}}),
        })
    }

    fn refused(status: StatusCode, code: &str) -> ArmError {
        ArmError::ErrorResponse {
            status,
            error: ErrorBody {
                code: code.to_owned(),
                ..ErrorBody::default()
            },
            retry_after: None,
            may_have_applied: false,
        }
    }

    #[test]
    fn what_cannot_be_read_is_told_unless_it_was_known_or_is_gone() {
        let view = view(&["B", "c", "gone", "known"], true);
        let mut interfaces = Interfaces::default();
        assert_eq!(
            interfaces.due(&view, Instant::now()).len(),
            4,
            "the scale set's says whose it is"
        );
        assert!(!interfaces.were_asked_about(&view) && interfaces.unread(&view).is_empty());
        let forbidden = || Err(refused(StatusCode::FORBIDDEN, "AuthorizationFailed"));
        interfaces.answered(id("known"), Ok(Some("/vm".to_owned())));
        interfaces.answered(id("known"), forbidden());
        interfaces.answered(id("gone"), Err(refused(StatusCode::NOT_FOUND, "ResourceNotFound")));
        interfaces.answered(id("c"), Ok(None));
        assert!(interfaces.unread(&view).is_empty(), "the last one is being asked about");
        interfaces.answered(id("b"), forbidden());
        assert!(interfaces.were_asked_about(&view));
        assert_eq!(interfaces.machine_of(&id("KNOWN")), Some("/vm"));
        let unread = interfaces.unread(&view);
        let [Unread { pool, trouble }] = unread.as_slice() else {
            panic!("{unread:?}")
        };
        assert_eq!(
            (pool.name(), trouble.class, &*trouble.code),
            ("p", ErrorClass::Terminal, "AuthorizationFailed")
        );
        assert_eq!(
            trouble.text,
            "the network interface b in lb/p cannot be read (the role needs Microsoft.Network/networkInterfaces/read), \
             so it is not known whether it is this node's: ARM answered 403: AuthorizationFailed"
        );
        interfaces.answered(id("c"), Err(ArmError::DeadlineExceeded));
        let told = interfaces.unread(&view).remove(0).trouble.text;
        assert!(
            told.starts_with("the network interface b and 1 more in lb/p cannot be read"),
            "{told}"
        );
        interfaces.answered(id("b"), Ok(Some("/vm".to_owned())));
        let told = interfaces.unread(&view).remove(0).trouble.text;
        assert!(
            told.starts_with("the network interface c in lb/p cannot be read, so"),
            "{told}"
        );
    }

    #[test]
    fn a_pool_without_rules_is_nobodys_trouble() {
        let mut interfaces = Interfaces::default();
        interfaces.answered(id("a"), Err(ArmError::DeadlineExceeded));
        assert!(interfaces.unread(&view(&["a"], false)).is_empty());
        assert_eq!(interfaces.unread(&view(&["a"], true)).len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_left_the_pools_is_forgotten_and_what_is_known_is_not_asked_about_for_an_hour() {
        let mut interfaces = Interfaces::default();
        interfaces.answered(id("a"), Ok(Some("/vm".to_owned())));
        interfaces.answered(id("b"), Err(ArmError::DeadlineExceeded));
        let (both, now) = (view(&["a", "b"], true), Instant::now());
        assert!(interfaces.due(&both, now).is_empty());
        assert_eq!(interfaces.due(&both, now + UNKNOWN_FOR * 2), HashSet::from([id("b")]));
        assert_eq!(interfaces.due(&both, now + KNOWN_FOR * 2).len(), 2);
        interfaces.due(&view(&["b"], true), now);
        assert_eq!(interfaces.machine_of(&id("a")), None);
    }
}
