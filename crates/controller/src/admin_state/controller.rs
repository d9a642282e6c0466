//! The admin-state controller of one term: starts a pool writer for each load balancer, requests lists, and turns what the
//! writers show into events, ledger changes and metrics.
//!
//! It is level-triggered: each turn of its loop starts from the present state of all inputs. What one load balancer needs is
//! the plan's business, how it is written the pool writer's. Reports follow changes after [`REPORT_DELAY`], so that no decision waits for
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use headgate_azure::LoadBalancerId;
use headgate_core::clock::pause_after;
use headgate_core::telemetry::warn_if;
use headgate_core::{changed, publish_if_changed};
use headgate_kubernetes::leader::{ArmLock, Term};
use headgate_kubernetes::node_reference;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::contested::ContestedTracker;
use super::guard::HeldEntries;
use super::handover::{Handover, Progress};
use super::holds::{DesiredHolds, HoldTracker, Unplanned, desired_holds};
use super::last_reads::{LastReads, PlannedLoadBalancer};
use super::ledger::LedgerAges;
use super::list_outage::ListState;
use super::local_pools::LocalPools;
use super::marker::{MarkerInputs, Markers, TAKEOVER_TIME, evaluate as evaluate_markers};
use super::metrics::GaugeValues;
use super::planner::{LoadBalancerPlanner, LoadBalancerStatus};
use super::recorded::Evidence;
use super::rule_holds::RuleHoldTracker;
use super::settings::AdminStateMode;
use super::target_states::{TargetState, TargetStates};
use super::transitions::{NodeEvent, TransitionTracker};
use super::view::{RecordedEvent, WorkView};
use super::work::{TaskName, Tasks, WorkContext, WorkError, task_failure};
use crate::local_pools::Members;
use crate::pool::{ListRequest, ManagedLoadBalancers, PoolWriter, WriterLabels};

/// The values that the design of cloud-provider-azure gives these labels.
const LABELS: WriterLabels = WriterLabels {
    lock_caller: "AdminStateController",
    request: "loadbalancer_adminstate_update_backend_pool",
    source: "admin_state_controller",
};
/// While a Node has or had a signal, or the ledger is not empty.
const RESYNC_INTERVAL: Duration = Duration::from_secs(15);
const IDLE_RESYNC_INTERVAL: Duration = Duration::from_mins(5);
const LEDGER_EXPIRY_INTERVAL: Duration = Duration::from_secs(30);
/// From a change to the reports about it: events, ledger stages, holds, markers and metrics. Meanwhile the pool writers plan and request
/// the shared Lease, on the same thread. Several changes in that time lead to one report.
const REPORT_DELAY: Duration = Duration::from_millis(20);
/// The pause after a report, as a multiple of the time that it took, where that is longer than [`REPORT_DELAY`]: a report about thousands
/// of entries takes tens of milliseconds.
const REPORT_PAUSE: u32 = 4;

/// What shows a load balancer to its pool writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The lists: the load balancer is the cluster's.
    List,
    /// A read of its id, because the ledger names it: headgate's `Down` is given back there, and nothing else is written.
    Ledger,
}

/// A pool writer, and the status of its load balancer.
pub(super) struct RunningWriter {
    source: Source,
    status: watch::Receiver<LoadBalancerStatus>,
}

impl RunningWriter {
    fn planned(&self, id: &LoadBalancerId) -> PlannedLoadBalancer {
        PlannedLoadBalancer {
            id: id.clone(),
            is_managed: self.source == Source::List,
            status: self.status.borrow().clone(),
        }
    }
}

/// How soon a list is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListUrgency {
    /// Another writer may have changed the pools.
    Prompt,
    /// A signal changed: what the last list showed is planned already.
    Relaxed,
}

