//! The history of a run: requests to ARM for a load balancer and ends of its operations, from the emulator's journal; requests for Leases
//! and writes of the ledger, from kube-apiserver's audit log; and what the run did to processes. All times are of the one machine's clock,
//! but for those that a controller writes, which are by its own (`clocks`).

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// The Lease of the election.
pub(crate) const LEADER_LEASE: &str = "headgate-leader";
/// The Lease that cloud-controller-manager and headgate share.
pub(crate) const SHARED_LEASE: &str = "aks-managed-resource-locker";
/// The `ConfigMap` of the ledger.
pub(crate) const LEDGER: &str = "headgate-admin-state";

/// Something that happened, from begin to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Event {
    pub(crate) begin: Timestamp,
    pub(crate) end: Timestamp,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum What {
    /// A request to ARM.
    Arm(ArmRequest),
    /// An operation of a load balancer ended.
    OperationEnded(OperationEnd),
    /// A request for a Lease.
    Lease(LeaseRequest),
    /// A write of the ledger, with all entries after it.
    Ledger(LedgerEntries),
    /// A controller stood still.
    Frozen(String),
    /// The wall clock of a controller's machine was set, to be ahead by so much, or behind.
    ClockSet { controller: String, ahead_seconds: i64 },
    /// kube-apiserver was stopped: what it did last may be missing here.
    ApiServerStopped,
    /// etcd was restored; these `Down` are in no ledger any more.
    Restored(BTreeSet<String>),
}

/// What the next round begins with, of the history of one: the last write of each Lease and of the ledger, how wrong each clock is, and the
/// last stop of kube-apiserver, after which a Lease may be as it was before that write.
pub(crate) fn carried_over(history: Vec<Event>) -> Vec<Event> {
    let mut last = BTreeMap::new();
    for event in history {
        let (name, event) = match &event.what {
            What::Lease(request) if request.is_write && request.version.is_some() => (request.lease.clone(), event),
            What::Ledger(_) => (LEDGER.to_owned(), event),
            What::ClockSet { controller, .. } => (format!("clock of {controller}"), event),
            What::ApiServerStopped | What::Restored(_) => {
                let what = What::ApiServerStopped;
                (String::new(), Event { what, ..event })
            }
            _ => continue,
        };
        last.insert(name, event);
    }
    last.into_values().collect()
}

/// The entries of the ledger by their names.
pub(crate) type LedgerEntries = BTreeMap<String, Stage>;

/// What the ledger says of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Stage {
    Intended,
    Down,
    /// Its `Down` was given back; the ledger keeps it, as an old copy of another writer's may bring that back.
    Restored,
}

impl Stage {
    /// That of an entry's text, which has a time behind it.
    fn parse(text: &str) -> Self {
        match text.split(' ').next() {
            Some("intended") => Self::Intended,
            Some("down") => Self::Down,
            Some("restored") => Self::Restored,
            _ => panic!("{text:?} is no stage of the ledger"),
        }
    }
}

/// A change of an etag; `None` is no resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Change {
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}

/// The entries of a pool by address, with whether each is `Down`.
pub(crate) type Members = BTreeMap<String, bool>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ArmRequest {
    /// The node of a controller of headgate, otherwise the user agent.
    pub(crate) caller: String,
    pub(crate) is_headgate: bool,
    pub(crate) load_balancer: String,
    pub(crate) pool: Option<String>,
    pub(crate) is_write: bool,
    pub(crate) if_match: Option<String>,
    /// `None` if the answer was cut off.
    pub(crate) status: Option<u16>,
    pub(crate) is_faulted: bool,
    /// What a read showed.
    pub(crate) etag: Option<String>,
    /// `None` for a request without effect.
    pub(crate) change: Option<Change>,
    /// The pools in the body, `None` if the journal has no body.
    pub(crate) pools: Option<BTreeMap<String, Members>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct OperationEnd {
    pub(crate) load_balancer: String,
    pub(crate) is_superseded: bool,
    pub(crate) change: Option<Change>,
}

/// How a request for a Lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Outcome {
    Done,
    /// Another version was there.
    Refused,
    /// It may have had an effect.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LeaseRequest {
    pub(crate) lease: String,
    pub(crate) is_write: bool,
    /// The version that a write follows; `None` for a creation.
    pub(crate) expected: Option<String>,
    pub(crate) outcome: Outcome,
    /// The version in the answer.
    pub(crate) version: Option<String>,
    /// The holder in the answer, empty for none.
    pub(crate) holder: String,
    /// By the clock of its writer.
    pub(crate) renewed: Option<Timestamp>,
}

