//! The disturbances of a run: a pure function of the seed. What an action meets (who leads, which Services there are) is decided when it is
//! carried out; numbers without a bound are taken modulo what is there.

use std::time::Duration;

use fastrand::Rng;
use serde::Serialize;

/// Between two small disturbances.
const SMALL_INTERVAL: Duration = Duration::from_millis(1500);
/// Between two large ones, in seconds.
const LARGE_INTERVAL: std::ops::Range<u64> = 18..36;
/// The time of a leader that stands still beyond its Lease, in seconds.
const BEYOND_LEASE: u64 = 25;
/// The controllers, each on a machine with a clock of its own.
pub(crate) const CONTROLLERS: usize = 3;
/// A clock is ahead or behind by so many seconds at most: less than the shared Lease lasts, which is compared with the wall clock.
pub(crate) const MAX_CLOCK_ERROR: i64 = 600;

/// A disturbance, and when in its round it begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Step {
    pub(crate) milliseconds: u64,
    pub(crate) action: Action,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Action {
    /// Gives a node a signal, or takes back the one that it has.
    Signal {
        node: usize,
        signal: usize,
    },
    /// Adds or removes an endpoint of a `Local` Service.
    MoveEndpoint {
        service: usize,
        node: usize,
    },
    /// Adds or removes a port of the Service of all nodes.
    ChangePorts,
    /// Creates a `Local` Service, or deletes one of many.
    ChangeServices {
        node: usize,
    },
    /// A fault of ARM.
    Fault {
        rule: usize,
    },
    /// The wall clock of a controller's machine jumps.
    JumpClock {
        controller: usize,
        seconds: i64,
    },
    KillLeader,
    KillFollower {
        which: usize,
    },
    FreezeLeader {
        seconds: u64,
    },
    FreezeFollower {
        which: usize,
        seconds: u64,
    },
    FreezeApiServer {
        seconds: u64,
    },
    RestartApiServer {
        seconds: u64,
    },
    /// Copies etcd's data.
    Snapshot,
    /// Puts the copy back.
    Restore,
    RestartCloudControllerManager,
    /// Deletes a Node and creates it again under its name, with another address where `moves` is set.
    RecreateNode {
        node: usize,
        seconds: u64,
        moves: bool,
    },
}

impl Action {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Signal { .. } => "signals",
            Self::MoveEndpoint { .. } => "endpoints moved",
            Self::ChangePorts => "ports changed",
            Self::ChangeServices { .. } => "Services created or deleted",
            Self::Fault { .. } => "faults of ARM",
            Self::JumpClock { seconds: ..0, .. } => "clocks jumped backwards",
            Self::JumpClock { .. } => "clocks jumped forwards",
            Self::KillLeader => "leaders killed",
            Self::KillFollower { .. } => "followers killed",
            Self::FreezeLeader { seconds } if seconds >= BEYOND_LEASE => "leaders frozen beyond their Lease",
            Self::FreezeLeader { .. } => "leaders frozen for seconds",
            Self::FreezeFollower { .. } => "followers frozen",
            Self::FreezeApiServer { .. } => "kube-apiserver frozen",
            Self::RestartApiServer { .. } => "kube-apiserver restarted",
            Self::Snapshot => "snapshots of etcd",
            Self::Restore => "restores of etcd",
            Self::RestartCloudControllerManager => "cloud-controller-manager restarted",
            Self::RecreateNode { moves: true, .. } => "Nodes created again with another address",
            Self::RecreateNode { .. } => "Nodes created again",
        }
    }
}

/// The jumps of a round, in which all clocks are right at first: by how much each is ahead.
#[derive(Debug, Default)]
struct Clocks([i64; CONTROLLERS]);

impl Clocks {
    /// Makes one wrong by seconds or by minutes, or right again.
    fn jump(&mut self, random: &mut Rng) -> Action {
        let controller = random.usize(..CONTROLLERS);
        let error = match random.u8(..4) {
            0 if self.0[controller] != 0 => 0,
            3 => random.i64(60..=MAX_CLOCK_ERROR),
            _ => random.i64(1..60),
        };
        let error = if random.bool() { error } else { -error };
        let seconds = error - std::mem::replace(&mut self.0[controller], error);
        Action::JumpClock { controller, seconds }
    }
}

fn small(random: &mut Rng, clocks: &mut Clocks) -> Action {
    let node = random.usize(..1000);
    match random.u8(..18) {
        0..8 => Action::Signal {
            node,
            signal: random.usize(..1000),
        },
        8..11 => Action::MoveEndpoint {
            service: random.usize(..1000),
            node,
        },
        11 => Action::ChangePorts,
        12 => Action::ChangeServices { node },
        13 | 14 => clocks.jump(random),
        _ => Action::Fault {
            rule: random.usize(..1000),
        },
    }
}

