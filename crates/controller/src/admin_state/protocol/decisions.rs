//! Where the model asks the product: the plan, the edit and the merge of members, the intents, the ledger's stages, its merge after a
//! conflict, its expiry, and what an error of ARM's means. The values of the model become Nodes, documents and ledgers, and back.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use headgate_azure::{AdminState, ArmError, PoolDraft, PoolId};
use headgate_core::clock::{Clock, Moment};
use headgate_core::settings::IntOrPercent;
use jiff::Timestamp;

use super::super::fixtures::{
    DRAIN, OUT, guarded_by, ledger_change, local_services, node, plan_inputs, planned, pool_id, probed_load_balancer,
    status, target_states,
};
use super::super::guard::{GuardInputs, GuardSettings, HeldEntries};
use super::super::last_reads::LastReads;
use super::super::ledger::{Ledger, LedgerChange, LedgerEntry, LedgerStage, Observation, ObservedState};
use super::super::plan::{Plan, PlanInputs, plan};
use super::super::planner::{has_no_effect, intents};
use super::super::settings::AdminStateMode;
use super::super::target_states::TargetStates;
use super::super::transitions::TransitionTracker;
use super::state::{ENTRIES, Entry, Mask, Pool, Record, Records, Signal, Signals, Stage, Stages, has, mask};
use crate::local_pools::{DesiredMember, Node as MemberNode, NodeIndex, join_members};
use crate::pool::fixtures::refused;
use crate::pool::{ClusterNode, EntryKey, Listing, LoadBalancerView, MemberChange, PoolEdit};
use crate::service_index::ServiceIndex;

const POOL: &str = "p";
const SERVICE: &str = "web";
const SERVICE_PORT: u16 = 32000;
/// One rule probes headgate, the other one the Service.
const PROBES: &[(&str, u16)] = &[("Http", 10456), ("Http", SERVICE_PORT)];

/// What a leader plans from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Known {
    pub(super) nodes: usize,
    pub(super) signals: Signals,
    pub(super) serving: Option<Mask>,
    pub(super) pool: Pool,
    pub(super) ledger: Stages,
    pub(super) held: Mask,
    pub(super) is_guarded: bool,
    /// Whether the pool is to have the nodes with an endpoint as its members.
    pub(super) has_members: bool,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// The document to write; `None` if nothing is due.
    pub(super) pool: Option<Pool>,
    /// Whether the ledger is written first.
    pub(super) needs_record: bool,
    /// The ledger with the intents.
    pub(super) intended: Stages,
    /// What these entries had in the ledger before.
    pub(super) undo: [Option<Stage>; ENTRIES],
    pub(super) held: Mask,
    /// The ledger with the stages that this read proves.
    pub(super) reported: Stages,
}

pub(super) fn decide(known: &Known) -> Decision {
    let now = now();
    let planned = Planned::new(known, now);
    let view = LoadBalancerView::new(&probed_load_balancer(&texts(&known.pool), PROBES)).unwrap();
    let plan = planned.plan(&view, now);
    let held = held_back(&plan);
    let edit = planned.edit(&plan, &view, now);
    let mut decision = Decision {
        pool: None,
        needs_record: false,
        intended: known.ledger,
        undo: [None; ENTRIES],
        held,
        reported: planned.reported(plan, now),
    };
    let Some(mut edit) = edit else { return decision };
    if let Some(members) = &mut edit.members {
        edit.admin_states = std::mem::take(&mut members.admin_states);
    }
    let mut document = PoolDraft::from(documents(&known.pool).pop().unwrap());
    let applied = edit.apply(&mut document);
    if !applied.is_changed() {
        return decision;
    }
    decision.pool = Some(entries_of(document.pool()));
    decision.needs_record = edit.sets_down() || !applied.added_downs.is_empty();
    if decision.needs_record {
        let intents = intents(&planned.ledger, &edit, &applied.added_downs, now.wall);
        let after = changed(&planned.ledger, intents.changes);
        let undone = changed(&after, intents.undo);
        decision.intended = stages(&after);
        let undone = stages(&undone);
        decision.undo = std::array::from_fn(|number| {
            let is_changed = decision.intended[number] != undone[number];
            is_changed.then_some(undone[number])
        });
    }
    decision
}

/// The ledger `found`, with the changes of a term that lead from `stored` to `own`.
pub(super) fn merged(found: &Records, own: &Records, stored: &Records) -> Records {
    let merged = recorded(found).with_changes(&recorded(own), &recorded(stored));
    let pool = pool_id(POOL);
    let stages = stages(&merged);
    std::array::from_fn(|number| {
        let entry = merged.entry(&pool, &EntryKey::from_text(&address(number)));
        let second = entry.map_or(0, |entry| entry.since.as_second());
        Record {
            stage: stages[number],
            time: u8::try_from(second).unwrap(),
        }
    })
}