/// The name of an entry of the ledger.
pub(crate) fn ledger_entry(load_balancer: &str, pool: &str, address: &str) -> String {
    format!("{load_balancer}/backendaddresspools/{} {address}", pool.to_lowercase())
}

fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer)?.as_str()
}

fn time(value: &Value, pointer: &str) -> Option<Timestamp> {
    text(value, pointer)?.parse().ok()
}

fn plain_etag(etag: &str) -> String {
    etag.trim_start_matches("W/").trim_matches('"').to_owned()
}

/// The load balancer's id in lower case and the pool's name; `None` for other resources.
fn target(path: &str) -> Option<(String, Option<String>)> {
    const KIND: &str = "/loadbalancers/";
    let path = path.to_lowercase();
    let name_at = path.find(KIND)? + KIND.len();
    let (name, rest) = path[name_at..].split_once('/').unwrap_or((&path[name_at..], ""));
    let load_balancer = path[..name_at + name.len()].to_owned();
    match rest.split('/').collect::<Vec<_>>()[..] {
        [""] => Some((load_balancer, None)),
        ["backendaddresspools", pool] => Some((load_balancer, Some(pool.to_owned()))),
        _ => None,
    }
}

/// The members in the document of a pool; `None` if it does not say.
pub(crate) fn members_of(pool: &Value) -> Option<Members> {
    let addresses = pool.pointer("/properties/loadBalancerBackendAddresses")?.as_array()?;
    let member = |address: &Value| {
        let key = text(address, "/properties/ipAddress").or_else(|| text(address, "/name"))?;
        let is_down = text(address, "/properties/adminState") == Some("Down");
        Some((key.to_owned(), is_down))
    };
    addresses.iter().map(member).collect()
}

/// The pools of a load balancer's document by their names in lower case.
pub(crate) fn pools_of(load_balancer: &Value) -> Option<BTreeMap<String, Members>> {
    let pools = load_balancer.pointer("/properties/backendAddressPools")?.as_array()?;
    let named = |pool: &Value| Some((text(pool, "/name")?.to_lowercase(), members_of(pool)?));
    pools.iter().map(named).collect()
}

/// The change of the load balancer's own etag in an entry of the journal.
fn change_of(entry: &Value, load_balancer: &str) -> Option<Change> {
    let changes = entry["changes"].as_array()?;
    let is_own = |change: &&Value| text(change, "/resource").is_some_and(|id| id.to_lowercase() == load_balancer);
    let mut own = changes.iter().filter(is_own);
    let first = own.next()?;
    let last = own.next_back().unwrap_or(first);
    Some(Change {
        before: text(first, "/etagBefore").map(plain_etag),
        after: text(last, "/etagAfter").map(plain_etag),
    })
}

/// An entry of the emulator's journal, once it is complete.
pub(crate) fn from_journal(entry: &Value) -> Option<Event> {
    let (begin, end) = (time(entry, "/arrived")?, time(entry, "/completed")?);
    let what = match text(entry, "/kind")? {
        "operation" => {
            let (load_balancer, _) = target(text(entry, "/resource")?)?;
            What::OperationEnded(OperationEnd {
                is_superseded: entry.get("supersededBy").is_some(),
                change: change_of(entry, &load_balancer),
                load_balancer,
            })
        }
        "request" => What::Arm(arm_request(entry)?),
        _ => return None,
    };
    Some(Event { begin, end, what })
}

