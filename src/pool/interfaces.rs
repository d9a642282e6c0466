//! Which virtual machine a network interface belongs to: read from its id for a scale set's, asked of ARM otherwise,
//! and remembered.
//!
//! An answer is good for an hour or somewhat more, one that could not be had for a minute; only interfaces that stand in a pool are
//! remembered. An entry whose interface is not known is nobody's: to plan nobody waits for an answer.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use tokio::time::Instant;

use super::inventory::{PoolView, View};
use super::member::Claim;
use crate::azure::{ArmError, InterfaceId};

/// A machine keeps its interfaces for its life, mostly.
const KNOWN_FOR: Duration = Duration::from_hours(1);
/// Until it is asked again after a failure, or without a machine.
const UNKNOWN_FOR: Duration = Duration::from_mins(1);

#[derive(Clone, Debug)]
struct Known {
    /// In lower case.
    machine: Option<String>,
    until: Instant,
}

/// From this time to half as much again, so that not all are asked about at once again.
fn spread(id: &InterfaceId, time: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    time + time * u32::try_from(hasher.finish() % 1000).unwrap_or_default() / 2000
}

/// What is known.
#[derive(Clone, Debug, Default)]
pub struct Interfaces(HashMap<InterfaceId, Known>);

/// The machine in the id of a scale set's interface configuration, in lower case.
fn in_id(configuration: &str) -> Option<String> {
    let lower = configuration.to_ascii_lowercase();
    let (machine, _) = lower.split_once("/networkinterfaces/")?;
    machine.contains("/virtualmachines/").then(|| machine.to_owned())
}

/// The interfaces of a pool whose ids do not say whose they are.
fn of(pool: &PoolView) -> impl Iterator<Item = InterfaceId> {
    let configurations = pool.members.iter().filter_map(|member| match &member.claim {
        Claim::Interface(configuration) => Some(configuration),
        _ => None,
    });
    configurations
        .filter(|configuration| in_id(configuration).is_none())
        .filter_map(|configuration| InterfaceId::of_configuration(configuration).ok())
}

impl Interfaces {
    /// The virtual machine behind an interface's configuration, in lower case, as far as it is known.
    #[must_use]
    pub fn machine_of(&self, configuration: &str) -> Option<String> {
        in_id(configuration).or_else(|| {
            let id = InterfaceId::of_configuration(configuration).ok()?;
            self.0.get(&id)?.machine.clone()
        })
    }

    /// Whether ARM was asked about every interface in these pools, with whatever outcome: until then, who is not found
    /// there may be there.
    #[must_use]
    pub fn were_asked_about(&self, view: &View) -> bool {
        view.pools.iter().flat_map(of).all(|id| self.0.contains_key(&id))
    }

    /// Takes in what others know.
    pub(super) fn merge(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// The interfaces in these pools that have to be asked about; forgets all others.
    pub(super) fn due(&mut self, view: &View, now: Instant) -> HashSet<InterfaceId> {
        let mut ids: HashSet<InterfaceId> = view.pools.iter().flat_map(of).collect();
        self.0.retain(|id, _| ids.contains(id));
        ids.retain(|id| self.0.get(id).is_none_or(|known| known.until <= now));
        ids
    }

    /// Takes in what came of a question.
    pub(super) fn answered(&mut self, id: InterfaceId, answer: Result<Option<String>, ArmError>) {
        let (machine, known_for) = match answer {
            Ok(Some(machine)) => (Some(machine), KNOWN_FOR),
            Ok(None) => (None, UNKNOWN_FOR),
            Err(error) => {
                tracing::warn!(interface = ?id, %error, "whose network interface this is cannot be read; what was known of it goes on");
                (self.0.get(&id).and_then(|known| known.machine.clone()), UNKNOWN_FOR)
            }
        };
        let until = Instant::now() + spread(&id, known_for);
        self.0.insert(id, Known { machine, until });
    }
}
