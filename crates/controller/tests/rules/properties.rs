//! What holds for every sequence of events, faults and foreign writes. `PROPTEST_CASES` sets how many are tried.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use headgate_controller::local_pools::{
    DesiredMember, DesiredMembers, Failure, MemberEdit, Node, NodeIndex, PoolKey, UpdaterSettings, merge, pool_name,
};
use headgate_core::service::{EndpointSliceObject, IpFamily};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::{Answer, INTERVAL, NETWORK, World, name, node, retriable, service, slice, throttled};

const SERVICES: [&str; 3] = ["default/web", "default/api", "other/web"];
const LOAD_BALANCERS: [&str; 2] = ["lb1", "lb2"];
const FOREIGN: &str = "172.16.0.77";
const MAX_RETRIES: u32 = 3;
/// Services of which two each have one pool name, with their families.
const NAMESAKES: [(&str, u8); 4] = [("a/b-c", 0), ("a-b/c", 0), ("x/foo-ipv6", 0), ("x/foo", 2)];

/// A random event.
#[derive(Clone, Debug)]
enum Step {
    /// A slice of a Service has endpoints on these nodes.
    Slice(usize, u8, Vec<u8>),
    DeleteSlice(usize, u8),
    /// The Service has this policy and these families.
    Service(usize, bool, u8),
    DeleteService(usize),
    /// cloud-controller-manager moves the Service to a load balancer.
    Move(usize, usize),
    /// A Node has these addresses, a signal, a label.
    Node(u8, u8, bool, bool),
    DeleteNode(u8),
    /// The next requests fail.
    Faults(Vec<u8>),
    LeaseIsHeld(bool),
    /// Another writer writes the pools as they were when this last happened.
    ForeignWrite,
    /// The load balancers are read.
    Observe,
    Tick,
    /// The leader ends; the next one begins with what it reads.
    NewLeader,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let service = 0..SERVICES.len();
    let step = prop_oneof![
        6 => (service.clone(), 0..3_u8, vec(1..8_u8, 0..5)).prop_map(|(service, slice, nodes)| Step::Slice(service, slice, nodes)),
        1 => (service.clone(), 0..3_u8).prop_map(|(service, slice)| Step::DeleteSlice(service, slice)),
        2 => (service.clone(), prop::bool::weighted(0.8), 0..3_u8).prop_map(|(service, local, families)| Step::Service(service, local, families)),
        1 => service.clone().prop_map(Step::DeleteService),
        1 => (service, 0..LOAD_BALANCERS.len()).prop_map(|(service, to)| Step::Move(service, to)),
        2 => (1..8_u8, 0..3_u8, any::<bool>(), prop::bool::weighted(0.1)).prop_map(|(node, subnet, draining, excluded)| Step::Node(node, subnet, draining, excluded)),
        1 => (1..8_u8).prop_map(Step::DeleteNode),
        3 => vec(0..10_u8, 1..6).prop_map(Step::Faults),
        1 => prop::bool::weighted(0.3).prop_map(Step::LeaseIsHeld),
        1 => Just(Step::ForeignWrite),
        2 => Just(Step::Observe),
        8 => Just(Step::Tick),
        1 => Just(Step::NewLeader),
    ];
    vec(step, 1..60)
}

/// What the cluster is, apart from what the updater knows.
#[derive(Default)]
struct ExpectedPools {
    services: BTreeMap<usize, (bool, u8)>,
    places: BTreeMap<usize, usize>,
    slices: BTreeMap<(usize, u8), Vec<u8>>,
    nodes: BTreeMap<u8, Node>,
    remembered: BTreeMap<PoolKey, Value>,
}

fn families(number: u8) -> &'static [IpFamily] {
    match number {
        0 => &[IpFamily::IPv4],
        1 => &[IpFamily::IPv6],
        _ => &[IpFamily::IPv4, IpFamily::IPv6],
    }
}

fn short_name(service: usize) -> &'static str {
    SERVICES[service].split_once('/').unwrap().1
}

fn slice_name(service: usize, slice: u8) -> String {
    format!("{}-{slice}", SERVICES[service])
}

fn slice_of(service: usize, number: u8, nodes: &[u8]) -> EndpointSliceObject {
    let nodes: Vec<String> = nodes.iter().map(|node| format!("n{node}")).collect();
    let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
    slice(&slice_name(service, number), short_name(service), &nodes)
}

fn failure(kind: u8) -> Answer {
    match kind {
        0..=2 => Answer::Fails(retriable()),
        3 => throttled(70),
        4 => Answer::Fails(Failure::Missing),
        5 | 6 => Answer::Fails(Failure::Terminal),
        7 | 8 => Answer::GateClosed(INTERVAL * 2),
        _ => Answer::Ok,
    }
}

