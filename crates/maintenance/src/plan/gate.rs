//! The gate: a node leaves its load balancers, verified by a read, before its first pod is evacuated.
//!
//! The state is derived from the last read at each decision. What is kept in the status are times only: since when the
//! controller waits, and when a read confirmed first. A read that no longer confirms closes the gate; Evacuations that exist
//! go on. Where there is no read at all, the gate is closed as well, but the time of the confirmation stays. Either way the time to wait starts
//! anew: only a loss that lasts lets pods go without a confirmation. Under `Required` this is the time for which reads show that the guard
//! holds the node back.
//!
//! Then come the established connections: at least `connectionsDrainSeconds`, and as long as the node's agent counts some that pass through the
//! node, at most `connectionsTimeoutSeconds` more. An agent that cannot count makes nothing wait.

use headgate_core::node::NodeTraffic;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::{
    ConnectionsPolicy, LoadBalancerConfirmation, LoadBalancerGate, LoadBalancerState, LoadBalancerStatus,
};
use crate::deadline;

/// What the gate of one node depends on.
#[derive(Clone, Copy, Debug)]
pub struct GateInput<'a> {
    /// The policy and the times of `spec.loadBalancer`.
    pub settings: LoadBalancerGate,
    /// The load balancer status of the node before this decision; `None` before the first one.
    pub previous: Option<&'a LoadBalancerStatus>,
    /// What the last read showed of the load balancers of the node.
    pub observation: &'a NodeTraffic,
    /// Whether the node is unschedulable and has the taint that takes it out.
    pub is_isolated: bool,
    /// Why the node could not be changed, if that was tried.
    pub refused: Option<&'a str>,
    /// What the node's agent says of the connections that still pass through it; `None` if it says nothing, or that there are none.
    pub connections: Option<&'a str>,
    /// When the node will be gone, for a node with an eviction notice.
    pub deadline: Option<Timestamp>,
    /// When it was last to be gone, if that is over, also for long.
    pub overdue: Option<Timestamp>,
    /// The time of the decision, in whole seconds.
    pub now: Timestamp,
}

/// The gate of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// The status that this decision results in.
    pub status: LoadBalancerStatus,
    /// Whether Evacuations may be created.
    pub is_open: bool,
    /// Whether it waits for a confirmation for longer than `confirmationTimeoutSeconds`, or half of the time until the deadline.
    pub is_late: bool,
    /// When time alone may open the gate, or makes it late.
    pub wake_at: Option<Timestamp>,
    /// What the gate waits for, in words; empty where it is open.
    pub waiting_for: String,
    /// The gate opened now without a confirmation, or while connections pass through the node, and what it waited for.
    pub opened_without: Option<String>,
}

impl Gate {
    /// Whether a read confirmed that the node is out, and only a newer one is missing.
    pub(super) fn lost_its_read(&self) -> bool {
        self.status.state == LoadBalancerState::Pending && self.status.confirmed_time.is_some()
    }

    /// Decides the gate of one node from its last read and its previous status.
    pub fn decide(input: &GateInput<'_>) -> Self {
        let previous = input.previous;
        // A leader whose clock was ahead may have written them.
        let past = |time: fn(&LoadBalancerStatus) -> &Option<Time>| {
            previous
                .and_then(|status| time(status).as_ref())
                .map(|time| time.0.min(input.now))
        };
        let wait_start_time = past(|status| &status.wait_start_time).unwrap_or(input.now);
        let before = past(|status| &status.confirmed_time);
        let kept = past(|status| &status.kept_in_service_time);
        let is_state = |state| previous.is_some_and(|status| status.state == state);
        let timed_out = is_state(LoadBalancerState::TimedOut);
        // The time to wait starts anew where a confirmation was lost.
        let anew_if = |is_lost: bool| if is_lost { input.now } else { wait_start_time };
        if !input.is_isolated {
            // A read from before the cordon says nothing.
            let why = input.refused.map(|why| format!(": {why}")).unwrap_or_default();
            let waiting_for = format!("the cordon and the maintenance taint{why}");
            return Self::pending(input, anew_if(before.is_some() || timed_out), None, None, waiting_for);
        }
        match input.observation {
            // Once it goes on without, it goes on.
            NodeTraffic::Out { since } if timed_out => Self::out(wait_start_time, *since, input.now),
            NodeTraffic::Out { since } => Self::confirmed(input, wait_start_time, *since, before.unwrap_or(input.now)),
            _ if timed_out => Self::timed_out(wait_start_time, None),
            NodeTraffic::Unknown(why) => {
                let waiting_for = format!("a read of the load balancers: {why}");
                let since = anew_if(is_state(LoadBalancerState::Draining) || is_state(LoadBalancerState::Out));
                let confirmed = before.filter(|_| why.is_missing_read());
                Self::unconfirmed(input, since, confirmed, None, waiting_for)
            }
            NodeTraffic::InService { detail } => {
                let since = anew_if(before.is_some());
                Self::unconfirmed(input, since, None, None, format!("the load balancers: {detail}"))
            }
            NodeTraffic::HeldBack { detail } => {
                let since = anew_if(before.is_some());
                let waiting_for = format!("the load balancers, where too few other nodes are in service: {detail}");
                Self::unconfirmed(input, since, None, kept.or(Some(input.now)), waiting_for)
            }
        }
    }