fn arm_request(entry: &Value) -> Option<ArmRequest> {
    let (load_balancer, pool) = target(text(entry, "/path")?)?;
    let agent = text(entry, "/userAgent").unwrap_or_default();
    let is_headgate = agent.starts_with("headgate");
    let node = agent.split_once(" (").and_then(|(_, rest)| rest.strip_suffix(')'));
    let body = entry.get("body").filter(|body| body.get("truncated").is_none());
    let pools = match &pool {
        Some(pool) => body
            .and_then(members_of)
            .map(|members| BTreeMap::from([(pool.clone(), members)])),
        None => body.and_then(pools_of),
    };
    Some(ArmRequest {
        caller: node.filter(|_| is_headgate).unwrap_or(agent).to_owned(),
        is_headgate,
        is_write: text(entry, "/method")? != "GET",
        if_match: text(entry, "/ifMatch").map(plain_etag).filter(|etag| etag != "*"),
        status: entry["status"].as_u64().and_then(|status| status.try_into().ok()),
        is_faulted: entry.get("fault").is_some(),
        etag: text(entry, "/headers/etag").map(plain_etag),
        change: change_of(entry, &load_balancer),
        load_balancer,
        pool,
        pools,
    })
}

/// An event of kube-apiserver's audit log.
pub(crate) fn from_audit(line: &Value) -> Option<Event> {
    let (begin, end) = (time(line, "/requestReceivedTimestamp")?, time(line, "/stageTimestamp")?);
    let name = text(line, "/objectRef/name")
        .or_else(|| text(line, "/requestObject/metadata/name"))
        .filter(|_| text(line, "/objectRef/namespace") == Some("kube-system"))?;
    let code = line
        .pointer("/responseStatus/code")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    let is_write = text(line, "/verb")? != "get";
    let what = match text(line, "/objectRef/resource")? {
        "leases" if [LEADER_LEASE, SHARED_LEASE].contains(&name) => {
            let outcome = match code {
                200..300 => Outcome::Done,
                409 => Outcome::Refused,
                400..=405 | 410..=429 => return None,
                _ => Outcome::Unknown,
            };
            What::Lease(LeaseRequest {
                lease: name.to_owned(),
                is_write,
                expected: text(line, "/requestObject/metadata/resourceVersion").map(str::to_owned),
                outcome,
                version: text(line, "/responseObject/metadata/resourceVersion").map(str::to_owned),
                holder: text(line, "/responseObject/spec/holderIdentity")
                    .unwrap_or_default()
                    .to_owned(),
                renewed: time(line, "/responseObject/spec/renewTime"),
            })
        }
        "configmaps" if name == LEDGER && is_write && (200..300).contains(&code) => What::Ledger(ledger_entries(
            text(line, "/responseObject/data/ledger.json").unwrap_or("{}"),
        )),
        _ => return None,
    };
    Some(Event { begin, end, what })
}