/// Every pool of these Services in both load balancers, with a foreign entry, and rules where the Service is.
fn make_pools(world: &mut World) {
    for (load_balancer, service, family) in all_pools() {
        let pool = pool_name(&name(SERVICES[service]), family);
        let foreign = json!({"name": "vm", "kept": [1], "properties": {"ipAddress": FOREIGN, "adminState": "Up"}});
        let document =
            json!({"name": pool, "newer": {"x": 1}, "properties": {"loadBalancerBackendAddresses": [foreign]}});
        world
            .pools
            .insert(PoolKey::new(LOAD_BALANCERS[load_balancer], &pool), document);
    }
}

fn all_pools() -> impl Iterator<Item = (usize, usize, IpFamily)> {
    let places = (0..LOAD_BALANCERS.len()).flat_map(|place| (0..SERVICES.len()).map(move |service| (place, service)));
    places.flat_map(|(place, service)| families(2).iter().map(move |family| (place, service, *family)))
}

impl ExpectedPools {
    /// The Service's rules are where cloud-controller-manager has placed it.
    fn place(&self, world: &mut World) {
        world.rules.clear();
        for (place, service_place, family) in all_pools() {
            let placed = self.places.get(&service_place).copied().unwrap_or_default() == place;
            let is_local = self.services.get(&service_place).is_some_and(|(is_local, _)| *is_local);
            if placed && is_local {
                let pool = pool_name(&name(SERVICES[service_place]), family);
                let object = service(SERVICES[service_place], &[]);
                world.add_pool(LOAD_BALANCERS[place], &pool, &object.uid);
            }
        }
    }

    /// The updater of a new leader, with everything that there is.
    fn feed_all(&self, world: &mut World) {
        world.updater = headgate_controller::local_pools::Updater::new(UpdaterSettings::default());
        for node in self.nodes.values() {
            world.updater.apply_node(node.clone());
        }
        world.complete_lists();
        for (index, (is_local, kind)) in &self.services {
            let mut object = service(SERVICES[*index], families(*kind));
            object.is_local = *is_local;
            world.updater.apply_service(&object.into());
        }
        for ((service, number), nodes) in &self.slices {
            world.updater.apply_slice(&slice_of(*service, *number, nodes));
        }
        world.observe();
    }

    /// The members that may stay because more than half of the nodes with an endpoint are unknown.
    fn may_stay(&self, service: usize, family: IpFamily) -> BTreeSet<String> {
        let mine = self.slices.iter().filter(|((owner, _), _)| *owner == service);
        let nodes: BTreeSet<u8> = mine.flat_map(|(_, nodes)| nodes).copied().collect();
        let unknown: Vec<_> = nodes.iter().filter(|number| !self.nodes.contains_key(number)).collect();
        if unknown.len() * 2 <= nodes.len() {
            return BTreeSet::new();
        }
        let addresses = unknown.iter().flat_map(|number| {
            (0..3).flat_map(move |subnet| {
                [
                    format!("10.0.{subnet}.{number}"),
                    format!("fd00:{subnet}::{number}"),
                    format!("fd00::{number}"),
                ]
            })
        });
        let addresses = addresses.map(|text| text.parse::<IpAddr>().unwrap());
        addresses
            .filter(|address| IpFamily::from(*address) == family)
            .map(|address| address.to_string())
            .collect()
    }

    /// The addresses that a pool is to have, computed in another way than the updater does.
    fn expected(&self, service: usize, family: IpFamily) -> Option<BTreeSet<String>> {
        let mine = self.slices.iter().filter(|((owner, _), _)| *owner == service);
        let slices: Vec<_> = mine.map(|(_, nodes)| nodes).collect();
        if slices.is_empty() {
            return None;
        }
        let nodes: BTreeSet<u8> = slices.into_iter().flatten().copied().collect();
        let present = nodes.iter().filter_map(|number| self.nodes.get(number));
        let included = present.filter(|node| node.excluded_by.is_none());
        let addresses = included.flat_map(|node| node.internal_addresses.iter());
        let of_family = addresses.filter(|address| IpFamily::from(**address) == family);
        Some(of_family.map(IpAddr::to_string).collect())
    }