/// A ledger whose entries have their times, in seconds.
fn recorded(records: &Records) -> Ledger {
    let pool = pool_id(POOL);
    let without_times = ledger(&records.map(|record| record.stage));
    let changes = (0..ENTRIES).filter_map(|number| {
        let key = EntryKey::from_text(&address(number));
        let entry = LedgerEntry {
            since: Timestamp::from_second(i64::from(records[number].time)).unwrap(),
            ..without_times.entry(&pool, &key)?
        };
        Some(LedgerChange::new(&pool, &key, Some(entry)))
    });
    changed(&without_times, changes)
}

/// The ledger after a long time, and a list that shows this pool.
pub(super) fn expired(own: &Stages, pool: &Pool) -> Stages {
    let observe = |_: &str, key: &str| {
        let number = (0..ENTRIES).find(|number| address(*number) == key)?;
        let state = match pool[number] {
            Entry::Absent => ObservedState::Absent,
            Entry::Up => ObservedState::NotDown,
            Entry::Down => ObservedState::Down,
        };
        Some(Observation {
            state,
            known_for: Duration::MAX,
        })
    };
    let own = ledger(own);
    let changes = own.expiry_changes(observe, now().wall);
    stages(&changed(&own, changes))
}

/// Whether a PUT that was answered so had no effect: refused because of its etag, refused because ARM is busy, or not answered.
pub(super) fn is_without_effect(answer: Answer) -> bool {
    has_no_effect(&match answer {
        Answer::OtherVersion => refused(412, "PreconditionFailed", None),
        Answer::Refused => refused(409, "AnotherOperationInProgress", None),
        Answer::Missing => ArmError::Connection("closed".to_owned()),
    })
}

/// How ARM answers a PUT that it does not accept, or accepts unheard.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    OtherVersion,
    Refused,
    Missing,
}

/// A fixed time: decisions that depend on ages get entries that are old enough.
fn now() -> Moment {
    static NOW: OnceLock<Moment> = OnceLock::new();
    *NOW.get_or_init(|| Clock::System.now())
}

/// A leader's view, in the product's types.
struct Planned<'a> {
    known: &'a Known,
    targets: TargetStates,
    ledger: Ledger,
    services: ServiceIndex,
    held: HeldEntries,
    guard: GuardSettings,
}

impl<'a> Planned<'a> {
    fn new(known: &'a Known, now: Moment) -> Self {
        let taints = |signal| -> &[&str] {
            match signal {
                Signal::None => &[],
                Signal::Revocable => &[DRAIN],
                Signal::Terminal => &[OUT],
            }
        };
        let nodes: Vec<ClusterNode> = (0..known.nodes)
            .map(|number| node(number_in_names(number), taints(known.signals[number])))
            .collect();
        let services = known.serving.map(|serving| {
            let numbers: Vec<_> = numbers(serving).map(number_in_names).collect();
            local_services(&[(SERVICE, SERVICE_PORT, numbers.as_slice())], now)
        });
        let guard = GuardSettings {
            minimum_in_service: IntOrPercent::Int(1),
            health_port: PROBES[0].1,
            ..GuardSettings::DISABLED
        };
        Self {
            known,
            targets: target_states(&nodes, now),
            ledger: ledger(&known.ledger),
            services: services.unwrap_or_default(),
            held: numbers(known.held).map(|number| (pool_id(POOL), uid(number))).collect(),
            guard: if known.is_guarded {
                guard
            } else {
                GuardSettings::DISABLED
            },
        }
    }

    fn plan(&self, view: &LoadBalancerView, now: Moment) -> Plan {
        plan(
            view,
            &PlanInputs {
                guard: GuardInputs {
                    held: &self.held,
                    services: Some(&self.services),
                    ..guarded_by(&self.guard)
                },
                ..plan_inputs(&self.targets, &self.ledger, now)
            },
        )
    }