/// Each large disturbance once, in any order.
fn large(random: &mut Rng) -> Vec<Action> {
    let which = random.usize(..1000);
    let (node, seconds) = (random.usize(..1000), random.u64(..12));
    let mut actions = vec![
        Action::KillLeader,
        Action::KillFollower { which },
        Action::FreezeLeader { seconds: BEYOND_LEASE },
        Action::FreezeLeader {
            seconds: random.u64(3..14),
        },
        Action::FreezeFollower {
            which,
            seconds: BEYOND_LEASE,
        },
        Action::FreezeApiServer {
            seconds: random.u64(3..22),
        },
        Action::RestartApiServer {
            seconds: random.u64(..8),
        },
        Action::Snapshot,
        Action::RestartCloudControllerManager,
        Action::RecreateNode {
            node,
            seconds,
            moves: false,
        },
        Action::RecreateNode {
            node: node + 1,
            seconds,
            moves: true,
        },
    ];
    random.shuffle(&mut actions);
    actions
}

/// The disturbances of a round, in order. A snapshot is restored some time later, with no other large disturbance in between.
pub(crate) fn round(seed: u64, round: u64, length: Duration) -> Vec<Step> {
    let mut random = Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(round));
    let end = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let interval = u64::try_from(SMALL_INTERVAL.as_millis()).unwrap_or(u64::MAX);
    let mut clocks = Clocks::default();
    let mut steps: Vec<Step> = (0..end / interval)
        .map(|number| Step {
            milliseconds: number * interval,
            action: small(&mut random, &mut clocks),
        })
        .collect();
    let mut milliseconds = 8_000;
    for action in large(&mut random) {
        let mut add = |milliseconds, action| {
            if milliseconds < end {
                steps.push(Step { milliseconds, action });
            }
        };
        add(milliseconds, action);
        milliseconds += random.u64(LARGE_INTERVAL) * 1000;
        if action == Action::Snapshot {
            add(milliseconds, Action::Restore);
            milliseconds += LARGE_INTERVAL.end * 1000;
        }
    }
    steps.sort_by_key(|step| step.milliseconds);
    steps
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const LENGTH: Duration = Duration::from_mins(4);

    #[test]
    fn a_seed_gives_its_disturbances() {
        assert_eq!(round(7, 3, LENGTH), round(7, 3, LENGTH));
        assert_ne!(round(7, 3, LENGTH), round(7, 4, LENGTH));
        assert_ne!(round(7, 3, LENGTH), round(8, 3, LENGTH));
    }

    #[test]
    fn some_rounds_have_every_disturbance() {
        let steps: Vec<Step> = (0..8).flat_map(|number| round(1, number, LENGTH)).collect();
        let names: BTreeSet<&str> = steps.iter().map(|step| step.action.name()).collect();
        assert_eq!(names.len(), 19, "{names:?}");
        assert!(steps.iter().all(|step| step.milliseconds < 240_000));
    }

    #[test]
    fn clocks_jump_by_seconds_and_minutes_both_ways_and_stay_within_their_bound() {
        let (mut jumps, mut corrections) = (Vec::new(), 0);
        for number in 0..50 {
            let mut ahead = [0; CONTROLLERS];
            for step in round(3, number, LENGTH) {
                let Action::JumpClock { controller, seconds } = step.action else {
                    continue;
                };
                ahead[controller] += seconds;
                assert!(ahead[controller].abs() <= MAX_CLOCK_ERROR, "round {number}: {ahead:?}");
                corrections += usize::from(ahead[controller] == 0);
                jumps.push(seconds);
            }
        }
        for range in [-1200..-60, -60..0, 1..60, 60..1201] {
            assert!(
                jumps.iter().any(|seconds| range.contains(seconds)),
                "{range:?}: {jumps:?}"
            );
        }
        assert!(corrections > 0, "{jumps:?}");
    }

    #[test]
    fn nothing_large_is_between_a_snapshot_and_its_restore() {
        for number in 0..50 {
            let steps = round(2, number, LENGTH);
            let is_small = |step: &Step| {
                let small = [
                    "signals",
                    "endpoints moved",
                    "ports changed",
                    "Services created or deleted",
                    "faults of ARM",
                    "clocks jumped backwards",
                    "clocks jumped forwards",
                ];
                small.contains(&step.action.name())
            };
            let large: Vec<_> = steps.iter().filter(|step| !is_small(step)).collect();
            for pair in large.windows(2) {
                assert_eq!(
                    pair[0].action == Action::Snapshot,
                    pair[1].action == Action::Restore,
                    "round {number}: {pair:?}"
                );
            }
        }
    }
}
