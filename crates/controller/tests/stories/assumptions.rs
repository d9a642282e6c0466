//! What the emulator assumes about Azure, the other way round: each random run draws every assumption by itself, from its seed.

use std::time::Duration;

use headgate_azure_emulator::{AdminStateNone, Deviation, Settings};
use headgate_test_kubernetes::{Random, fixed_seeds};
use serde_json::{Value, json};

use super::random::DEFAULT_RUNS;
use super::world::{GROUP, SECOND, World, load_balancer, pool_path};

/// Times of operations; in the last case each step of a run has another one.
const OPERATION_TIMES: [Option<Duration>; 4] = [
    Some(Duration::ZERO),
    Some(Duration::from_millis(200)),
    Some(Duration::from_secs(3)),
    None,
];
/// The longest of these.
const LONGEST_OPERATION: Duration = Duration::from_secs(6);
const POLL_RETRY_AFTER: [u64; 3] = [0, 1, 10];
const READ_LAGS: [Duration; 2] = [Duration::ZERO, Duration::from_secs(2)];
/// Each of them is on or off; the last one refuses writes.
const DEVIATIONS: [Deviation; 6] = [
    Deviation::SupersededChangesLost,
    Deviation::IfMatchIgnored,
    Deviation::PoolsStaySucceeded,
    Deviation::LoadBalancersStaySucceeded,
    Deviation::PoolsHaveOwnEtags,
    Deviation::SecondWriteRefused,
];
/// How many ways each assumption has: operation time, `Retry-After`, lag of reads, display of `None`, members by interface,
/// deviations.
const WAYS: [usize; 11] = [
    OPERATION_TIMES.len(),
    POLL_RETRY_AFTER.len(),
    READ_LAGS.len(),
    2,
    2,
    2,
    2,
    2,
    2,
    2,
    2,
];
/// Chosen so that every pair of ways is among the seeds that CI always runs.
const SALT: u64 = 0x520;

/// The assumptions of one run: the chosen way of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assumptions([usize; WAYS.len()]);

impl Assumptions {
    pub(crate) fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed ^ SALT);
        Self(WAYS.map(|ways| usize::try_from(random.below(ways as u64)).unwrap()))
    }

    /// The same, where another writer of the story relies on it that its writes are accepted.
    pub(crate) fn without_refusals(mut self) -> Self {
        self.0[WAYS.len() - 1] = 0;
        self
    }

    fn deviations(self) -> impl Iterator<Item = Deviation> {
        let ways = self.0.into_iter().skip(5);
        ways.zip(DEVIATIONS)
            .filter_map(|(way, deviation)| (way == 1).then_some(deviation))
    }

    pub(crate) fn settings(self) -> Settings {
        let [operation, poll, lag, none, ..] = self.0;
        Settings {
            operation_delay: OPERATION_TIMES[operation].unwrap_or(SECOND),
            poll_retry_after: POLL_RETRY_AFTER[poll],
            read_lag: READ_LAGS[lag],
            admin_state_none: [AdminStateNone::Omitted, AdminStateNone::Shown][none],
            deviations: self.deviations().collect(),
            ..Settings::default()
        }
    }

    /// The longest time of an operation until a leader sees its end.
    pub(crate) fn operation_time(self) -> Duration {
        let [operation, poll, lag, ..] = self.0;
        let longest = OPERATION_TIMES[operation].unwrap_or(LONGEST_OPERATION);
        longest + Duration::from_secs(POLL_RETRY_AFTER[poll]) + READ_LAGS[lag]
    }

    /// How many writes for each pool may be refused because a leader wrote from a read that lags: a read that shows the end of no
    /// operation shows the entity tag from before it too, and two refusals say that this tag was replaced.
    pub(crate) fn refused_writes(self) -> usize {
        let states_lie = [Deviation::PoolsStaySucceeded, Deviation::LoadBalancersStaySucceeded];
        let hidden = states_lie
            .iter()
            .all(|lie| self.deviations().any(|deviation| deviation == *lie));
        let lag = READ_LAGS[self.0[2]];
        if hidden && !lag.is_zero() { 2 } else { 0 }
    }

    /// Gives operations another time, where each step has its own.
    pub(crate) fn step(self, world: &World, random: &mut Random) {
        if OPERATION_TIMES[self.0[0]].is_none() {
            let longest = u64::try_from(LONGEST_OPERATION.as_millis()).unwrap();
            let delay = format!("{}ms", random.below(longest + 1));
            world.configure(&json!({"operationDelay": delay}));
        }
    }

    /// The internal load balancer with one pool of these nodes, by their addresses or by their interfaces.
    pub(crate) fn internal(self, pool: &str, nodes: &[usize]) -> Vec<Value> {
        let name = "kubernetes-internal";
        if self.0[4] == 0 {
            let entries = super::world::entries(nodes.iter().copied(), false);
            return vec![load_balancer(name, &[(pool, entries)])];
        }
        let mut document = load_balancer(name, &[(pool, json!([]))]);
        let properties = &mut document["properties"]["backendAddressPools"][0]["properties"];
        properties
            .as_object_mut()
            .unwrap()
            .remove("loadBalancerBackendAddresses");
        let pool = json!({"id": pool_path(name, pool)});
        let interface = |node: &usize| {
            json!({"id": format!("{GROUP}/providers/Microsoft.Network/networkInterfaces/node-{node}-nic"), "location": "eastus",
                "properties": {"virtualMachine": {"id": format!("{GROUP}/providers/Microsoft.Compute/virtualMachines/node-{node}")},
                    "ipConfigurations": [{"name": "ipconfig1", "properties": {"primary": true, "loadBalancerBackendAddressPools": [pool]}}]}})
        };
        let interfaces = nodes.iter().map(interface);
        [document].into_iter().chain(interfaces).collect()
    }
}

/// The node of a pool's entry, by the entry's name: that of the node, or of its interface.
pub(crate) fn node_of_entry(name: &str) -> Option<usize> {
    let (_, rest) = name.split_once("node-")?;
    let digits = rest.split(|character: char| !character.is_ascii_digit()).next()?;
    digits.parse().ok()
}

#[test]
fn every_pair_of_assumptions_is_among_the_runs_of_ci() {
    let drawn: Vec<_> = fixed_seeds(DEFAULT_RUNS)
        .map(|seed| Assumptions::draw(seed).0)
        .collect();
    for (one, other) in (0..WAYS.len()).flat_map(|one| (0..one).map(move |other| (one, other))) {
        for (way, beside) in (0..WAYS[one]).flat_map(|way| (0..WAYS[other]).map(move |beside| (way, beside))) {
            let is_there = drawn.iter().any(|ways| ways[one] == way && ways[other] == beside);
            assert!(is_there, "way {way} of assumption {one} with way {beside} of {other}");
        }
    }
    assert_eq!(node_of_entry("node-3"), node_of_entry("rg_node-3-nicipconfig1"));
}
