//! The answers of `/healthz` and `/livez` as status and body: kube-proxy's body, with `signals` and `source` added to
//! `/healthz`. Pure.
//!
//! The body is a contract to the byte: one line without spaces and without a newline at the end, fields in
//! kube-proxy's order, times in RFC 3339 without trailing zeros, and `0001-01-01T00:00:00Z` for a time that does not
//! exist.

use std::collections::BTreeMap;
use std::fmt;

use hyper::StatusCode;
use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::proxy_status::FamilyHealth;
use super::verdict::Verdict;
use headgate_core::service::IpFamily;

/// The initial capacity for a body: enough for both families and a few signals.
const BODY_CAPACITY_BYTES: usize = 384;

/// A status and its JSON body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The status code, 200 or 503.
    pub(super) status: StatusCode,
    /// The body as UTF-8 text.
    pub(super) body: Vec<u8>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    last_updated: GoTime,
    current_time: GoTime,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "Families::is_empty")]
    status: Families<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signals: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
}

/// The field `status`: kube-proxy's health by IP family.
struct Families<'a>(&'a BTreeMap<IpFamily, FamilyHealth>);

impl Families<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Families<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(family, health)| {
            let body = FamilyBody {
                last_updated: GoTime(health.last_updated),
                healthy: health.healthy,
            };
            (family, body)
        }))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: GoTime,
    healthy: bool,
}

/// A time as Go's JSON encoder writes it; `None` is Go's zero time.
struct GoTime(Option<Timestamp>);

impl fmt::Display for GoTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(time) => write!(f, "{time}"),
            None => f.write_str("0001-01-01T00:00:00Z"),
        }
    }
}

impl Serialize for GoTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The answer of `/healthz`: 503 if the node has a signal or kube-proxy is not healthy.
pub(super) fn healthz_answer(verdict: &Verdict) -> Answer {
    let is_ok = verdict.is_healthz_ok();
    let body = Body {
        node_eligible: Some(verdict.is_eligible()),
        signals: Some(&verdict.signals),
        source: Some(verdict.source.as_str()),
        ..proxy_body(verdict, is_ok)
    };
    encode(is_ok, &body)
}

/// The answer of `/livez`: 503 if kube-proxy is not healthy.
pub(super) fn livez_answer(verdict: &Verdict) -> Answer {
    let is_ok = verdict.is_livez_ok();
    encode(is_ok, &proxy_body(verdict, is_ok))
}

/// The fields that both paths have.
fn proxy_body(verdict: &Verdict, is_ok: bool) -> Body<'_> {
    // As in kube-proxy: the time of a 200 is now, the time of a 503 is that of the last update.
    let last_updated = if is_ok {
        Some(verdict.at.wall)
    } else {
        verdict.proxy.last_updated
    };
    Body {
        last_updated: GoTime(last_updated),
        current_time: GoTime(Some(verdict.at.wall)),
        node_eligible: None,
        healthy: verdict.proxy.healthy,
        status: Families(&verdict.proxy.families),
        signals: None,
        source: None,
    }
}

