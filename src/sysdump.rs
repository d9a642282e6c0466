//! `headgate sysdump`: what one needs to find out later what headgate did, in one archive.
//!
//! Invariants: no Secret is read. Of objects only named fields are taken, settings lose what may be secret, and every text passes
//! [`redact`]. Each part is read by itself, within one time limit and one limit of bytes; what is missing is listed in the archive and
//! fails nothing.

mod archive;
mod cluster;
mod parts;
mod redact;

use std::time::Duration;

use futures::TryFutureExt as _;
use jiff::Timestamp;
use kube::Client;
use tokio::time::Instant;

use crate::check::{CheckReport, read_world};
use crate::config::Settings;
use crate::pods::{HeadgatePod, HeadgatePods};
use crate::report::{Detail, Report as _};
use crate::status::{self, LeaderNodes, StatusReport};
use crate::why::AgentAccess;

pub(crate) use archive::Bundle;
use archive::Part;
use parts::in_time;

/// The time for the check, of which each part of Azure may take long.
const MAX_CHECK_TIME: Duration = Duration::from_secs(45);

/// Reads everything that can be read until the deadline. The settings are those of the command line, for the check.
pub(crate) async fn collect(
    client: &Client,
    access: &AgentAccess,
    settings: &Settings,
    deadline: Instant,
    now: Timestamp,
) -> Bundle {
    let pods = in_time(deadline, HeadgatePods::list(client, &access.namespace, None, None)).await;
    let (found, failed) = match &pods {
        Ok(pods) => (Some(pods), None),
        Err(error) => (None, Some(error.clone())),
    };
    let of_pods = async {
        match found {
            Some(pods) => parts::of_pods(client, pods, access.port, deadline).await,
            None => Vec::new(),
        }
    };
    let (status, checked, objects, of_pods) = futures::join!(
        status_parts(client, access, settings, deadline),
        check_parts(client, settings, deadline, now),
        cluster::parts(client, &access.namespace, deadline),
        of_pods
    );
    let mut bundle = Bundle::default();
    bundle.add(Part::json("versions.json", &parts::versions(found)));
    if let Some(error) = failed {
        bundle.add(Part::missing("pods.json, agents and logs", error));
    }
    // What is small and says most comes first: the limit of bytes cuts the end.
    for part in status.into_iter().chain(checked).chain(objects).chain(of_pods) {
        bundle.add(part);
    }
    bundle
}

/// The report of the leader, or what this machine reads without it.
async fn status_parts(client: &Client, access: &AgentAccess, settings: &Settings, deadline: Instant) -> Vec<Part> {
    let mut parts = Vec::new();
    let served = in_time(deadline, status::fetch_from_leader(client, access, LeaderNodes::All)).await;
    let (report, why) = match served {
        Ok(report) => (report, status::NO_LOAD_BALANCERS),
        Err(error) => {
            parts.push(Part::missing("status of the leader", error));
            (None, "the leader does not serve its state")
        }
    };
    let report = if report.is_some() {
        report
    } else {
        let snapshot = Box::pin(status::take_snapshot(client, Err(why.to_owned()), settings));
        match in_time(deadline, snapshot.map_err(|failure| failure.error.to_string())).await {
            Ok(snapshot) => Some(StatusReport::from_snapshot(&snapshot)),
            Err(error) => {
                parts.push(Part::missing("status", error));
                None
            }
        }
    };
    if let Some(report) = report {
        parts.push(Part::text("status.txt", &report.text(Detail::Wide)));
        parts.push(Part::json("status.json", &report));
    }
    parts
}

async fn check_parts(client: &Client, settings: &Settings, deadline: Instant, now: Timestamp) -> Vec<Part> {
    let until = deadline.min(Instant::now() + MAX_CHECK_TIME);
    let world = Box::pin(read_world(client, settings));
    match in_time(until, world.map_err(|failure| failure.error.to_string())).await {
        Err(error) => vec![Part::missing("check.txt", error)],
        Ok(world) => {
            let report = CheckReport::new(&world, now);
            vec![
                Part::text("check.txt", &report.text(Detail::Wide)),
                Part::json("check.json", &report),
            ]
        }
    }
}

/// The pods whose logs are read: all but those of agents, and of agents the first.
fn logged(pods: &[HeadgatePod]) -> Vec<&HeadgatePod> {
    let (agents, others): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| pod.component == "agent");
    others.into_iter().chain(agents).take(parts::MAX_LOGGED_PODS).collect()
}