    fn apply(&mut self, step: Step, world: &mut World) {
        match step {
            Step::Slice(service, number, nodes) => {
                world.updater.apply_slice(&slice_of(service, number, &nodes));
                self.slices.insert((service, number), nodes);
            }
            Step::DeleteSlice(service, number) => {
                world.updater.delete_slice(&name(&slice_name(service, number)));
                self.slices.remove(&(service, number));
            }
            Step::Service(index, is_local, kind) => {
                self.services.insert(index, (is_local, kind));
                let mut object = service(SERVICES[index], families(kind));
                object.is_local = is_local;
                world.updater.apply_service(&object.into());
                self.place(world);
            }
            Step::DeleteService(index) => {
                self.services.remove(&index);
                world.updater.delete_service(&name(SERVICES[index]));
                self.place(world);
            }
            Step::Move(service, to) => {
                self.places.insert(service, to);
                self.place(world);
            }
            Step::Node(number, subnet, is_draining, is_excluded) => {
                let addresses = [format!("10.0.{subnet}.{number}"), format!("fd00:{subnet}::{number}")];
                let mut object = node(&format!("n{number}"), &addresses.each_ref().map(String::as_str));
                object.is_draining = is_draining;
                object.excluded_by = is_excluded.then_some("kubernetes.azure.com/managed");
                self.nodes.insert(number, object.clone());
                world.updater.apply_node(object);
            }
            Step::DeleteNode(number) => {
                self.nodes.remove(&number);
                world.updater.delete_node(&format!("n{number}"));
            }
            Step::Faults(kinds) => {
                for (place, kind) in kinds.into_iter().enumerate() {
                    let answers = if place % 2 == 0 {
                        &mut world.gets
                    } else {
                        &mut world.puts
                    };
                    answers.push_back(failure(kind));
                }
            }
            Step::LeaseIsHeld(is_held) => world.lease_is_held = is_held,
            Step::ForeignWrite => {
                let before = std::mem::replace(&mut self.remembered, world.pools.clone());
                world.pools.extend(before);
            }
            Step::Observe => world.observe(),
            Step::Tick => world.tick(),
            Step::NewLeader => self.feed_all(world),
        }
    }
}

fn foreign_entries(document: &Value) -> Vec<&Value> {
    let entries = document["properties"]["loadBalancerBackendAddresses"]
        .as_array()
        .unwrap();
    entries.iter().filter(|entry| entry["name"] == "vm").collect()
}

