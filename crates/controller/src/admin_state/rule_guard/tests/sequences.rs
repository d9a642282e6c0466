//! Random clusters, with two leaders that know the Nodes and the Services as of different times. Whatever they know, what they write
//! leaves every rule an entry that serves it by what they know; and once all is calm, nothing of headgate's is `Down`.

use headgate_test_kubernetes::{Random, number_from};

use super::super::super::fixtures::{guarded_by, plan_inputs, write};
use super::super::super::ledger::Ledger;
use super::super::super::target_states::TargetStates;
use super::*;

const DEFAULT_SEQUENCES: u64 = 500;
const STEPS: u64 = 40;
const PORTS: [u16; 3] = [32000, 32001, 32002];
const SERVICES: [&str; 3] = ["web", "api", "www"];

/// What is true of a node.
#[derive(Clone, Debug)]
struct Machine {
    number: u8,
    taints: Vec<&'static str>,
    ready: bool,
    /// Which Services have a ready endpoint here.
    serves: [bool; 3],
}

impl Machine {
    fn is_terminal(&self) -> bool {
        self.taints.contains(&OUT)
    }
}

/// A leader, and what it knows so far.
struct Leader {
    targets: TargetStates,
    known: Vec<Machine>,
    /// What it knows of endpoints, by node.
    known_serves: Vec<[bool; 3]>,
    services: ServiceIndex,
    held: HeldEntries,
}

struct World {
    machines: Vec<Machine>,
    /// The admin states in the pool, by node.
    states: Vec<&'static str>,
    ledger: Ledger,
    leaders: [Leader; 2],
    /// How many of `SERVICES` exist, with rules in the pool.
    services: usize,
    now: Moment,
    /// The writes that set an entry `Down`, and the plans that held one back.
    takes: u64,
    holds: u64,
}

impl Leader {
    /// A leader that has just listed everything, or one that cannot list Services yet.
    fn new(world: (&[Machine], usize), knows_services: bool, now: Moment) -> Self {
        let mut leader = Self {
            targets: TargetStates::default(),
            known: Vec::new(),
            known_serves: vec![[false; 3]; world.0.len()],
            services: ServiceIndex::default(),
            held: HeldEntries::new(),
        };
        leader.list_nodes(world.0, now);
        if knows_services {
            leader.list_services(world.0, world.1, now);
        }
        leader
    }

    fn list_nodes(&mut self, machines: &[Machine], now: Moment) {
        self.known = machines.to_vec();
        for machine in machines {
            let known = ClusterNode {
                ready: machine.ready,
                ..node(machine.number, &machine.taints)
            };
            self.targets.apply(known, now);
        }
        self.targets.advance_generation(now);
    }

    fn list_services(&mut self, machines: &[Machine], count: usize, now: Moment) {
        let serving = |service: usize| {
            let serving = machines.iter().filter(|machine| machine.serves[service]);
            serving.map(|machine| machine.number).collect::<Vec<_>>()
        };
        let serving: Vec<_> = (0..count).map(serving).collect();
        let services: Vec<_> = (0..count)
            .map(|service| (SERVICES[service], PORTS[service], &*serving[service]))
            .collect();
        self.services = index(&services, now);
        self.known_serves = machines.iter().map(|machine| machine.serves).collect();
    }
}

impl World {
    fn new(random: &mut Random) -> Self {
        let now = Clock::System.now();
        let count = 2 + random.below(4);
        let services = 1 + usize::try_from(random.below(3)).unwrap();
        let machine = |number| Machine {
            number: u8::try_from(number).unwrap(),
            taints: Vec::new(),
            ready: true,
            serves: std::array::from_fn(|_| random.below(3) == 0),
        };
        let machines: Vec<_> = (1..=count).map(machine).collect();
        let leaders = [(); 2].map(|()| Leader::new((&machines, services), true, now));
        Self {
            states: vec!["None"; machines.len()],
            machines,
            ledger: Ledger::default(),
            leaders,
            services,
            now,
            takes: 0,
            holds: 0,
        }
    }

    fn view(&self) -> LoadBalancerView {
        let entries: Vec<_> = (1..).zip(self.states.iter().copied()).collect();
        let mut probes = vec![("Http", 10456), ("Tcp", 31000)];
        probes.extend(PORTS.iter().take(self.services).map(|port| ("Http", *port)));
        view(&entries, &probes)
    }

    /// A leader plans from a fresh read, which the `ETag` guarantees, and writes. Returns whether it wrote.
    fn write(&mut self, leader: usize) -> bool {
        let view = self.view();
        let acting = &mut self.leaders[leader];
        let settings = GuardSettings {
            minimum_in_service: IntOrPercent::Int(1),
            health_port: 10456,
            ..GuardSettings::DISABLED
        };
        let plan = plan(
            &view,
            &PlanInputs {
                guard: GuardInputs {
                    held: &acting.held,
                    services: Some(&acting.services),
                    ..guarded_by(&settings)
                },
                ..plan_inputs(&acting.targets, &self.ledger, self.now)
            },
        );
        let held = plan.entries.iter().filter(|entry| entry.is_held_back);
        acting.held = held.map(|entry| (entry.pool.clone(), entry.node.uid.clone())).collect();
        self.holds += u64::from(!acting.held.is_empty());
        let before = self.states.clone();
        let down = write(&plan, &mut self.states, &mut self.ledger, self.now.wall);
        self.takes += u64::from(!down.is_empty());
        self.check_write(leader, &before);
        before != self.states
    }