/// The entries of the ledger's text.
pub(crate) fn ledger_entries(ledger: &str) -> LedgerEntries {
    let ledger: Value = serde_json::from_str(ledger).unwrap_or_default();
    let list = |value: &'_ Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pools: Vec<_> = list(&ledger["pools"]).iter().map(text).collect();
    let mut entries = LedgerEntries::new();
    for group in list(&ledger["entries"]) {
        for (stage, places) in group[0].as_object().into_iter().flatten() {
            let (stage, places) = (Stage::parse(stage), list(places));
            let in_pools = places
                .iter()
                .filter_map(|place| pools.get(usize::try_from(place.as_u64()?).ok()?));
            for pool in in_pools {
                let keys = list(&group[1]);
                entries.extend(keys.iter().map(|key| (format!("{pool} {}", text(key)), stage)));
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BALANCER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/LB";

    #[test]
    fn a_put_in_the_journal_has_its_etags_and_members() {
        let entry = json!({"kind": "request", "arrived": "2026-11-26T02:00:00.5Z", "completed": "2026-11-26T02:00:01Z", "method": "PUT",
            "path": format!("{BALANCER}/backendAddressPools/Pool"), "userAgent": "headgate/0.1.0 (node-2)", "ifMatch": "W/\"a\"", "status": 200,
            "body": {"properties": {"loadBalancerBackendAddresses": [
                {"name": "node-1", "properties": {"ipAddress": "10.0.0.4", "adminState": "Down"}}, {"name": "node-2", "properties": {}}]}},
            "changes": [{"resource": BALANCER, "etagBefore": "W/\"a\"", "etagAfter": "W/\"b\""}]});
        let Some(Event {
            what: What::Arm(request),
            ..
        }) = from_journal(&entry)
        else {
            panic!("{entry}");
        };
        assert_eq!((request.caller.as_str(), request.is_headgate), ("node-2", true));
        assert_eq!(request.if_match.as_deref(), Some("a"));
        let change = request.change.unwrap();
        assert_eq!(
            (change.before.as_deref(), change.after.as_deref()),
            (Some("a"), Some("b"))
        );
        let members = Members::from([("10.0.0.4".to_owned(), true), ("node-2".to_owned(), false)]);
        assert_eq!(request.pools.unwrap()["pool"], members);
        assert_eq!(
            ledger_entry(&request.load_balancer, "Pool", "10.0.0.4"),
            format!("{}/backendaddresspools/pool 10.0.0.4", BALANCER.to_lowercase())
        );
    }

    #[test]
    fn other_resources_and_open_requests_are_no_events() {
        let open = json!({"kind": "request", "arrived": "2026-11-26T02:00:00Z", "completed": null, "method": "GET", "path": BALANCER});
        assert_eq!(from_journal(&open), None);
        for path in [
            "/subscriptions/s/x/publicIPAddresses/p",
            &format!("{BALANCER}/probes/p"),
        ] {
            assert_eq!(target(path), None);
        }
    }

    #[test]
    fn the_audit_log_has_leases_and_the_ledger() {
        let line = |resource: &str, name: &str, code: u16, object: Value| {
            json!({"verb": "update", "requestReceivedTimestamp": "2026-11-26T02:00:00.000001Z", "stageTimestamp": "2026-11-26T02:00:00.1Z",
                "objectRef": {"namespace": "kube-system", "resource": resource, "name": name}, "responseStatus": {"code": code},
                "requestObject": {"metadata": {"resourceVersion": "7"}}, "responseObject": object})
        };
        let answer = json!({"metadata": {"resourceVersion": "8"}, "spec": {"holderIdentity": "node-1_x", "renewTime": "2026-11-26T02:00:00Z"}});
        let Some(What::Lease(request)) = from_audit(&line("leases", LEADER_LEASE, 200, answer)).map(|event| event.what)
        else {
            panic!("a write of a Lease");
        };
        assert_eq!(request.expected.as_deref(), Some("7"));
        assert_eq!(
            (request.version.as_deref(), request.holder.as_str()),
            (Some("8"), "node-1_x")
        );
        let text = r#"{"pools": ["/o", "/p"], "entries": [
            [{"down 2026-11-21T10:00:00Z": [1], "restored 2026-11-21T10:00:00Z": [0]}, ["10.0.0.4"]]]}"#;
        let ledger = from_audit(&line("configmaps", LEDGER, 200, json!({"data": {"ledger.json": text}})))
            .map(|event| event.what);
        let entries = [("/o 10.0.0.4", Stage::Restored), ("/p 10.0.0.4", Stage::Down)];
        let entries = entries.map(|(name, stage)| (name.to_owned(), stage));
        assert_eq!(ledger, Some(What::Ledger(LedgerEntries::from(entries))));
        assert_eq!(from_audit(&line("leases", "other", 200, Value::Null)), None);
    }
}