    fn confirmed(
        input: &GateInput<'_>,
        wait_start_time: Timestamp,
        since: Option<Timestamp>,
        confirmed_time: Timestamp,
    ) -> Self {
        let settings = input.settings;
        // Without an entry in a pool, no connection came through one.
        let window = SignedDuration::from_secs(i64::from(since.map_or(0, |_| settings.connections_drain_seconds)));
        let ends_at = |wanted| add(confirmed_time, at_most_half(wanted, confirmed_time, input.deadline));
        let opens_at = ends_at(window);
        let is_waited_for = settings.connections == ConnectionsPolicy::Wait;
        let counted = input.connections.filter(|_| is_waited_for);
        let longest = SignedDuration::from_secs(i64::from(settings.connections_timeout_seconds));
        let given_up_at = ends_at(window + longest);
        let was_open = input
            .previous
            .is_some_and(|status| status.state == LoadBalancerState::Out);
        let (waiting_for, wake_at) = match counted {
            _ if was_open => return Self::out(wait_start_time, since, confirmed_time),
            Some(counted) if input.now < given_up_at => (
                format!("open connections, until {given_up_at:.0} at the latest: {counted}"),
                given_up_at,
            ),
            _ if input.now < opens_at => (format!("open connections, until {opens_at:.0}"), opens_at),
            counted => {
                return Self {
                    opened_without: counted.map(str::to_owned),
                    ..Self::out(wait_start_time, since, confirmed_time)
                };
            }
        };
        Self {
            status: status(
                LoadBalancerState::Draining,
                wait_start_time,
                since,
                Some(confirmed_time),
            ),
            is_open: false,
            is_late: false,
            wake_at: Some(wake_at),
            waiting_for,
            opened_without: None,
        }
    }

    fn unconfirmed(
        input: &GateInput<'_>,
        wait_start_time: Timestamp,
        confirmed_time: Option<Timestamp>,
        kept_in_service_time: Option<Timestamp>,
        waiting_for: String,
    ) -> Self {
        let counts_from = match input.settings.confirmation {
            LoadBalancerConfirmation::BestEffort => Some(wait_start_time),
            LoadBalancerConfirmation::Required => kept_in_service_time,
        };
        if counts_from.is_some_and(|from| input.now >= late_at(input, from)) {
            return Self::timed_out(wait_start_time, Some(waiting_for));
        }
        Self::pending(
            input,
            wait_start_time,
            confirmed_time,
            kept_in_service_time,
            waiting_for,
        )
    }

    fn pending(
        input: &GateInput<'_>,
        wait_start_time: Timestamp,
        confirmed_time: Option<Timestamp>,
        kept_in_service_time: Option<Timestamp>,
        waiting_for: String,
    ) -> Self {
        let status = status(LoadBalancerState::Pending, wait_start_time, None, confirmed_time);
        let times = [Some(wait_start_time), kept_in_service_time].into_iter().flatten();
        let times = times.map(|from| late_at(input, from));
        Self {
            status: LoadBalancerStatus {
                kept_in_service_time: kept_in_service_time.map(Time),
                ..status
            },
            is_open: false,
            is_late: input.now >= late_at(input, wait_start_time)
                || input.overdue.is_some_and(|at| deadline::shortens(at, wait_start_time)),
            wake_at: times.filter(|at| *at > input.now).min(),
            waiting_for,
            opened_without: None,
        }
    }

    fn timed_out(wait_start_time: Timestamp, opened_without: Option<String>) -> Self {
        Self {
            opened_without,
            ..Self::open(status(LoadBalancerState::TimedOut, wait_start_time, None, None))
        }
    }

    fn out(wait_start_time: Timestamp, down_time: Option<Timestamp>, confirmed_time: Timestamp) -> Self {
        Self::open(status(
            LoadBalancerState::Out,
            wait_start_time,
            down_time,
            Some(confirmed_time),
        ))
    }

    fn open(status: LoadBalancerStatus) -> Self {
        Self {
            status,
            is_open: true,
            is_late: false,
            wake_at: None,
            waiting_for: String::new(),
            opened_without: None,
        }
    }
}

fn status(
    state: LoadBalancerState,
    wait_start_time: Timestamp,
    down_time: Option<Timestamp>,
    confirmed_time: Option<Timestamp>,
) -> LoadBalancerStatus {
    LoadBalancerStatus {
        state,
        wait_start_time: Some(Time(wait_start_time)),
        kept_in_service_time: None,
        down_time: down_time.map(Time),
        confirmed_time: confirmed_time.map(Time),
    }
}

/// When the time to wait for a confirmation from then on is over.
fn late_at(input: &GateInput<'_>, from: Timestamp) -> Timestamp {
    let timeout = SignedDuration::from_secs(i64::from(input.settings.confirmation_timeout_seconds));
    add(from, at_most_half(timeout, from, input.deadline))
}

/// Before a deadline, half of the time that is left is for the load balancer at each of its steps, the rest for the pods.
fn at_most_half(wanted: SignedDuration, from: Timestamp, deadline: Option<Timestamp>) -> SignedDuration {
    match deadline {
        Some(deadline) => wanted.min((deadline.duration_since(from) / 2).max(SignedDuration::ZERO)),
        None => wanted,
    }
}

fn add(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.saturating_add(duration).unwrap_or(Timestamp::MAX)
}
