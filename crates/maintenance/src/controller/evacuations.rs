//! The loop of the Evacuation controller: one step of `evacuation::state` for each Evacuation, until none is due. No Evacuation whose
//! request hangs delays another, and none that is due again comes before one that was worked on longer ago.
//!
//! The state is in the objects. In memory are only pauses: between failed evictions, and until the cache shows a write. A pod
//! that no cache has is read from the API server, so an Evacuation of a pod that was just created does not end by mistake; from then on the
//! pods of its node are watched.

mod failure;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use headgate_core::clock::{Moment, whole_seconds};
use headgate_core::node::Node;
use headgate_core::publish_if_changed;
use headgate_core::settings::is_subdomain;
use headgate_core::telemetry::{ReconcileSpan, warn_if};
use headgate_kubernetes::Decoded;
use jiff::Timestamp;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::budgets::have_room;
use super::caches::{CONFIRMATION_INTERVAL, Caches};
use super::daemon_sets::{delete, deletion, drained_nodes};
use super::evacuation_span::evacuation_span;
use super::grace_periods::GracePeriodCut;
use super::writer::{WriteError, Writer};
use crate::api::names::{PROTECTION_FINALIZER, is_protection_finalizer};
use crate::api::{Evacuation, EvacuationStatus, PodType};
use crate::deadline;
use crate::evacuation::eviction::{EvictionFailure, EvictionOutcome, pause};
use crate::evacuation::state::{FinishReason, PodState, Step, step};
use crate::snapshot::{BudgetFacts, PodFacts, PodObject};

pub(super) use failure::failed_status;
use failure::{BUDGET_FAILURES, waits_for_budget};

/// Evacuations that are worked on at the same time, without those whose step began longer than [`SLOW_AFTER`] ago.
const MAX_CONCURRENT_STEPS: usize = 8;
const SLOW_AFTER: Duration = Duration::from_millis(500);
/// Between two turns, so that changes in quick succession share one.
const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// Until a step that was done or failed may be repeated although the cache shows the same.
const REPEAT_INTERVAL: Duration = Duration::from_secs(5);
/// Until a pod whose eviction was accepted and that does not terminate is evicted again.
const ACCEPTED_INTERVAL: Duration = Duration::from_secs(30);
/// Until a pod that no cache has had yet is read.
const FIRST_LOOKUP_DELAY: Duration = Duration::from_secs(5);
/// Between reads of a pod that is in no cache, because it has no node yet.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(10);
/// The shortest pause after a failed eviction, also where its budget has room again.
const SHORTEST_PAUSE: Duration = Duration::from_secs(10);
const RESYNC_INTERVAL: Duration = Duration::from_mins(5);

/// The Evacuation controller.
pub(super) struct EvacuationController {
    caches: Caches,
    writer: Writer,
    /// By the UID of the Evacuation.
    memories: HashMap<String, Memory>,
    /// When the steps that are under way began, by the UID of the Evacuation.
    working: BTreeMap<String, Instant>,
}

/// What is remembered of an Evacuation between turns.
#[derive(Clone, Debug, Default)]
struct Memory {
    /// The version that was worked on last. The same version is not worked on again before `repeat_at`.
    version: Option<String>,
    repeat_at: Option<Instant>,
    /// When it was worked on last.
    worked_at: Option<Instant>,
    /// When its pod may be evicted, and because of what it waits.
    evict_at: Option<Instant>,
    waits_for_budget: bool,
    last_eviction: Option<Instant>,
    /// Why its last step failed.
    failure: Option<String>,
    /// When its pod, of a DaemonSet, may be deleted again.
    delete_at: Option<Instant>,
    /// The node of a pod that is on no maintained node.
    located_on: Option<String>,
    /// Whether a cache has had the pod.
    is_seen: bool,
    /// When a pod that is in no cache is read.
    lookup_at: Option<Instant>,
}

/// An Evacuation to work on, with its pod where a cache has it.
struct Due {
    evacuation: Evacuation,
    pod: Option<PodFacts>,
    /// Whether a cache has had it.
    was_seen: bool,
    /// Why its last step failed.
    last_failure: Option<String>,
    /// When the turns of evacuators end, where the pod's node has a deadline.
    turns_end: Option<Timestamp>,
    /// Where the pod gets less time to end than it asks for.
    cut: Option<GracePeriodCut>,
    /// The status to write before the pod, of a DaemonSet, is deleted; otherwise a step is due.
    deletion: Option<EvacuationStatus>,
}

