//! Which virtual machine a network interface belongs to: read from its id for a scale set's, asked of ARM otherwise,
//! and remembered.
//!
//! An answer is good for an hour or somewhat more, one that could not be had for a minute; only interfaces that stand in a pool are
//! remembered.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use tokio::time::Instant;

use super::inventory::View;
use super::member::Claim;
use crate::azure::{Arm, InterfaceId};

/// A machine keeps its interfaces for its life, mostly.
const KNOWN_FOR: Duration = Duration::from_hours(1);
/// Until it is asked again after a failure, or without a machine.
const UNKNOWN_FOR: Duration = Duration::from_mins(1);
/// Questions at a time.
const AT_ONCE: usize = 16;

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

impl Interfaces {
    /// The virtual machine behind an interface's configuration, in lower case, as far as it is known.
    #[must_use]
    pub fn machine_of(&self, configuration: &str) -> Option<String> {
        in_id(configuration).or_else(|| {
            let id = InterfaceId::of_configuration(configuration).ok()?;
            self.0.get(&id)?.machine.clone()
        })
    }

    /// Takes in what others know.
    pub(super) fn merge(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// The interfaces in these pools that have to be asked about; forgets all others.
    fn unknown(&mut self, view: &View, now: Instant) -> Vec<InterfaceId> {
        let members = view.pools.iter().flat_map(|pool| &pool.members);
        let configurations = members.filter_map(|member| match &member.claim {
            Claim::Interface(configuration) => Some(configuration),
            _ => None,
        });
        let ids: HashSet<InterfaceId> = configurations
            .filter(|configuration| in_id(configuration).is_none())
            .filter_map(|configuration| InterfaceId::of_configuration(configuration).ok())
            .collect();
        self.0.retain(|id, _| ids.contains(id));
        let is_due = |id: &InterfaceId| self.0.get(id).is_none_or(|known| known.until <= now);
        ids.into_iter().filter(is_due).collect()
    }

    /// Asks ARM about what is not known of these pools' interfaces.
    pub async fn learn(&mut self, view: &View, arm: &Arm, deadline: Instant) {
        let questions = self.unknown(view, Instant::now()).into_iter().map(|id| {
            let arm = arm.clone();
            async move {
                let answer = arm.virtual_machine_of(&id, deadline).await;
                (id, answer)
            }
        });
        let mut answers = stream::iter(questions).buffer_unordered(AT_ONCE);
        while let Some((id, answer)) = answers.next().await {
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
}
