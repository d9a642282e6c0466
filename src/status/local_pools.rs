//! The pools of Local Services: the members that each is to have, and those that it has. Read once, with the same rules as the
//! leader's updater; what waits in the leader's queue is in its `/statusz`.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use headgate_controller::admin_state::{TargetState, TargetStates};
use headgate_controller::local_pools::{
    NodeIndex, PoolStatus, QueuedUpdate, ServiceStatus, SharedUpdater, Updater, UpdaterSettings, apply_nodes,
};
use headgate_controller::pool::{Listing, LoadBalancerView, Observation};
use headgate_controller::service_index::ServiceIndex;
use headgate_core::service::{EndpointSliceObject, IpFamily, NamespacedName, Service, ServiceObject};
use headgate_core::telemetry::escape_line;
use headgate_kubernetes::{Decoded, load_balancer_services};
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::report::StatusReport;
use crate::readable_objects::list_all;

/// Rows in the text of `headgate status`.
const MAX_ROWS: usize = 20;

/// The row of a Local Service's pool, or of a family for which it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LocalPoolRow {
    /// `NAMESPACE/NAME`.
    pub service: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// `LOAD BALANCER/POOL`, in lower case; `None` if there is no pool to update.
    pub pool: Option<String>,
    /// Why there is none.
    pub unavailable: Option<String>,
    /// The members that the pool is to have; `None` if the Service has no EndpointSlices, so that the pool stays as it is.
    pub desired: Option<Vec<IpAddr>>,
    /// The entries of the pool, foreign ones included.
    pub actual: Vec<IpAddr>,
    /// Members without an entry.
    pub missing: Vec<IpAddr>,
    /// Entries of Nodes that are to leave.
    pub surplus: Vec<IpAddr>,
    /// Nodes with an endpoint that are no members, and why.
    pub left_out: Vec<String>,
}

impl LocalPoolRow {
    /// Whether an update is due.
    pub(crate) fn is_pending(&self) -> bool {
        !self.missing.is_empty() || !self.surplus.is_empty()
    }

    /// What is due, in one phrase; empty if nothing is.
    fn difference(&self) -> String {
        let part = |name: &str, addresses: &[IpAddr]| {
            let shown: Vec<_> = addresses.iter().take(3).map(ToString::to_string).collect();
            let more = if addresses.len() > 3 { ", …" } else { "" };
            (!addresses.is_empty()).then(|| format!("{name} {}{more}", shown.join(", ")))
        };
        let parts = [part("missing", &self.missing), part("surplus", &self.surplus)];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }
}

impl fmt::Display for LocalPoolRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(pool) = &self.pool else {
            let reason = self.unavailable.as_deref().unwrap_or_default();
            return writeln!(f, "{}: {}", self.family, escape_line(reason));
        };
        let list = |addresses: &[IpAddr]| {
            let texts: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            if texts.is_empty() {
                "none".to_owned()
            } else {
                texts.join(", ")
            }
        };
        let state = if self.is_pending() {
            self.difference()
        } else {
            "up to date".to_owned()
        };
        writeln!(f, "{} ({}): {state}", escape_line(pool), self.family)?;
        match &self.desired {
            Some(desired) => writeln!(f, "  desired   {}", list(desired))?,
            None => writeln!(f, "  desired   as it is: the Service has no EndpointSlices")?,
        }
        writeln!(f, "  actual    {}", list(&self.actual))?;
        for node in &self.left_out {
            writeln!(f, "  left out  {}", escape_line(node))?;
        }
        Ok(())
    }
}

fn describe_queued(update: &QueuedUpdate) -> String {
    let (pool, since, retries) = (escape_line(&update.pool), update.pending_since, update.retries);
    let parked = update.parked_until.map(|until| format!(", parked until {until:.0}"));
    let parked = parked.unwrap_or_default();
    format!("In the leader's queue: {pool}, pending since {since:.0}, {retries} retries{parked}.\n")
}

/// What is known about the pools of Local Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalPoolsSnapshot {
    /// Whether the leader updates such pools, by the settings and `azure.json`.
    pub is_active: bool,
    /// In the order of the Services; or why they are unknown.
    pub rows: Vec<LocalPoolRow>,
    /// Why the rows are missing.
    pub error: Option<String>,
    /// The queue of the leader, if its `/statusz` was read.
    pub queue: Vec<QueuedUpdate>,
}