/// What became of it.
enum Worked {
    /// A step was made.
    Stepped,
    /// It failed, and is repeated.
    Failed(String),
    /// The eviction was accepted.
    Evicted,
    /// The eviction failed so many times.
    Refused { failures: i32, reason: EvictionFailure },
    /// The pod may be deleted again after this time.
    Deleted { again_in: Duration },
    /// Nothing is to be done before this time; the pod is on this node.
    Waits { located_on: Option<String> },
}

impl EvacuationController {
    pub(super) fn new(caches: Caches, writer: Writer) -> Self {
        Self {
            caches,
            writer,
            memories: HashMap::new(),
            working: BTreeMap::new(),
        }
    }

    /// Runs until it is aborted.
    pub(super) async fn run(mut self) {
        let mut steps = FuturesUnordered::new();
        let mut queue = VecDeque::new();
        let mut turn_at = Instant::now();
        let mut next_turn_from = turn_at;
        loop {
            while self.has_place() {
                let Some(due) = queue.pop_front() else { break };
                self.working.insert(uid_of(&due), Instant::now());
                steps.push(make_step(self.writer.clone(), due));
            }
            let has_place_at = self.has_place_at().filter(|_| !queue.is_empty());
            let caches = &mut self.caches;
            let is_changed = tokio::select! {
                Some((due, worked)) = steps.next() => {
                    self.apply(&due, worked);
                    true
                }
                Ok(()) = caches.evacuations.changed() => true,
                Ok(()) = caches.pods.changed() => true,
                Ok(()) = caches.budgets.changed() => true,
                Ok(()) = caches.maintenances.changed() => true,
                Ok(()) = caches.nodes.changed() => true,
                () = sleep_until(has_place_at.unwrap_or(turn_at)), if has_place_at.is_some() => false,
                () = sleep_until(turn_at) => {
                    next_turn_from = Instant::now() + MIN_INTERVAL;
                    let (due, wake_at) = self.due();
                    self.publish_located_nodes();
                    (queue, turn_at) = (due.into(), wake_at.max(next_turn_from));
                    false
                }
            };
            if is_changed {
                turn_at = turn_at.min(next_turn_from);
            }
        }
    }

    /// Whether another step may start. Those that take long, because no answer comes, take no place.
    fn has_place(&self) -> bool {
        let is_new = |started: &&Instant| started.elapsed() < SLOW_AFTER;
        self.working.values().filter(is_new).count() < MAX_CONCURRENT_STEPS
    }

    /// When the next of the steps that are under way takes no place any more.
    fn has_place_at(&self) -> Option<Instant> {
        let slow_at = self.working.values().map(|started| *started + SLOW_AFTER);
        slow_at.filter(|at| *at > Instant::now()).min()
    }