    /// The edit of the pool, with its members where these are updated.
    fn edit(&self, plan: &Plan, view: &LoadBalancerView, now: Moment) -> Option<PoolEdit> {
        let edit = plan.edits.first().cloned();
        let serving = self.known.serving.filter(|_| self.known.has_members);
        let (Some(serving), [pool]) = (serving, view.pools.as_slice()) else {
            return edit;
        };
        let member = |number: usize| DesiredMember {
            address: address(number).parse().unwrap(),
            node: name(number).into(),
            is_draining: self.known.signals[number] != Signal::None,
            is_leaving: false,
        };
        let mut nodes = NodeIndex::default();
        for number in 0..self.known.nodes {
            nodes.apply(MemberNode {
                name: name(number),
                internal_addresses: vec![address(number).parse().unwrap()],
                is_draining: self.known.signals[number] != Signal::None,
                ..MemberNode::default()
            });
        }
        let mut members = MemberChange {
            desired: numbers(serving).map(member).collect(),
            nodes: Arc::new(nodes),
            virtual_network: Some("network".into()),
            admin_states: Vec::new(),
        };
        let as_read = edit.as_ref().map_or(&[][..], |edit| edit.admin_states.as_slice());
        join_members(pool, as_read, &mut members, |pool| {
            let future = LoadBalancerView {
                pools: vec![Arc::new(pool)],
                ..view.clone()
            };
            let plan = self.plan(&future, now);
            plan.edits.into_iter().flat_map(|edit| edit.admin_states).collect()
        });
        let edit = edit.unwrap_or_else(|| PoolEdit {
            pool: pool.id.clone(),
            admin_states: Vec::new(),
            members: None,
        });
        let members = Some(members);
        Some(PoolEdit { members, ..edit })
    }

    /// The ledger after the report of this plan.
    fn reported(&self, plan: Plan, now: Moment) -> Stages {
        let planned = [planned(status(plan, &self.targets))];
        let listing = Listing::default();
        let mode = AdminStateMode::Enforce;
        let reads = LastReads::new(&self.targets, &planned, &self.ledger, &listing, mode, now);
        let effects = TransitionTracker::default().evaluate(&reads);
        stages(&changed(&self.ledger, effects.ledger_changes))
    }
}

fn held_back(plan: &Plan) -> Mask {
    let held: Vec<_> = plan.entries.iter().filter(|entry| entry.is_held_back).collect();
    mask(|number| held.iter().any(|entry| entry.node.uid == uid(number)))
}

fn numbers(set: Mask) -> impl Iterator<Item = usize> {
    (0..ENTRIES).filter(move |number| has(set, *number))
}

/// The fixtures count from 1.
fn number_in_names(number: usize) -> u8 {
    u8::try_from(number).unwrap() + 1
}

fn name(number: usize) -> String {
    format!("n{}", number_in_names(number))
}

fn uid(number: usize) -> String {
    format!("u{}", number_in_names(number))
}

fn address(number: usize) -> String {
    format!("10.0.0.{}", number_in_names(number))
}

fn texts(pool: &Pool) -> Vec<(u8, &'static str)> {
    let entries = (0..).zip(pool).filter_map(|(number, entry)| match entry {
        Entry::Absent => None,
        Entry::Up => Some((number_in_names(number), "None")),
        Entry::Down => Some((number_in_names(number), "Down")),
    });
    entries.collect()
}

fn documents(pool: &Pool) -> Vec<headgate_azure::Pool> {
    let document = probed_load_balancer(&texts(pool), PROBES)["properties"]["backendAddressPools"][0].take();
    vec![headgate_azure::Pool {
        id: pool_id("p"),
        etag: None,
        document,
    }]
}

fn entries_of(document: &headgate_azure::Pool) -> Pool {
    let find = |number: usize| {
        let key = EntryKey::from_text(&address(number));
        let mut found = document.addresses();
        found.find(|entry| EntryKey::from_address(*entry).as_ref() == Some(&key))
    };
    std::array::from_fn(
        |number| match find(number).map(headgate_azure::BackendAddress::admin_state) {
            None => Entry::Absent,
            Some(Some(AdminState::Down)) => Entry::Down,
            Some(_) => Entry::Up,
        },
    )
}

fn ledger(stages: &Stages) -> Ledger {
    let mut ledger = Ledger::default();
    for (number, stage) in stages.iter().enumerate() {
        let stage = match stage {
            Stage::Absent => continue,
            Stage::Intended => LedgerStage::Intended,
            Stage::Down => LedgerStage::Down,
            Stage::Restored => LedgerStage::Restored,
        };
        ledger.apply(ledger_change(POOL, number_in_names(number), stage));
    }
    ledger
}

fn stages(ledger: &Ledger) -> Stages {
    let pool: PoolId = pool_id(POOL);
    std::array::from_fn(|number| {
        let entry = ledger.entry(&pool, &EntryKey::from_text(&address(number)));
        match entry.map(|entry| entry.stage) {
            None => Stage::Absent,
            Some(LedgerStage::Intended) => Stage::Intended,
            Some(LedgerStage::Down) => Stage::Down,
            Some(LedgerStage::Restored) => Stage::Restored,
        }
    })
}

fn changed(ledger: &Ledger, changes: impl IntoIterator<Item = LedgerChange>) -> Ledger {
    let mut ledger = ledger.clone();
    for change in changes {
        ledger.apply(change);
    }
    ledger
}