impl LocalPoolsSnapshot {
    /// What the leader knows of them; it updates such pools if it has rows of them.
    pub(crate) fn of_leader(report: StatusReport) -> Self {
        let work = report.leader_work;
        Self {
            is_active: work.as_ref().is_some_and(|work| work.updates_local_pools),
            rows: report.local_pools,
            error: report.local_pools_error,
            queue: work.map(|work| work.queue).unwrap_or_default(),
        }
    }
}

/// Services of type `LoadBalancer`, and all `EndpointSlices`.
pub(super) struct ListedServices {
    services: Vec<Arc<Service>>,
    slices: Vec<EndpointSliceObject>,
}

/// Lists Services and `EndpointSlices`.
pub(super) async fn list_services(client: &Client) -> Result<ListedServices, String> {
    let (selecting, load_balancers) = load_balancer_services(client);
    let services = list::<ServiceObject>(&selecting, load_balancers).await?;
    Ok(ListedServices {
        services: services.into_iter().filter_map(Service::read).map(Arc::new).collect(),
        slices: list::<EndpointSliceObject>(client, ListParams::default()).await?,
    })
}

impl ListedServices {
    /// Which Nodes serve the rules of Local Services.
    pub(super) fn index(&self, now: Instant) -> ServiceIndex {
        let mut index = ServiceIndex::default();
        for service in &self.services {
            index.apply_service(service);
        }
        index.retain_services(&self.services.iter().map(|service| service.name.clone()).collect());
        for slice in &self.slices {
            index.apply_slice(slice, now);
        }
        index.retain_slices(&self.slice_names());
        index
    }

    fn slice_names(&self) -> HashSet<NamespacedName> {
        let slices = self.slices.iter();
        slices.filter_map(|slice| NamespacedName::of(&slice.metadata)).collect()
    }
}

/// Compares the pools with what was listed.
pub(super) fn take_local_pools(
    settings: UpdaterSettings,
    listing: &Listing,
    desired: &TargetStates,
    listed: Result<ListedServices, String>,
) -> LocalPoolsSnapshot {
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) => {
            return LocalPoolsSnapshot {
                is_active: true,
                error: Some(error),
                ..LocalPoolsSnapshot::default()
            };
        }
    };
    let mut updater = Updater::new(settings);
    let now = Instant::now();
    apply_nodes(&mut updater, &desired.nodes, |node| {
        desired.target_state(node, now) == TargetState::Down
    });
    let names: Vec<_> = listed.services.iter().map(|service| service.name.clone()).collect();
    for service in &listed.services {
        updater.apply_service(service);
    }
    updater.retain_services(&names.iter().cloned().collect());
    for slice in &listed.slices {
        updater.apply_slice(slice);
    }
    updater.retain_slices(&listed.slice_names());
    let observe = |view: &Arc<LoadBalancerView>| Observation {
        requested_at: now,
        view: Arc::clone(view),
    };
    updater.observe(listing.load_balancers.values().map(observe).collect());
    updater.begin_tick(now);
    LocalPoolsSnapshot {
        is_active: true,
        rows: rows(&updater, names),
        ..LocalPoolsSnapshot::default()
    }
}

/// The rows of all Services of the leader's updater.
pub(super) fn rows_of(updater: &SharedUpdater) -> Vec<LocalPoolRow> {
    let updater = updater.lock();
    rows(&updater, updater.service_names())
}

/// The rows of these Services.
fn rows(updater: &Updater, mut names: Vec<NamespacedName>) -> Vec<LocalPoolRow> {
    names.sort();
    let nodes = updater.nodes();
    let found = names.iter().filter_map(|name| updater.service_status(name));
    found.flat_map(|status| service_rows(status, &nodes)).collect()
}