    /// The Evacuations on which a step is due, and when the next one may be without a change.
    fn due(&mut self) -> (Vec<Due>, Instant) {
        let now = self.writer.clock.now();
        if !self.caches.are_confirmed() {
            return (Vec::new(), now.mono + CONFIRMATION_INTERVAL);
        }
        let mut wake_at = now.mono + RESYNC_INTERVAL;
        let evacuations = self.caches.evacuations.borrow_and_update();
        let Some(evacuations) = evacuations.as_ref() else {
            return (Vec::new(), wake_at);
        };
        let pods = self.caches.pods.borrow_and_update();
        let pods: HashMap<&str, &PodFacts> = pods.by_uid();
        let nodes = self.caches.nodes.borrow_and_update();
        let maintenances = self.caches.maintenances.borrow_and_update();
        let maintenances = || maintenances.iter().flat_map(BTreeMap::values);
        let drained = drained_nodes(maintenances());
        // When a node is expected to be gone, also if that is long over and not; when it is announced; and whether its pods leave at once. All
        // of a node share them.
        let mut deadlines = HashMap::new();
        let of_node = |node: &Arc<Node>| {
            let at = deadline::of_node(node, maintenances());
            let pending = deadline::pending_for_node(node, maintenances(), now.wall);
            let announced = deadline::announced_for_node(node, maintenances(), now.wall);
            let is_hurried = deadline::hurries(node, maintenances(), now.wall);
            (at, pending, announced, is_hurried)
        };
        let budgets = self.caches.budgets.borrow_and_update();
        let uids: BTreeSet<_> = evacuations
            .values()
            .filter_map(|one| one.metadata.uid.clone())
            .collect();
        self.memories.retain(|uid, _| uids.contains(uid));
        let mut due = Vec::new();
        for evacuation in evacuations.values() {
            if self.working.contains_key(&evacuation.uid().unwrap_or_default()) {
                continue;
            }
            let memory = self.memories.entry(evacuation.uid().unwrap_or_default()).or_default();
            let pod = pods.get(evacuation.spec.pod_ref.uid.as_str()).copied();
            let node = pod.and_then(|pod| nodes.as_ref()?.get(&pod.node));
            let known = node.map(|node| *deadlines.entry(&node.name).or_insert_with(|| of_node(node)));
            let (gone_at, pending, announced, is_hurried) = known.unwrap_or_default();
            let created = evacuation.metadata.creation_timestamp.as_ref();
            let turns_end = |gone_at: Option<Timestamp>| {
                let (pod, created) = pod.zip(created)?;
                Some(deadline::turns_end(created.0, pod.grace_period, gone_at?))
            };
            let (turns_end, hurries_at) = (turns_end(gone_at), turns_end(pending));
            let cut = pod.and_then(|pod| GracePeriodCut::of(pod, announced, now.wall));
            let of_daemon_set = pod.filter(|pod| pod.pod_type == PodType::DaemonSet);
            let deletion = of_daemon_set
                .zip(node)
                .and_then(|(pod, node)| deletion(evacuation, pod, node, is_hurried, &drained, cut, now.wall));
            let step_at = memory.due_at(evacuation, pod, (turns_end, hurries_at), budgets.as_ref(), now);
            // A step comes first: what is deleted depends on its result.
            let deletion = deletion.filter(|_| step_at.is_none_or(|at| at > now.mono));
            let delete_at = deletion.as_ref().map(|_| memory.delete_at.unwrap_or(now.mono));
            match step_at.into_iter().chain(delete_at).min() {
                Some(at) if at <= now.mono => due.push(Due {
                    evacuation: evacuation.clone(),
                    pod: pod.cloned(),
                    was_seen: memory.is_seen,
                    last_failure: memory.failure.clone(),
                    turns_end,
                    cut,
                    deletion,
                }),
                Some(at) => wake_at = wake_at.min(at),
                None => {}
            }
        }
        // The latest of those that were worked on come last, so that however many are due again, each has its turn.
        due.sort_by_cached_key(|due| self.memories.get(&uid_of(due)).and_then(|memory| memory.worked_at));
        (due, wake_at)
    }

    /// Remembers how a step ended.
    fn apply(&mut self, due: &Due, worked: Worked) {
        let uid = uid_of(due);
        self.working.remove(&uid);
        let memory = self.memories.entry(uid).or_default();
        memory.apply(&due.evacuation, due.pod.is_some(), worked, self.writer.clock.now().mono);
        self.publish_located_nodes();
    }

    /// Publishes the nodes whose pods are to be watched.
    fn publish_located_nodes(&self) {
        let located: BTreeSet<_> = self
            .memories
            .values()
            .filter_map(|memory| memory.located_on.clone())
            .collect();
        publish_if_changed(&self.caches.located_nodes, located);
    }
}

impl Memory {
    /// When the Evacuation has to be worked on; `None` while nothing but a change makes it due.
    fn due_at(
        &mut self,
        evacuation: &Evacuation,
        pod: Option<&PodFacts>,
        (turns_end, hurries_at): (Option<Timestamp>, Option<Timestamp>),
        budgets: Option<&BTreeMap<String, BudgetFacts>>,
        Moment { wall, mono: now }: Moment,
    ) -> Option<Instant> {
        let repeat_at = self.repeat_at.filter(|at| *at > now);
        if repeat_at.is_some() && self.version == evacuation.resource_version() {
            return repeat_at;
        }
        let Some(pod) = pod else {
            // The first list of its node's pods may still be under way.
            let delay = if self.is_seen {
                Duration::ZERO
            } else {
                FIRST_LOOKUP_DELAY
            };
            return Some(*self.lookup_at.get_or_insert_with(|| now + delay));
        };
        (self.is_seen, self.lookup_at) = (true, None);
        match step(evacuation, PodState::Exists(pod), turns_end, wall) {
            Step::Wait(None) => None,
            Step::Wait(Some(until)) => {
                let wait = Duration::try_from(until.duration_since(wall)).unwrap_or_default();
                Some(now + wait)
            }
            Step::Evict => {
                let failures = evacuation
                    .status
                    .as_ref()
                    .map_or(0, |status| status.failed_eviction_counter);
                let evict_at = *self.evict_at.get_or_insert_with(|| {
                    // The leader before waited for it.
                    self.waits_for_budget = waits_for_budget(evacuation);
                    now + pause(failures)
                });
                let has_room = self.waits_for_budget && budgets.is_some_and(|all| have_room(all.values(), pod));
                // Near a deadline there is no time for long pauses.
                let hurries_at =
                    hurries_at.map(|at| now + Duration::try_from(at.duration_since(wall)).unwrap_or_default());
                let earliest = self.last_eviction.map_or(now, |last| last + SHORTEST_PAUSE);
                let sooner = hurries_at.into_iter().chain(has_room.then_some(now)).min();
                Some(sooner.map_or(evict_at, |sooner| evict_at.min(sooner.max(earliest))))
            }
            Step::Finish { .. } | Step::SetProtection { .. } | Step::SetEvacuators(_) | Step::UpdateStatus(_) => {
                Some(now)
            }
        }
    }