proptest! {
    /// After any history, one reading and the ticks of one resync bring every used pool to its members.
    #[test]
    fn pools_converge_after_any_history(history in steps()) {
        let mut world = World::with_settings(UpdaterSettings::default());
        let mut truth = ExpectedPools::default();
        for number in 1..=9_u8 {
            let addresses = [format!("10.0.0.{number}"), format!("fd00::{number}")];
            truth.nodes.insert(number, node(&format!("n{number}"), &addresses.each_ref().map(String::as_str)));
        }
        make_pools(&mut world);
        let untouched = world.pools.values().next().map(|document| foreign_entries(document)[0].clone()).unwrap();
        for step in history {
            truth.apply(step, &mut world);
            let limit = SERVICES.len() * LOAD_BALANCERS.len() * 2;
            prop_assert!(world.updater.queue().len() <= limit);
            for operation in world.updater.queue().iter() {
                prop_assert!(operation.retry_count <= MAX_RETRIES);
            }
            let mut keys: Vec<_> = world.updater.queue().iter().map(|operation| operation.key.clone()).collect();
            keys.sort();
            keys.dedup();
            prop_assert_eq!(keys.len(), world.updater.queue().len());
        }
        world.gets.clear();
        world.puts.clear();
        world.lease_is_held = false;
        // What a deleted Node left before this leader began is cloud-controller-manager's to remove: it does so.
        let known = world.updater.nodes();
        for document in world.pools.values_mut() {
            let entries = document["properties"]["loadBalancerBackendAddresses"].as_array_mut().unwrap();
            entries.retain(|entry| {
                let address: IpAddr = entry["properties"]["ipAddress"].as_str().unwrap().parse().unwrap();
                entry["name"] == "vm" || known.owns_entry(entry["name"].as_str(), address)
            });
        }
        world.observe();
        world.ticks(12);
        for (index, (is_local, kind)) in &truth.services {
            let place = truth.places.get(index).copied().unwrap_or_default();
            for family in families(*kind) {
                let Some(mut expected) = truth.expected(*index, *family) else { continue };
                expected.insert(FOREIGN.to_owned());
                let pool = pool_name(&name(SERVICES[*index]), *family);
                let found: BTreeSet<_> = world.addresses(LOAD_BALANCERS[place], &pool).into_iter().collect();
                if *is_local {
                    let may_stay = truth.may_stay(*index, *family);
                    let found = found.into_iter().filter(|address| !may_stay.contains(address) || expected.contains(address));
                    prop_assert_eq!(found.collect::<BTreeSet<_>>(), expected, "{} {}", LOAD_BALANCERS[place], pool);
                }
            }
        }
        for document in world.pools.values() {
            prop_assert_eq!(foreign_entries(document), vec![&untouched]);
            prop_assert_eq!(&document["newer"], &json!({"x": 1}));
            let entries = document["properties"]["loadBalancerBackendAddresses"].as_array().unwrap();
            let names: BTreeSet<_> = entries.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
            prop_assert_eq!(names.len(), entries.len(), "names are unique");
            prop_assert!(!names.contains(""));
        }
        prop_assert!(world.updater.queue().is_empty());
        let status = world.updater.queue_status(world.now);
        prop_assert_eq!((status.depth, status.parked_pools), (0, 0));
        let calls = world.calls.len();
        world.tick();
        prop_assert_eq!(world.calls.len(), calls, "nothing is left to do");
    }

    /// Whatever rules use the pools of Services with one pool name: a pool belongs to one Service, and one update of it is due.
    #[test]
    fn a_pool_has_one_update_at_most(history in vec((0..2_usize, 0..2_usize, 0..8_u8, 1..8_u8, any::<bool>()), 1..30)) {
        let mut world = World::new();
        for (text, kind) in NAMESAKES {
            world.updater.apply_service(&service(text, families(kind)).into());
        }
        for (place, pool, used_by, node, is_taken) in history {
            let key = PoolKey::new(LOAD_BALANCERS[place], ["a-b-c", "x-foo-ipv6"][pool]);
            world.pools.remove(&key);
            world.rules.remove(&key);
            for (bit, (text, _)) in NAMESAKES[2 * pool..][..2].iter().chain([&("other/web", 0)]).enumerate() {
                if used_by & 1 << bit != 0 {
                    world.add_pool(key.load_balancer(), key.pool(), &crate::world::uid(text));
                }
            }
            for (text, _) in NAMESAKES {
                let short_name = text.split_once('/').unwrap().1;
                world.updater.apply_slice(&slice(&format!("{text}-1"), short_name, &[&format!("n{node}")]));
            }
            world.observe();
            world.now += INTERVAL;
            world.prepare_tick();
            world.updater.drain(world.now);
            let placed = NAMESAKES.iter().flat_map(|(text, _)| world.updater.placement().pools(&name(text)));
            let placed: Vec<_> = placed.map(|pool| &pool.key.pool).collect();
            prop_assert_eq!(placed.iter().collect::<BTreeSet<_>>().len(), placed.len(), "{:?}", placed);
            for (pool, due) in world.updater.due() {
                prop_assert!(*pool == due.key.pool && world.updater.placement().contains(&due.key), "{due:?}");
            }
            let due = is_taken.then(|| world.updater.take_due(&key)).flatten();
            if let Some(due) = due {
                world.updater.settle(due, &crate::world::failed(retriable()), world.now);
            }
        }
    }

    /// A retriable failure that does not end is tried as often as the budget says, and reported once for each attempt.
    /// What was not sent costs nothing.
    #[test]
    fn the_budget_is_never_exceeded(retries in 0..6_u32, kinds in vec(prop::sample::select(vec![0_u8, 1, 2, 3, 7, 8]), 10)) {
        let mut world = World::with_pending_update(UpdaterSettings {
            max_retries: retries,
            resync_interval: INTERVAL * 1000,
            ..UpdaterSettings::default()
        });
        // Enough failures for each budget, however often the gate is closed.
        let kinds: Vec<_> = kinds.into_iter().chain([0; 6]).collect();
        for kind in &kinds {
            world.puts.push_back(failure(*kind));
        }
        world.ticks(60);
        let attempts = usize::try_from(retries).unwrap() + 1;
        let puts = world.calls.iter().filter(|call| **call == crate::world::Call::Put).count();
        let sent = kinds.iter().take(puts).filter(|kind| !matches!(kind, 7 | 8)).count();
        prop_assert_eq!((sent, world.events.len()), (attempts, attempts));
        prop_assert_eq!(world.outcomes(), (0, 1));
    }

    /// Whatever ARM sends as a pool, a merge neither panics nor changes a document that it rejects.
    #[test]
    fn merge_never_panics_on_malformed_documents(value in json_value(), at in 0..4_u8) {
        let mut document = match at {
            0 => value.clone(),
            1 => json!({"properties": value}),
            2 => json!({"properties": {"loadBalancerBackendAddresses": value}}),
            _ => json!({"properties": {"loadBalancerBackendAddresses": [value]}}),
        };
        let before = document.clone();
        let nodes = NodeIndex::default();
        let members: DesiredMembers = [DesiredMember { address: [10, 0, 0, 1].into(), node: "n1".into(), is_draining: true, is_leaving: false }].into_iter().collect();
        let edit = MemberEdit { desired: &members, nodes: &nodes, virtual_network: Some(NETWORK) };
        let merged = merge(&mut document, &edit);
        prop_assert_eq!(merged.is_changed(), document != before);
        prop_assert!(merged.rejected.is_some() != merged.is_changed());
    }
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z0-9.:]{0,9}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("properties".to_owned()),
        Just("name".to_owned()),
        Just("ipAddress".to_owned()),
        Just("virtualNetwork".to_owned()),
        Just("id".to_owned()),
        Just("loadBalancerBackendAddresses".to_owned()),
    ];
    leaf.prop_recursive(4, 24, 4, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}
