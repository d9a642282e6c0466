//! The target states that follow from the Nodes of the term's store, published.
//!
//! Invariants: nothing is published before every Node has been listed once. While the watch of the Nodes fails, the last known state stays
//! in use; from `stale_timeout` after the API server last confirmed it, it is marked as stale. Changes in quick succession are published at
//! a bounded rate (`publish_limit`), so that a thousand new taints lead to few plans, and the watch, in the same thread, keeps up with them.
//!
//! The published value is changed in place unless a receiver holds it. Receivers hold it only briefly: otherwise each change
//! of a Node copies all of them. What a Node's signals mean is left to `target_states`.

use std::sync::Arc;
use std::time::Duration;

use headgate_core::clock::Clock;
use headgate_kubernetes::NodeStore;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};

use super::publish_limit::PublishLimit;
use super::target_states::TargetStates;

/// How target states follow from Nodes.
#[derive(Clone, Debug)]
pub(super) struct TargetStatesConfig {
    pub(super) nodes: NodeStore,
    /// The cloud's setting `excludeMasterFromStandardLB`: whether control-plane nodes are in no load balancer.
    pub(super) exclude_control_plane: bool,
    /// Whether this leader writes the condition of nodes.
    pub(super) writes_condition: bool,
    /// For how long the state is in use without a confirmation.
    pub(super) stale_timeout: Duration,
    pub(super) clock: Clock,
}

/// Publishes the target states of all Nodes; `None` until all are listed. Ends with the watch of the Nodes.
pub(super) async fn publish_target_states(
    config: TargetStatesConfig,
    published: watch::Sender<Option<Arc<TargetStates>>>,
) {
    let TargetStatesConfig {
        nodes: NodeStore {
            objects: mut nodes,
            mut verified_at,
            ..
        },
        exclude_control_plane,
        writes_condition,
        stale_timeout,
        clock,
    } = config;
    let mut is_stale = false;
    // Deadlines up to here are applied.
    let mut applied_until = Instant::now();
    let mut limit = PublishLimit::new(applied_until);
    // Whether the store has changed, or a deadline has passed, since the last publication.
    let mut is_changed = nodes.borrow().is_some();
    // The next one, looked for after a publication only: among all signal periods.
    let mut deadline = None;
    loop {
        let now = Instant::now();
        if is_changed && limit.try_publish(now) {
            if let Some(nodes) = nodes.borrow_and_update().as_ref() {
                published.send_modify(|published| {
                    let new = || Arc::new(TargetStates::new(exclude_control_plane, writes_condition));
                    Arc::make_mut(published.get_or_insert_with(new)).update(nodes, clock.now());
                });
            }
            is_changed = false;
            // The plans that this leads to are made before it goes on: a task that yields runs after those that are ready.
            yield_now().await;
            limit.rest(Instant::now(), now.elapsed());
            let targets = published.borrow();
            deadline = targets
                .as_ref()
                .and_then(|targets| targets.next_deadline(applied_until));
        }
        let publish_at = is_changed.then(|| limit.next_publish());
        let wake_at = [deadline, publish_at].into_iter().flatten().min();
        let stale_at = *verified_at.borrow() + stale_timeout;
        tokio::select! {
            changed = nodes.changed() => {
                if changed.is_err() {
                    return;
                }
                is_changed = true;
            }
            () = sleep_until(stale_at), if !is_stale => {
                // The state may have been confirmed since.
                let verified_at = *verified_at.borrow_and_update();
                is_stale = verified_at + stale_timeout <= Instant::now();
                if is_stale {
                    let since = clock.now().wall_at(verified_at);
                    modify(&published, |targets| targets.set_stale_since(Some(since)));
                    notify(&published);
                }
            }
            Ok(()) = verified_at.changed(), if is_stale => {
                is_stale = false;
                modify(&published, |targets| targets.set_stale_since(None));
                notify(&published);
            }
            () = sleep_until(wake_at.unwrap_or(now)), if wake_at.is_some() => {
                let now = Instant::now();
                if deadline.is_some_and(|deadline| deadline <= now) {
                    applied_until = now;
                    is_changed = true;
                    deadline = None;
                    let at = clock.now();
                    modify(&published, |targets| {
                        targets.advance_generation(at);
                        targets.drop_ended_periods(applied_until);
                    });
                }
            }
        }
    }
}

/// Modifies the target states, once there are any, without notifying receivers.
fn modify(published: &watch::Sender<Option<Arc<TargetStates>>>, modify: impl FnOnce(&mut TargetStates)) {
    published.send_if_modified(|published| {
        published.as_mut().map(Arc::make_mut).map(modify);
        false
    });
}

/// Notifies receivers, once there are any target states.
fn notify(published: &watch::Sender<Option<Arc<TargetStates>>>) {
    published.send_if_modified(|published| published.is_some());
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::time::advance;

    use super::*;
    use crate::pool::ClusterNode;

    /// What a plan of every load balancer takes in a large cluster.
    const PLANNING: Duration = Duration::from_millis(200);
    const NODES: usize = 100;

    #[tokio::test(start_paused = true)]
    async fn plans_leave_the_watch_the_time_to_see_every_change() {
        let objects = watch::Sender::new(Some(BTreeMap::new()));
        let verified_at = watch::Sender::new(Instant::now());
        let undecodable = watch::Sender::default();
        let config = TargetStatesConfig {
            nodes: NodeStore {
                objects: objects.subscribe(),
                verified_at: verified_at.subscribe(),
                undecodable: undecodable.subscribe(),
            },
            exclude_control_plane: false,
            writes_condition: false,
            stale_timeout: Duration::from_hours(1),
            clock: Clock::System,
        };
        let published = watch::Sender::new(None);
        let mut targets = published.subscribe();
        tokio::spawn(publish_target_states(config, published));
        // As a connection does, which hands on one part of an answer each time it has its turn.
        tokio::spawn(async move {
            for number in 0..NODES {
                let name = format!("node-{number}");
                let node = ClusterNode {
                    name: name.clone(),
                    uid: name.clone(),
                    ..ClusterNode::default()
                };
                objects.send_modify(|objects| drop(objects.as_mut().unwrap().insert(name, Arc::new(node))));
                yield_now().await;
            }
            objects.closed().await;
        });
        let mut plans = 0;
        loop {
            targets.changed().await.unwrap();
            let seen = targets
                .borrow()
                .as_ref()
                .map_or(0, |targets| targets.nodes.iter().count());
            plans += 1;
            if seen == NODES {
                break;
            }
            advance(PLANNING).await;
        }
        assert!(plans <= 4, "{plans}");
    }
}