pub(super) struct Controller<'a> {
    pub(super) term: &'a Term,
    pub(super) context: &'a WorkContext,
    /// What it reads, and `/statusz` shows.
    pub(super) view: WorkView,
    /// The load balancers that the configuration names.
    pub(super) managed: ManagedLoadBalancers,
    pub(super) lock: ArmLock,
    pub(super) list_requests: watch::Sender<ListRequest>,
    /// What the marker of each Node should say.
    pub(super) markers: watch::Sender<Arc<Markers>>,
    /// When the work began with these load balancers.
    pub(super) started_at: Instant,
    /// The holds to record on Nodes.
    pub(super) holds: watch::Sender<Option<Arc<DesiredHolds>>>,
    /// `None` if pools of Local Services are not updated.
    pub(super) local_pools: Option<LocalPools>,
    pub(super) progress: WorkProgress,
}

/// What the controller has done and reported so far.
#[derive(Default)]
pub(super) struct WorkProgress {
    ledger_ages: LedgerAges,
    /// The last signal generation that a list was requested for.
    listed_generation: u64,
    /// The load balancers that have a pool writer.
    load_balancers: BTreeMap<LoadBalancerId, RunningWriter>,
    /// Whether lists have failed for too long.
    is_unable: bool,
    /// Whether the Nodes are stale, and that is reported.
    are_nodes_stale: bool,
    /// The last generation of the target states that was stale; 0 if none was.
    stale_generation: u64,
    /// Notified by the planners.
    status_changed: Arc<Notify>,
    transitions: TransitionTracker,
    holds: HoldTracker,
    rule_holds: RuleHoldTracker,
    contested: ContestedTracker,
}