fn encode(is_ok: bool, body: &Body<'_>) -> Answer {
    let mut text = Vec::with_capacity(BODY_CAPACITY_BYTES);
    // Strings, booleans and times cannot fail to serialize, and the status would be right even with half a body.
    let _ = serde_json::to_writer(&mut text, body);
    Answer {
        status: if is_ok {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        },
        body: text,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headgate_core::clock::{Clock, Moment};
    use headgate_core::node::{AzureNotice, Node, NodeReport, Signal, SignalRules, Taint};

    use super::super::proxy_status::{ProxyPart, ProxyStatus};
    use super::super::verdict::verdict;
    use super::*;

    fn at(wall: &str) -> Moment {
        Moment {
            wall: wall.parse().unwrap(),
            ..Clock::System.now()
        }
    }

    fn node(taints: &[&str], now: Moment) -> NodeReport {
        let node = Node {
            taints: taints.iter().map(|key| Taint::new(key, "NoSchedule")).collect(),
            ..Node::default()
        };
        let node = node.with_signals(&SignalRules::new(["drain"], &[]));
        NodeReport::initial(None, &SignalRules::default(), now).with_node(node, now)
    }

    fn texts(node: &NodeReport, proxy: &ProxyStatus, now: Moment) -> [(u16, String); 2] {
        let verdict = verdict(node, proxy, now);
        [healthz_answer(&verdict), livez_answer(&verdict)]
            .map(|a| (a.status.as_u16(), String::from_utf8(a.body).unwrap()))
    }

    #[test]
    fn answers_before_the_first_update() {
        let now = at("2026-01-02T03:04:05.06Z");
        let [healthz, livez] = texts(
            &NodeReport::initial(None, &SignalRules::default(), now),
            &ProxyStatus::new(Duration::from_mins(1)),
            now,
        );
        assert_eq!(healthz, (200, r#"{"lastUpdated":"2026-01-02T03:04:05.06Z","currentTime":"2026-01-02T03:04:05.06Z","nodeEligible":true,"healthy":true,"signals":[],"source":"none"}"#.into()));
        assert_eq!(
            livez,
            (
                200,
                r#"{"lastUpdated":"2026-01-02T03:04:05.06Z","currentTime":"2026-01-02T03:04:05.06Z","healthy":true}"#
                    .into()
            )
        );
    }

    #[test]
    fn tainted_node_before_the_first_update_has_the_zero_time() {
        let now = at("2026-01-02T03:04:05Z");
        let [healthz, livez] = texts(&node(&["drain"], now), &ProxyStatus::new(Duration::from_mins(1)), now);
        assert_eq!(healthz, (503, r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-01-02T03:04:05Z","nodeEligible":false,"healthy":true,"signals":["drain"],"source":"watch"}"#.into()));
        assert_eq!(livez.0, 200);
    }

    #[test]
    fn families_are_in_order_with_their_own_times() {
        let now = at("2026-01-02T03:04:05.123456789Z");
        let mut proxy = ProxyStatus::new(Duration::from_mins(1));
        proxy.mark_updated(
            ProxyPart::Family(IpFamily::IPv6),
            "2026-01-02T03:00:00.5Z".parse().unwrap(),
        );
        proxy.mark_failing(
            ProxyPart::Family(IpFamily::IPv4),
            Some("2026-01-02T02:00:00Z".parse().unwrap()),
        );
        let [healthz, livez] = texts(&node(&[], now), &proxy, now);
        let status = r#""status":{"IPv4":{"lastUpdated":"2026-01-02T02:00:00Z","healthy":false},"IPv6":{"lastUpdated":"2026-01-02T03:00:00.5Z","healthy":true}}"#;
        let start = r#"{"lastUpdated":"2026-01-02T03:00:00.5Z","currentTime":"2026-01-02T03:04:05.123456789Z","#;
        assert_eq!(
            healthz,
            (
                503,
                format!(r#"{start}"nodeEligible":true,"healthy":false,{status},"signals":[],"source":"watch"}}"#)
            )
        );
        assert_eq!(livez, (503, format!(r#"{start}"healthy":false,{status}}}"#)));
    }

    #[test]
    fn notice_is_a_signal_among_others() {
        let now = at("2026-01-02T03:04:05Z");
        let verdict = |node: &NodeReport| verdict(node, &ProxyStatus::new(Duration::from_mins(1)), now);
        let notices = BTreeMap::from([(Signal::Azure(AzureNotice::Preempt), now.wall)]);
        let alone = verdict(&node(&[], now)).with_notices(&notices);
        assert_eq!(alone.signals, ["preempt"]);
        assert!(!alone.is_eligible() && !alone.is_healthz_ok() && alone.is_livez_ok());
        assert_eq!(
            verdict(&node(&["drain"], now)).with_notices(&notices).signals,
            ["drain", "preempt"]
        );
        assert_eq!(
            verdict(&node(&["drain"], now)).with_notices(&BTreeMap::new()).signals,
            ["drain"]
        );
    }
}