fn service_rows(status: ServiceStatus, nodes: &NodeIndex) -> Vec<LocalPoolRow> {
    let row = |family: IpFamily| LocalPoolRow {
        service: status.service.to_string(),
        family: family.to_string(),
        ..LocalPoolRow::default()
    };
    let pools = status
        .pools
        .into_iter()
        .map(|pool| pool_row(row(pool.family), pool, nodes));
    let skipped = status.skipped.into_iter().map(|skip| LocalPoolRow {
        unavailable: Some(skip.reason.to_string()),
        ..row(skip.family)
    });
    pools.chain(skipped).collect()
}

fn pool_row(row: LocalPoolRow, status: PoolStatus, nodes: &NodeIndex) -> LocalPoolRow {
    let actual: Vec<IpAddr> = status.actual.iter().map(IpAddr::to_canonical).collect();
    let Some(selection) = status.desired else {
        return LocalPoolRow {
            pool: Some(status.pool.to_string()),
            actual,
            ..row
        };
    };
    let desired: Vec<IpAddr> = selection
        .members
        .as_slice()
        .iter()
        .map(|member| member.address)
        .collect();
    let joining = selection.members.as_slice().iter().filter(|member| !member.is_leaving);
    let missing = joining
        .map(|member| member.address)
        .filter(|address| !actual.contains(address))
        .collect();
    let left_out = selection.skipped.iter().map(|skip| match &skip.node {
        Some(node) => format!("{node}: {}", skip.reason),
        None => skip.reason.to_string(),
    });
    let surplus = actual
        .iter()
        .filter(|address| !desired.contains(address) && nodes.owns_entry(None, **address));
    LocalPoolRow {
        pool: Some(status.pool.to_string()),
        missing,
        surplus: surplus.copied().collect(),
        left_out: left_out.collect(),
        actual,
        desired: Some(desired),
        ..row
    }
}

/// Lists all objects of a kind, page by page.
pub(crate) async fn list<K>(client: &Client, params: ListParams) -> Result<Vec<K>, String>
where
    K: Resource<Scope = NamespaceResourceScope> + Clone + fmt::Debug + DeserializeOwned,
    K::DynamicType: Default,
{
    let listed = list_all(&Api::<Decoded<K>>::all(client.clone()), params).await;
    listed.map_err(|error| format!("{} cannot be listed: {error}", K::plural(&K::DynamicType::default())))
}

/// The cells of the table: a header and the rows that need attention first.
pub(super) fn table(rows: &[LocalPoolRow], is_wide: bool) -> (Vec<String>, Vec<Vec<String>>, usize) {
    let header = ["LOCAL SERVICE", "POOL", "DESIRED", "ACTUAL", "DUE"];
    let mut sorted: Vec<_> = rows.iter().collect();
    sorted.sort_by_key(|row| !(row.is_pending() || row.pool.is_none()));
    let shown = if is_wide {
        sorted.len()
    } else {
        sorted.len().min(MAX_ROWS)
    };
    let hidden = sorted.len() - shown;
    let cells = sorted.into_iter().take(shown).map(|row| {
        let count = |list: Option<usize>| list.map_or_else(|| "-".to_owned(), |count| count.to_string());
        vec![
            row.service.clone(),
            row.pool.clone().unwrap_or_else(|| "-".to_owned()),
            count(row.desired.as_ref().map(Vec::len)),
            count(row.pool.as_ref().map(|_| row.actual.len())),
            row.unavailable.clone().unwrap_or_else(|| row.difference()),
        ]
    });
    (header.map(str::to_owned).to_vec(), cells.collect(), hidden)
}