impl Controller<'_> {
    /// Runs until the term is handed over and [`Handover`] says that nothing is left to do.
    pub(super) async fn run(&mut self, tasks: &mut Tasks) -> Result<(), WorkError> {
        let mut released_by_others = self.lock.released_by_others();
        let mut expire_at = Instant::now();
        let mut writes = self.lock.writes();
        let mut handover: Option<Handover> = None;
        let mut reported_generation = None;
        let (mut report_at, mut pause_until) = (Some(Instant::now()), Instant::now());
        let status_changed = Arc::clone(&self.progress.status_changed);
        self.request_list(Some(ListUrgency::Prompt));
        loop {
            let targets = self.view.targets.borrow_and_update().clone().unwrap_or_default();
            // All that the election needs to know of the Nodes is part of their generation, deadlines included.
            if reported_generation.replace(targets.generation) != Some(targets.generation) {
                self.report_nodes(&targets);
            }
            self.report_staleness(&targets);
            let signal_generation = targets.last_signal_generation();
            let has_new_signal = signal_generation > self.progress.listed_generation;
            self.request_list(has_new_signal.then_some(ListUrgency::Relaxed));
            self.progress.listed_generation = signal_generation;
            self.reconcile_writers(tasks);
            let list_state = self.list_state();
            self.report_list_state(list_state);
            self.progress
                .ledger_ages
                .observe(&self.view.ledger.ledger(), Instant::now());
            if Instant::now() >= expire_at {
                self.expire_ledger_entries();
                expire_at = Instant::now() + LEDGER_EXPIRY_INTERVAL;
            }
            // In a handover the PUTs that are left have the thread to themselves.
            report_at = report_at.filter(|_| handover.is_none());
            if report_at.is_some_and(|report_at| Instant::now() >= report_at) {
                let began = Instant::now();
                let next_at = self.report(&targets, list_state);
                pause_until = Instant::now() + pause_after(began.elapsed(), REPORT_PAUSE);
                report_at = next_at.map(|next_at| next_at.max(pause_until));
            }
            let is_writing = *writes.borrow_and_update() > 0;
            let mut handover_at = None;
            if let Some(handover) = handover {
                let progress = Progress {
                    is_writing,
                    is_all_sent: self.is_all_sent(&targets),
                    has_own_signal: self.has_own_signal(&targets),
                };
                let now = Instant::now();
                if handover.is_over(progress, now) {
                    self.report(&targets, list_state);
                    return Ok(());
                }
                handover_at = Some(handover.next_at(progress, now));
            }
            // Held any longer, the next change of a Node would copy all of them.
            drop(targets);
            let lists_services = self.view.services.borrow().has_no_load_balancer_service().is_none();
            let unable_at = list_state.unable_at.filter(|_| !self.progress.is_unable);
            let wake_at = [handover_at, unable_at, report_at]
                .into_iter()
                .flatten()
                .fold(expire_at, Instant::min);
            tokio::select! {
                error = task_failure(tasks) => return Err(error),
                // A sender that is dropped belongs to a task that has ended.
                changed = self.view.targets.changed() => if changed.is_err() {
                    return Err(task_failure(tasks).await);
                },
                changed = self.view.listings.changed() => if changed.is_err() {
                    return Err(task_failure(tasks).await);
                },
                changed = self.view.recorded.changed() => if changed.is_err() {
                    return Err(task_failure(tasks).await);
                },
                changed = released_by_others.changed() => match changed {
                    Ok(()) => self.request_list(Some(ListUrgency::Prompt)),
                    Err(_) => return Err(task_failure(tasks).await),
                },
                () = status_changed.notified() => {}
                () = changed(&mut self.view.services), if lists_services => {}
                () = sleep_until(wake_at) => {}
                _ = writes.changed(), if handover.is_some() => {}
                () = self.term.handover_requested(), if handover.is_none() => {
                    handover = Some(Handover { requested: Instant::now() });
                }
            }
            let next_at = pause_until.max(Instant::now() + REPORT_DELAY);
            report_at = report_at.into_iter().chain([next_at]).min();
        }
    }

    /// Sets the resync interval, and requests a list of this urgency if lists are needed at all.
    fn request_list(&self, urgency: Option<ListUrgency>) {
        let targets = self.view.targets.borrow();
        let has_signals = targets.as_ref().is_some_and(|targets| targets.has_signal_periods());
        drop(targets);
        let is_off = self.view.policy.mode == AdminStateMode::Disabled;
        let max_age = if !self.view.ledger.ledger().is_empty() {
            Some(RESYNC_INTERVAL)
        } else if is_off {
            None
        } else if has_signals {
            Some(RESYNC_INTERVAL)
        } else {
            Some(IDLE_RESYNC_INTERVAL)
        };
        let local_pools = self.local_pools.as_ref();
        let local_pools = local_pools.map(|local_pools| local_pools.settings.resync_interval);
        let max_age = max_age.into_iter().chain(local_pools).min();
        self.list_requests.send_if_modified(|last| {
            let urgency = urgency.filter(|_| max_age.is_some());
            let request = ListRequest {
                number: last.number + u64::from(urgency == Some(ListUrgency::Prompt)),
                relaxed_number: last.relaxed_number + u64::from(urgency == Some(ListUrgency::Relaxed)),
                max_age,
            };
            let is_changed = *last != request;
            *last = request;
            is_changed
        });
    }

    /// The state of lists; their failures count only while lists are due at all.
    fn list_state(&self) -> ListState {
        let is_due = self.list_requests.borrow().max_age.is_some();
        let (timeout, now) = (self.context.list_failure_timeout, self.context.clock.now());
        ListState::new(&self.view.listings.borrow(), is_due, timeout, now)
    }

    /// Reports to the election whether lists have failed for too long, and until when ARM throttles requests.
    fn report_list_state(&mut self, state: ListState) {
        let now = self.context.clock.now();
        let unable = state.inability(now.mono);
        if unable.is_some() != self.progress.is_unable {
            self.progress.is_unable = unable.is_some();
            let error = self
                .view
                .listings
                .borrow()
                .last_error
                .as_ref()
                .map(|error| error.message.clone());
            if let Some(unable) = unable {
                tracing::error!(
                    since = %unable.since,
                    error,
                    "load balancers not listed for too long; the term ends when another candidate volunteers"
                );
            } else {
                tracing::info!("load balancers listed again; the term goes on");
            }
        }
        self.term.report_inability(unable);
        self.term
            .report_throttle(self.view.arm.throttled_until(&self.view.subscription));
    }

    /// Starts a writer for each new load balancer and aborts those of deleted ones.
    fn reconcile_writers(&mut self, tasks: &mut Tasks) {
        let listing = Arc::clone(&self.view.listings.borrow_and_update());
        let recorded = Arc::clone(&self.view.recorded.borrow_and_update());
        let find_source = |id: &LoadBalancerId| {
            if listing.load_balancers.contains_key(id) {
                Some(Source::List)
            } else {
                let is_recorded = recorded.load_balancers.contains_key(id);
                is_recorded.then_some(Source::Ledger)
            }
        };
        self.progress.load_balancers.retain(|id, writer| {
            // A read that failed says nothing about the load balancer.
            let stays = find_source(id) == Some(writer.source)
                || writer.source == Source::Ledger && recorded.unreadable.contains_key(id);
            if !stays {
                tasks.abort(&TaskName::PoolWriter(id.clone()));
            }
            stays
        });
        let ids = listing.load_balancers.keys().chain(recorded.load_balancers.keys());
        for id in ids {
            let Some(source) = find_source(id) else { continue };
            if self.progress.load_balancers.contains_key(id) {
                continue;
            }
            let status = watch::Sender::new(LoadBalancerStatus::default());
            let running = RunningWriter {
                source,
                status: status.subscribe(),
            };
            self.progress.load_balancers.insert(id.clone(), running);
            let members = match source {
                Source::List => self.local_pools.as_ref().map(|local_pools| local_pools.source.clone()),
                Source::Ledger => None,
            };
            let planner = LoadBalancerPlanner {
                targets: self.view.targets.clone(),
                ledger: self.view.ledger.clone(),
                policy: self.view.policy,
                only_nodes: None,
                guard: self.context.guard.clone(),
                held: HeldEntries::new(),
                services: self.view.services.clone(),
                is_configured: source == Source::List,
                clock: self.context.clock.clone(),
                members: members.map(|source| Members::new(source, id.clone())),
                status,
                status_changed: Arc::clone(&self.progress.status_changed),
                undo: Vec::new(),
                last_generation: None,
                last_hold_generation: None,
                braked_by: None,
            };
            let listings = match source {
                Source::List => self.view.listings.clone(),
                Source::Ledger => self.view.recorded.clone(),
            };
            let writer = PoolWriter {
                load_balancer: id.clone(),
                arm: self.view.arm.clone(),
                lock: self.lock.clone(),
                term: self.term.clone(),
                listings,
                interfaces: self.view.interfaces.clone(),
                labels: LABELS,
            };
            tasks.spawn(TaskName::PoolWriter(id.clone()), writer.run(planner));
        }
    }

    /// The load balancers, as they were planned last.
    fn planned(&self) -> Vec<PlannedLoadBalancer> {
        let writers = self.progress.load_balancers.iter();
        writers.map(|(id, writer)| writer.planned(id)).collect()
    }

    /// Reports what the last reads show: events, ledger changes, holds, traffic, markers, metrics. Returns when to do so again although
    /// nothing changes.
    fn report(&mut self, targets: &TargetStates, list_state: ListState) -> Option<Instant> {
        let load_balancers = self.planned();
        self.context.metrics.views.observe(&load_balancers);
        let (listing, ledger) = (Arc::clone(&self.view.listings.borrow()), self.view.ledger.ledger());
        let now = self.context.clock.now();
        let reads = LastReads {
            has_no_load_balancer_service: self.view.services.borrow().has_no_load_balancer_service(),
            ..LastReads::new(targets, &load_balancers, &ledger, &listing, self.view.policy.mode, now)
        };
        let effects = self.progress.transitions.evaluate(&reads);
        self.view.ledger.apply(effects.ledger_changes);
        for took in effects.signal_to_down {
            self.context.metrics.observe_signal_to_down(took);
        }
        for event in effects.events {
            self.record_event(event);
        }
        self.report_holds(&reads);
        let traffic_at = self.publish_traffic(&reads);
        if self.view.policy.mode != AdminStateMode::Disabled {
            for event in self.progress.contested.evaluate(&targets.nodes, Instant::now()) {
                self.record_event(event);
            }
        }
        let pools = reads.statuses().flat_map(|status| status.pools.iter().cloned());
        self.context.metrics.set_gauges(GaugeValues {
            pools: pools.collect(),
            nodes_by_signal: targets.nodes_by_signal(),
            pending_changes: reads.statuses().map(|status| status.pending_changes).sum(),
            last_list: list_state.last_success,
            lists_failing_since: list_state.failing_since,
            nodes_stale_since: targets.stale_since(),
        });
        traffic_at.into_iter().chain(self.takeover_ends_at(now.mono)).min()
    }

    /// The end of [`TAKEOVER_TIME`], while it lasts.
    fn takeover_ends_at(&self, now: Instant) -> Option<Instant> {
        Some(self.started_at + TAKEOVER_TIME).filter(|at| now < *at)
    }

    /// Publishes what the last reads prove about each Node with a signal, and what its marker should say; returns when to evaluate that
    /// again.
    fn publish_traffic(&self, reads: &LastReads<'_>) -> Option<Instant> {
        let published = self.context.traffic.as_ref();
        if published.is_none() && self.context.marker.is_none() {
            return None;
        }
        let previous = published.map(|published| Arc::clone(&published.borrow()));
        let traffic = Arc::new(reads.prove(&previous.unwrap_or_default()));
        if let Some(published) = published {
            publish_if_changed(published, Arc::clone(&traffic));
        }
        self.context.marker.as_ref()?;
        let evaluation = evaluate_markers(&MarkerInputs {
            reads,
            traffic: &traffic,
            started_at: self.started_at,
        });
        publish_if_changed(&self.markers, Arc::new(evaluation.markers));
        evaluation.next_at
    }

    /// Records an event on the own Node when the Nodes become stale.
    fn report_staleness(&mut self, targets: &TargetStates) {
        let stale_since = targets.stale_since();
        if stale_since.is_some() == self.progress.are_nodes_stale {
            return;
        }
        self.progress.are_nodes_stale = stale_since.is_some();
        let Some(since) = stale_since else {
            tracing::info!("Nodes confirmed again; admin states follow them");
            return;
        };
        tracing::error!(%since, "Nodes not confirmed for too long; admin states stay as they are");
        if let Some(own) = targets.nodes.by_name(&self.context.node_name) {
            self.record_event(NodeEvent::nodes_stale(own, since));
        }
    }

    /// Publishes the holds that follow from the plans of all load balancers, and an event for each new one.
    fn report_holds(&mut self, reads: &LastReads<'_>) {
        let targets = reads.targets;
        if targets.stale_since().is_some() {
            // What is recorded stays, and is renewed.
            self.progress.stale_generation = targets.generation;
            return;
        }
        let guard = &self.context.guard;
        let awaits_lookups = self.takeover_ends_at(reads.now.mono).is_some();
        let holds = match self.view.policy.mode {
            AdminStateMode::Enforce => desired_holds(reads, &self.unplanned(targets), guard, awaits_lookups),
            AdminStateMode::Observe | AdminStateMode::Disabled => DesiredHolds::new(),
        };
        let mut events = self.progress.holds.evaluate(&holds, guard);
        if self.view.policy.mode == AdminStateMode::Enforce {
            events.extend(self.progress.rule_holds.evaluate(reads, &holds, awaits_lookups));
        }
        for event in events {
            self.record_event(event);
        }
        publish_if_changed(&self.holds, Some(Arc::new(holds)));
    }

    /// The load balancers without a plan of this term, or since the Nodes were stale, and those about which a recorded hold is all that
    /// is known: that the configuration does not name them, that a list does not show what the ledger has, or that it shows none at all may
    /// be a mistake.
    fn unplanned(&self, targets: &TargetStates) -> Unplanned {
        if self.view.listings.borrow().requested_at.is_none() {
            return Unplanned::All;
        }
        let is_unplanned = |writer: &RunningWriter| {
            let planned = writer.status.borrow().planned_generation;
            planned.is_none_or(|planned| planned <= self.progress.stale_generation)
        };
        let unplanned = self
            .progress
            .load_balancers
            .iter()
            .filter(|(_, writer)| is_unplanned(writer));
        let mut names: BTreeSet<String> = unplanned.map(|(id, _)| id.name().to_owned()).collect();
        let recorded = Arc::clone(&self.view.recorded.borrow());
        let is_recorded = |name: &str| {
            let mut ids = recorded.load_balancers.keys().chain(recorded.unreadable.keys());
            ids.any(|id| id.name().eq_ignore_ascii_case(name))
        };
        let holds = targets.held_nodes().filter_map(|node| node.hold.as_ref());
        let held = holds
            .flat_map(|hold| &hold.pools)
            .filter_map(|pool| Some(pool.split_once('/')?.0));
        let is_none_listed = self
            .progress
            .load_balancers
            .values()
            .all(|writer| writer.source != Source::List);
        names.extend(
            held.filter(|name| is_none_listed || is_recorded(name) || !self.managed.contains_name(name))
                .map(str::to_owned),
        );
        Unplanned::Named(names)
    }

    fn record_event(&self, event: NodeEvent) {
        let NodeEvent { node, kind, note } = event;
        let (name, reason) = (&node.name, kind.reason);
        warn_if!(kind.is_warning, node = name, reason, note, "event recorded on the Node");
        self.view.events.push(RecordedEvent {
            at: self.context.clock.now().wall,
            node: name.clone(),
            reason: reason.to_owned(),
            note: note.clone(),
            is_warning: kind.is_warning,
        });
        self.context.events.record(node_reference(name, &node.uid), kind, note);
    }

    /// Applies what time changes in the ledger, as far as it is proved.
    fn expire_ledger_entries(&self) {
        let ledger = self.view.ledger.ledger();
        if ledger.is_empty() {
            return;
        }
        let load_balancers = self.planned();
        let (listing, recorded) = (self.view.listings.borrow(), self.view.recorded.borrow());
        let evidence = Evidence::new(&listing, &recorded, &load_balancers, &self.progress.ledger_ages);
        let now = self.context.clock.now().wall;
        let changes = ledger.expiry_changes(|pool, key| evidence.observe(pool, key), now);
        self.view.ledger.apply(changes);
    }

    /// Reports the Nodes to the election, which derives the number of candidates and a healthy peer from them.
    fn report_nodes(&self, targets: &TargetStates) {
        let summary = targets.summary(&self.context.node_name, Instant::now());
        self.term.report_nodes(Some(summary));
    }

    /// Whether the own Node is known to have a signal that counts.
    fn has_own_signal(&self, targets: &TargetStates) -> bool {
        let own = targets.nodes.by_name(&self.context.node_name);
        own.is_some_and(|own| targets.target_state(own, Instant::now()) == TargetState::Down)
    }

    /// Whether ARM has accepted every change that is due.
    fn is_all_sent(&self, targets: &TargetStates) -> bool {
        let mut statuses = self
            .progress
            .load_balancers
            .values()
            .map(|writer| writer.status.borrow());
        statuses.all(|status| status.unsent_changes == 0 && status.has_planned(targets.generation))
    }
}
