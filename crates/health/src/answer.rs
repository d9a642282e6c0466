//! The two answers on the wire: kube-proxy's body, with `signals` and `source` added to `/healthz`.
//!
//! Byte for byte: one line, no spaces, no newline at the end, fields in kube-proxy's order, times as
//! RFC 3339 without trailing zeros, a time that never was as `0001-01-01T00:00:00Z`. Pure.

use std::collections::BTreeMap;
use std::fmt;

use hyper::StatusCode;
use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::proxy::Family;
use super::verdict::Verdict;

/// Room for a body with both families and few signals.
const USUAL_BYTES: usize = 384;

/// A status and its JSON body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// 200 or 503, never another.
    pub status: StatusCode,
    /// The body.
    pub body: Vec<u8>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    last_updated: Time,
    current_time: Time,
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

/// Each family's last update and health.
struct Families<'a>(&'a BTreeMap<Family, (Timestamp, bool)>);

impl Families<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for Families<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(family, (updated, healthy))| {
            let body = FamilyBody {
                last_updated: Time(Some(*updated)),
                healthy: *healthy,
            };
            (family, body)
        }))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: Time,
    healthy: bool,
}

/// A time as Go's encoder writes it; `None` is Go's zero time.
struct Time(Option<Timestamp>);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(time) => write!(f, "{time}"),
            None => f.write_str("0001-01-01T00:00:00Z"),
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The answer of `/healthz`.
#[must_use]
pub fn healthz(verdict: &Verdict) -> Answer {
    let extra = (
        Some(verdict.eligible()),
        Some(verdict.signals.as_slice()),
        Some(verdict.source.as_str()),
    );
    answer(verdict, verdict.healthz(), extra)
}

/// The answer of `/livez`.
#[must_use]
pub fn livez(verdict: &Verdict) -> Answer {
    answer(verdict, verdict.livez(), (None, None, None))
}

fn answer(
    verdict: &Verdict,
    good: bool,
    (node_eligible, signals, source): (Option<bool>, Option<&[String]>, Option<&'static str>),
) -> Answer {
    let body = Body {
        // A good answer is as fresh as can be; a bad one shows how old the last good state is.
        last_updated: Time(if good {
            Some(verdict.at.wall)
        } else {
            verdict.proxy.last_updated
        }),
        current_time: Time(Some(verdict.at.wall)),
        node_eligible,
        healthy: verdict.proxy.healthy,
        status: Families(&verdict.proxy.families),
        signals,
        source,
    };
    let mut text = Vec::with_capacity(USUAL_BYTES);
    // Serializing strings, booleans and times has no failure; half a body would still carry the status.
    let _ = serde_json::to_writer(&mut text, &body);
    Answer {
        status: if good {
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

    use headgate_clock::{Clock, Moment};
    use headgate_node::{Facts, Report};

    use super::super::proxy::{Part, ProxyStatus};
    use super::super::verdict::verdict;
    use super::*;

    fn at(wall: &str) -> Moment {
        Moment {
            wall: wall.parse().unwrap(),
            ..Clock::System.now()
        }
    }

    fn node(taints: &[&str], now: Moment) -> Report {
        let facts = Facts {
            taints: taints.iter().map(ToString::to_string).collect(),
            ..Facts::default()
        };
        Report::initial(None, &[], now).observed(facts, &["drain".to_owned()], now)
    }

    fn texts(node: &Report, proxy: &ProxyStatus, now: Moment) -> [(u16, String); 2] {
        let verdict = verdict(node, proxy, false, now);
        [healthz(&verdict), livez(&verdict)].map(|a| (a.status.as_u16(), String::from_utf8(a.body).unwrap()))
    }

    #[test]
    fn before_any_update() {
        let now = at("2026-01-02T03:04:05.06Z");
        let [healthz, livez] = texts(
            &Report::initial(None, &[], now),
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
    fn a_tainted_node_before_any_update_shows_the_zero_time() {
        let now = at("2026-01-02T03:04:05Z");
        let [healthz, livez] = texts(&node(&["drain"], now), &ProxyStatus::new(Duration::from_mins(1)), now);
        assert_eq!(healthz, (503, r#"{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2026-01-02T03:04:05Z","nodeEligible":false,"healthy":true,"signals":["drain"],"source":"watch"}"#.into()));
        assert_eq!(livez.0, 200);
    }

    #[test]
    fn families_in_order_with_their_own_times() {
        let now = at("2026-01-02T03:04:05.123456789Z");
        let mut proxy = ProxyStatus::new(Duration::from_mins(1));
        proxy.updated(Part::Family(Family::IPv6), "2026-01-02T03:00:00.5Z".parse().unwrap());
        proxy.failing(
            Part::Family(Family::IPv4),
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
    fn a_notice_is_a_signal_among_the_others() {
        let now = at("2026-01-02T03:04:05Z");
        let verdict = |node: &Report| verdict(node, &ProxyStatus::new(Duration::from_mins(1)), false, now);
        let notices = BTreeMap::from([("azurePreempt".to_owned(), now.wall)]);
        let alone = verdict(&node(&[], now)).with_notices(&notices);
        assert_eq!(alone.signals, ["azurePreempt"]);
        assert!(!alone.eligible() && !alone.healthz() && alone.livez());
        assert_eq!(
            verdict(&node(&["drain"], now)).with_notices(&notices).signals,
            ["azurePreempt", "drain"]
        );
        assert_eq!(
            verdict(&node(&["drain"], now)).with_notices(&BTreeMap::new()).signals,
            ["drain"]
        );
    }

    #[test]
    fn stopping_is_a_signal_of_its_own() {
        let now = at("2026-01-02T03:04:05Z");
        let verdict = verdict(
            &node(&["drain"], now),
            &ProxyStatus::new(Duration::from_mins(1)),
            true,
            now,
        );
        assert_eq!(verdict.signals, ["drain", "headgateStopping"]);
        assert!(!verdict.healthz() && verdict.livez());
    }
}