/// Explains the pools of one Service in words.
pub(crate) fn explain_service(service: &str, snapshot: &LocalPoolsSnapshot) -> String {
    let own: Vec<_> = snapshot.rows.iter().filter(|row| row.service == service).collect();
    let name = escape_line(service);
    let verdict = match (&snapshot.error, snapshot.is_active, own.as_slice()) {
        (Some(error), ..) => return format!("Service {name}: not known: {}.\n", escape_line(error)),
        (None, false, _) => {
            return format!(
                "Service {name}: headgate updates no pools of Local Services: adminState.mode is not Enforce, localPools is \
                 Disabled, or azure.json has no multipleStandardLoadBalancerConfigurations.\n"
            );
        }
        (None, true, []) => {
            return format!(
                "Service {name} has no pools of its own: it does not exist, or is not a Service of type LoadBalancer with \
                 externalTrafficPolicy: Local.\n"
            );
        }
        (None, true, rows) => {
            let due = rows.iter().filter(|row| row.is_pending()).count();
            let without = rows.iter().filter(|row| row.pool.is_none()).count();
            match (due, without) {
                (0, 0) => "every pool has the nodes of its endpoints".to_owned(),
                (0, _) => "a pool is missing or left alone".to_owned(),
                (due, _) => format!(
                    "{due} of {} pools are to be updated; the leader does so in its next tick, and events of the Service and \
                     the leader's /statusz show what prevents it",
                    rows.len()
                ),
            }
        }
    };
    let rows: String = own.iter().map(ToString::to_string).collect();
    let queued = snapshot.queue.iter().filter(|update| update.service == service);
    let queued: String = queued.map(describe_queued).collect();
    format!("Service {name}: {verdict}.\n\n{rows}{queued}")
}

#[cfg(test)]
mod tests {
    use headgate_test_kubernetes::assert_contains;

    use super::*;

    fn address(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    fn row(missing: &[u8], surplus: &[u8]) -> LocalPoolRow {
        LocalPoolRow {
            service: "default/web".to_owned(),
            family: "IPv4".to_owned(),
            pool: Some("lb/default-web".to_owned()),
            unavailable: None,
            desired: Some(vec![address(1), address(2)]),
            actual: vec![address(1)],
            missing: missing.iter().copied().map(address).collect(),
            surplus: surplus.iter().copied().map(address).collect(),
            left_out: vec!["n9: there is no Node of this name".to_owned()],
        }
    }

    fn queued(service: &str) -> QueuedUpdate {
        QueuedUpdate {
            service: service.to_owned(),
            pool: "lb/default-web".to_owned(),
            pending_since: "2026-01-02T03:04:05Z".parse().unwrap(),
            retries: 2,
            parked_until: Some("2026-01-02T03:05:00Z".parse().unwrap()),
        }
    }

    fn explained(rows: Vec<LocalPoolRow>) -> String {
        let snapshot = LocalPoolsSnapshot {
            is_active: true,
            rows,
            queue: vec![queued("default/web"), queued("default/api")],
            ..LocalPoolsSnapshot::default()
        };
        explain_service("default/web", &snapshot)
    }

    #[test]
    fn explanation_names_what_is_due_and_who_is_left_out() {
        assert_eq!(
            explained(vec![row(&[2], &[3])]),
            "Service default/web: 1 of 1 pools are to be updated; the leader does so in its next tick, and events of the Service \
             and the leader's /statusz show what prevents it.\n\n\
             lb/default-web (IPv4): missing 10.0.0.2; surplus 10.0.0.3\n  desired   10.0.0.1, 10.0.0.2\n  actual    10.0.0.1\n  \
             left out  n9: there is no Node of this name\n\
             In the leader's queue: lb/default-web, pending since 2026-01-02T03:04:05Z, 2 retries, parked until \
             2026-01-02T03:05:00Z.\n"
        );
        let unavailable = LocalPoolRow {
            pool: None,
            unavailable: Some("no load balancer has the backend pool default-web".to_owned()),
            ..row(&[], &[])
        };
        let text = explained(vec![row(&[], &[]), unavailable]);
        assert_contains!(text, "a pool is missing or left alone.", ": up to date\n");
        assert_contains!(text, "IPv4: no load balancer has the backend pool default-web\n");
        assert!(explained(Vec::new()).contains("has no pools of its own"));
        assert!(explain_service("a/b", &LocalPoolsSnapshot::default()).contains("updates no pools"));
    }

    #[test]
    fn rows_that_need_attention_come_first_and_long_tables_are_cut() {
        let mut rows = vec![row(&[], &[]); 30];
        rows.push(row(&[1, 2, 3, 4], &[]));
        let (header, cells, hidden) = table(&rows, false);
        assert_eq!((header.len(), cells.len(), hidden), (5, MAX_ROWS, 11));
        assert_eq!(cells[0][4], "missing 10.0.0.1, 10.0.0.2, 10.0.0.3, …");
        assert_eq!(table(&rows, true).1.len(), 31);
    }
}