    /// Remembers what became of the Evacuation, whose pod a cache had or not.
    fn apply(&mut self, evacuation: &Evacuation, is_cached: bool, worked: Worked, now: Instant) {
        self.version = evacuation.resource_version();
        (self.repeat_at, self.worked_at) = (Some(now + REPEAT_INTERVAL), Some(now));
        self.failure = None;
        match worked {
            Worked::Stepped => {}
            Worked::Failed(why) => self.failure = Some(why),
            Worked::Evicted => {
                // The pod terminates, which its cache shows; a status write in between changes nothing.
                self.evict_at = Some(now + ACCEPTED_INTERVAL);
                (self.waits_for_budget, self.last_eviction) = (false, Some(now));
            }
            Worked::Refused { failures, reason } => {
                self.evict_at = Some(now + pause(failures));
                self.waits_for_budget = BUDGET_FAILURES.contains(&reason);
                self.last_eviction = Some(now);
            }
            Worked::Deleted { again_in } => self.delete_at = Some(now + again_in),
            Worked::Waits { located_on } => {
                self.repeat_at = None;
                if located_on.is_some() {
                    self.located_on = located_on;
                }
            }
        }
        let lookup_at = now + LOOKUP_INTERVAL;
        let lookup_at = self.evict_at.map_or(lookup_at, |at| at.max(lookup_at));
        self.lookup_at = (!is_cached).then_some(lookup_at);
    }
}

fn uid_of(due: &Due) -> String {
    due.evacuation.uid().unwrap_or_default()
}

async fn make_step(writer: Writer, due: Due) -> (Due, Worked) {
    let span = evacuation_span(writer.term.number(), &due.evacuation, due.pod.as_ref());
    let now = whole_seconds(writer.clock.now().wall);
    let worked = span.run(work_on(&writer, &due, &span, now)).await;
    (due, worked)
}

/// Makes the step that is due, or deletes the pod. A pod that no cache has is read first.
async fn work_on(writer: &Writer, due: &Due, span: &ReconcileSpan, now: Timestamp) -> Worked {
    let evacuation = &due.evacuation;
    if let (Some(status), Some(pod)) = (&due.deletion, &due.pod) {
        let again_in = delete(writer, evacuation, status.clone(), (pod, due.cut), span).await;
        return Worked::Deleted { again_in };
    }
    let (namespace, reference) = (evacuation.namespace().unwrap_or_default(), &evacuation.spec.pod_ref);
    let read;
    let (pod, located_on) = if let Some(pod) = &due.pod {
        (PodState::Exists(pod), None)
    } else if !is_subdomain(&reference.name) {
        (PodState::Gone, None)
    } else {
        let pods = Api::<Decoded<PodObject>>::namespaced(writer.client.clone(), &namespace);
        let found = async {
            pods.get_opt(&reference.name)
                .await?
                .map(Decoded::into_object)
                .transpose()
        };
        match writer.read(found).await {
            Ok(None) => (PodState::Gone, None),
            Ok(Some(object)) => {
                read = PodFacts::from(object);
                let is_it = read.uid == reference.uid && !read.node.is_empty();
                let state = PodState::of_name(&read, &reference.uid, due.was_seen);
                (state, is_it.then(|| read.node.clone()))
            }
            Err(error) => return failed("pod", due, span, &error),
        }
    };
    let step = step(evacuation, pod, due.turns_end, now);
    match (step, pod) {
        (Step::Wait(_), _) => Worked::Waits { located_on },
        // Evictions begin once the cache has the pod: it shows when the pod terminates.
        (Step::Evict, _) if located_on.is_some() => Worked::Waits { located_on },
        (Step::Evict, PodState::Exists(pod)) => evict(writer, due, pod, span, now).await,
        (Step::Evict, PodState::Gone) => Worked::Stepped,
        (step, pod) => {
            let fills_in = matches!(step, Step::SetEvacuators(_));
            match make(writer, evacuation, step).await {
                Ok(()) => {
                    if let (true, PodState::Exists(pod)) = (fills_in, pod) {
                        writer.events.malformed_annotations(pod);
                    }
                }
                // The evacuator or an instigator wrote at the same time, or it has ended.
                Err(WriteError::Conflict | WriteError::Gone) => {}
                Err(error) => return failed("evacuation", due, span, &error),
            }
            Worked::Stepped
        }
    }
}