    /// What a leader wrote, against what it knows.
    fn check_write(&self, leader: usize, before: &[&str]) {
        let leader = &self.leaders[leader];
        let newly_down = |index: usize| before[index] != "Down" && self.states[index] == "Down";
        let is_revocable = |index: usize| !leader.known[index].is_terminal();
        if leader.services.unknown().is_some() {
            let taken = (0..before.len()).find(|index| newly_down(*index) && is_revocable(*index));
            assert_eq!(
                taken, None,
                "taken although the Services are not known: {before:?} {:?}",
                self.states
            );
            return;
        }
        let serves = |states: &[&str], service: usize| {
            (0..states.len())
                .any(|index| states[index] != "Down" && is_revocable(index) && leader.known_serves[index][service])
        };
        for (service, name) in SERVICES.iter().enumerate().take(self.services) {
            let is_cut = serves(before, service) && !serves(&self.states, service);
            assert!(
                !is_cut,
                "{name} is cut: {before:?} becomes {:?}, known {:?}",
                self.states, leader.known
            );
        }
        let works = |states: &[&str]| {
            (0..states.len()).any(|index| states[index] != "Down" && is_revocable(index) && leader.known[index].ready)
        };
        assert!(
            !works(before) || works(&self.states),
            "the pool is empty: {before:?} {:?}",
            self.states
        );
    }

    /// A leader learns everything, and writes until nothing is due.
    fn settle(&mut self, leader: usize) {
        let (machines, services) = (self.machines.clone(), self.services);
        let acting = &mut self.leaders[leader];
        acting.list_nodes(&machines, self.now);
        acting.list_services(&machines, services, self.now);
        self.pass(2);
        for _ in 0..8 {
            if !self.write(leader) {
                return self.check_settled();
            }
        }
        panic!("the plans do not converge: {:?} {:?}", self.states, self.machines);
    }

    /// Every rule that a node could serve is served.
    fn check_settled(&self) {
        for (service, name) in SERVICES.iter().enumerate().take(self.services) {
            let mut able = self
                .machines
                .iter()
                .filter(|machine| machine.serves[service] && !machine.is_terminal());
            let could = able.clone().next().is_some();
            let does = able.any(|machine| self.states[usize::from(machine.number) - 1] != "Down");
            assert!(
                !could || does,
                "{name} has no entry: {:?} {:?}",
                self.states,
                self.machines
            );
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now.mono += Duration::from_secs(seconds);
        self.now.wall += Duration::from_secs(seconds);
        let now = self.now;
        for leader in &mut self.leaders {
            leader.targets.advance_generation(now);
        }
    }

    fn step(&mut self, random: &mut Random) {
        let at = usize::try_from(random.below(self.machines.len() as u64)).unwrap();
        let leader = usize::try_from(random.below(2)).unwrap();
        let (machines, services, now) = (self.machines.clone(), self.services, self.now);
        match random.below(14) {
            0 | 1 => self.machines[at].taints = vec![DRAIN],
            2 => self.machines[at].taints = vec![OUT],
            3 => self.machines[at].taints = vec![DRAIN, OUT],
            4 => self.machines[at].taints.clear(),
            5 => self.machines[at].ready = !machines[at].ready,
            6 | 7 => {
                let service = usize::try_from(random.below(3)).unwrap();
                self.machines[at].serves[service] = !machines[at].serves[service];
            }
            8 => self.leaders[leader].list_nodes(&machines, now),
            9 => self.leaders[leader].list_services(&machines, services, now),
            10 => self.leaders[leader].services.set_stale(Some("services")),
            11 => self.leaders[leader] = Leader::new((&machines, services), random.below(2) == 0, now),
            12 => self.settle(leader),
            _ => self.pass(*random.pick(&[1, 2, 3, 20, 60])),
        }
        // Most of the time one leads; the other's writes are late.
        let writer = usize::from(random.below(5) == 0);
        if random.below(3) > 0 {
            self.write(writer);
        }
    }

    /// All signals end, and so does every `Down`.
    fn calm_down(&mut self, random: &mut Random) {
        for machine in &mut self.machines {
            (machine.taints, machine.ready) = (Vec::new(), true);
        }
        self.settle(usize::try_from(random.below(2)).unwrap());
        // Signals that flapped count until now.
        self.pass(30);
        self.settle(usize::try_from(random.below(2)).unwrap());
        assert!(self.states.iter().all(|state| *state == "None"), "{:?}", self.states);
    }
}

#[test]
fn no_rule_loses_its_last_entry_and_nothing_stays_down() {
    let sequences = number_from("HEADGATE_SEQUENCES").unwrap_or(DEFAULT_SEQUENCES);
    let (mut takes, mut holds) = (0, 0);
    for seed in 0..sequences {
        let result = std::panic::catch_unwind(|| {
            let mut random = Random::new(seed);
            let mut world = World::new(&mut random);
            for _ in 0..STEPS {
                world.step(&mut random);
            }
            world.calm_down(&mut random);
            (world.takes, world.holds)
        });
        match result {
            Ok(counts) => (takes, holds) = (takes + counts.0, holds + counts.1),
            Err(panic) => {
                eprintln!("sequence {seed} failed");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{sequences} sequences of {STEPS} steps: {takes} writes of Down, {holds} plans that held an entry back");
    assert!(takes > 0 && holds > 0);
}