/// Logs a failure. One that is as the last one is no news.
fn failed(what: &str, due: &Due, span: &ReconcileSpan, error: &WriteError) -> Worked {
    span.fail(error.outcome().as_str(), error);
    let (namespace, name) = (
        due.evacuation.namespace().unwrap_or_default(),
        due.evacuation.name_any(),
    );
    let why = error.to_string();
    let needs_somebody = matches!(error, WriteError::Refused(_)) && due.last_failure.as_ref() != Some(&why);
    warn_if!(needs_somebody, what, namespace, name, %error, retry_in = ?REPEAT_INTERVAL, "Evacuation not written");
    Worked::Failed(why)
}

/// Makes one step that is a write of the Evacuation.
async fn make(writer: &Writer, evacuation: &Evacuation, step: Step) -> Result<(), WriteError> {
    match step {
        Step::Finish {
            remove_finalizers,
            reason,
        } => {
            if reason == FinishReason::Invalid {
                tracing::warn!(
                    namespace = evacuation.namespace(),
                    name = evacuation.name_any(),
                    pod = evacuation.spec.pod_ref.name,
                    "Evacuation deleted: its podRef is not the name and the UID of a pod in its namespace"
                );
            }
            writer.delete_evacuation(evacuation, &remove_finalizers).await
        }
        Step::SetProtection { protected } => {
            let others = evacuation
                .finalizers()
                .iter()
                .filter(|one| !is_protection_finalizer(one));
            let own = protected.then(|| PROTECTION_FINALIZER.to_owned());
            let finalizers: Vec<_> = others.cloned().chain(own).collect();
            writer.set_evacuation_finalizers(evacuation, &finalizers).await
        }
        Step::SetEvacuators(evacuators) => {
            let change = json!({"spec": {"evacuators": evacuators}});
            writer.patch_evacuation(evacuation, change).await.map(drop)
        }
        Step::UpdateStatus(status) => writer.write_evacuation_status(evacuation, *status).await.map(drop),
        Step::Evict | Step::Wait(_) => Ok(()),
    }
}

/// Calls the Eviction API, and writes a failure to the status.
async fn evict(writer: &Writer, due: &Due, pod: &PodFacts, span: &ReconcileSpan, now: Timestamp) -> Worked {
    let evacuation = &due.evacuation;
    let outcome = match writer.evict(pod, due.cut).await {
        Ok(outcome) => outcome,
        Err(error) => return failed("eviction", due, span, &error.into()),
    };
    let (reason, message) = match outcome {
        EvictionOutcome::Accepted => {
            tracing::info!(
                namespace = pod.namespace,
                pod = pod.name,
                node = pod.node,
                "pod evicted"
            );
            if let Some(cut) = due.cut {
                writer.events.grace_period_cut(pod, cut);
            }
            return Worked::Evicted;
        }
        EvictionOutcome::OtherPod => return Worked::Stepped,
        EvictionOutcome::Failed { reason, message } => (reason, message),
    };
    span.fail(reason.as_str(), &message);
    let status = failed_status(evacuation, reason, message, now);
    let failures = status.failed_eviction_counter;
    tracing::info!(
        namespace = pod.namespace,
        pod = pod.name,
        reason = reason.as_str(),
        message = status.message,
        retry_in = ?pause(failures),
        "eviction failed"
    );
    if let Err(error) = writer.write_evacuation_status(evacuation, status).await {
        failed("status", due, span, &error);
    }
    Worked::Refused { failures, reason }
}
