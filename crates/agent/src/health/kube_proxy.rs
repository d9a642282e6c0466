//! Polls kube-proxy's own health server, each second, and applies the answers to the proxy status.
//!
//! A 200 is an update. No answer leaves an update pending, so it counts after the health timeout. A 503 counts at
//! once. After a 404 on `/livez`, `/healthz` of the same server is requested (kube-proxy before 1.28). A server that has answered neither
//! this process nor an earlier one of this boot is ignored, because there are clusters without kube-proxy. The process's own `/livez` does
//! not depend on any of this: a restart of headgate does not repair kube-proxy.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use headgate_core::clock::{Clock, Moment};
use headgate_http::client::PlainClient;
use hyper::{StatusCode, Uri};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::proxy_status::{ProxyPart, ProxyStatus};
use headgate_core::service::IpFamily;

/// Time for one request; kube-proxy answers from memory.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// More than any body of kube-proxy.
const MAX_BODY_BYTES: usize = 65_536;

/// How kube-proxy is polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// `host:port` of kube-proxy's health server; `None` disables polling.
    pub healthz_authority: Option<String>,
    /// Time between two requests.
    pub poll_interval: Duration,
    /// How long kube-proxy may not answer, or a change may be pending, before the node counts as unhealthy.
    pub health_timeout: Duration,
}

/// The fields of kube-proxy's body that are used. Bodies of old versions have none of them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Body {
    healthy: Option<bool>,
    status: BTreeMap<IpFamily, FamilyStatus>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FamilyStatus {
    last_updated: Timestamp,
    healthy: bool,
}

/// The result of one poll.
#[derive(Debug)]
enum PollResult {
    /// Status and body from `/livez`, or from `/healthz` of an old version.
    Answer(StatusCode, Bytes),
    /// Why there is no answer of a kube-proxy.
    NoAnswer(String),
}

fn apply(status: &mut ProxyStatus, result: &PollResult, now: Moment) {
    match result {
        PollResult::NoAnswer(_) => status.mark_all_pending(now),
        PollResult::Answer(code, body) => apply_kube_proxy_answer(status, *code, body, now),
    }
}

/// Applies one answer to the proxy status: its status code, and what its body contains. Pure.
pub fn apply_kube_proxy_answer(status: &mut ProxyStatus, code: StatusCode, body: &[u8], now: Moment) {
    // A body that is not in the format is an old version's, with which only the status code counts.
    let body: Body = serde_json::from_slice(body).unwrap_or_default();
    // A 503 can come from a healthy kube-proxy on a tainted node, if only `/healthz` exists.
    let healthy = code == StatusCode::OK || body.healthy == Some(true);
    // The status code is kube-proxy's contract: a 200 is an update even if the body disagrees.
    let is_failing = |family: &FamilyStatus| code != StatusCode::OK && !family.healthy;
    let any_family_failing = body.status.values().any(is_failing);
    let mut parts: Vec<ProxyPart> = body.status.keys().copied().map(ProxyPart::Family).collect();
    if parts.is_empty() || (!healthy && !any_family_failing) {
        parts.push(ProxyPart::Whole);
    }
    status.retain(&parts);
    for part in parts {
        match part {
            ProxyPart::Family(family) if is_failing(&body.status[&family]) => {
                status.mark_failing(part, Some(body.status[&family].last_updated));
            }
            ProxyPart::Family(family) => status.mark_updated(part, body.status[&family].last_updated),
            ProxyPart::Whole if healthy => status.mark_updated(part, now.wall),
            ProxyPart::Whole => status.mark_failing(part, None),
        }
    }
}

/// Polls kube-proxy and publishes its status until the task is aborted. Without an authority the status stays
/// unknown.
pub async fn poll_kube_proxy(settings: ProxySettings, state: watch::Sender<ProxyStatus>, clock: Clock) {
    let Some(authority) = settings.healthz_authority else {
        // Receivers of the status need the sender.
        return state.closed().await;
    };
    let client = PlainClient::plain(REQUEST_TIMEOUT, MAX_BODY_BYTES);
    let mut ticks = interval(settings.poll_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reachable = state.borrow().is_known().then_some(true);
    loop {
        ticks.tick().await;
        let result = match request(&client, &authority, "/livez").await {
            PollResult::Answer(StatusCode::NOT_FOUND, _) => request(&client, &authority, "/healthz").await,
            other => other,
        };
        let result = match result {
            PollResult::Answer(code, _) if code != StatusCode::OK && code != StatusCode::SERVICE_UNAVAILABLE => {
                PollResult::NoAnswer(format!("it answers {code}, so it is not a health server of kube-proxy"))
            }
            other => other,
        };
        log_reachability(&mut reachable, &result, &authority);
        state.send_if_modified(|status| {
            let before = status.clone();
            apply(status, &result, clock.now());
            *status != before
        });
    }
}

/// Logs when kube-proxy is reached for the first time, lost, and reached again. `reachable` is `None` before the
/// first poll, unless an earlier process was answered.
fn log_reachability(reachable: &mut Option<bool>, result: &PollResult, authority: &str) {
    match (*reachable, result) {
        (None | Some(false), PollResult::Answer(code, _)) => {
            tracing::info!(
                server = authority,
                code = code.as_u16(),
                "kube-proxy answered; its health counts from now on"
            );
            *reachable = Some(true);
        }
        (None, PollResult::NoAnswer(error)) => {
            tracing::info!(
                server = authority,
                error,
                "kube-proxy has never answered; its health does not count until it does"
            );
            *reachable = Some(false);
        }
        (Some(true), PollResult::NoAnswer(error)) => {
            tracing::info!(
                server = authority,
                error,
                "kube-proxy stopped answering; /healthz and /livez answer 503 if it stays away"
            );
            *reachable = Some(false);
        }
        _ => {}
    }
}

async fn request(client: &PlainClient, authority: &str, path: &str) -> PollResult {
    let uri = Uri::builder()
        .scheme("http")
        .authority(authority)
        .path_and_query(path)
        .build();
    match uri {
        Ok(uri) => match client.get(uri, &[]).await {
            Ok((status, body)) => PollResult::Answer(status, body),
            Err(error) => PollResult::NoAnswer(error.to_string()),
        },
        Err(error) => PollResult::NoAnswer(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::proxy_status::FamilyHealth;
    use super::*;

    const TIMEOUT: Duration = Duration::from_mins(1);
    const V4: ProxyPart = ProxyPart::Family(IpFamily::IPv4);
    const V6: ProxyPart = ProxyPart::Family(IpFamily::IPv6);

    fn answer(code: u16, body: &str) -> PollResult {
        let status = StatusCode::from_u16(code).unwrap();
        PollResult::Answer(status, Bytes::copy_from_slice(body.as_bytes()))
    }

    fn after(results: &[PollResult]) -> (ProxyStatus, Moment) {
        let mut status = ProxyStatus::new(TIMEOUT);
        let now = Clock::System.now();
        for result in results {
            apply(&mut status, result, now);
        }
        (status, now)
    }

    const BOTH: &str = r#"{"lastUpdated":"2026-01-01T00:00:09Z","currentTime":"2026-01-01T00:00:09Z","healthy":true,"status":{"IPv4":{"lastUpdated":"2026-01-01T00:00:01Z","healthy":true},"IPv6":{"lastUpdated":"2026-01-01T00:00:02.5Z","healthy":true}}}"#;
    const V6_FAILS: &str = r#"{"lastUpdated":"2026-01-01T00:00:02Z","currentTime":"2026-01-01T00:02:00Z","healthy":false,"status":{"IPv4":{"lastUpdated":"2026-01-01T00:00:01Z","healthy":true},"IPv6":{"lastUpdated":"2026-01-01T00:00:02Z","healthy":false}}}"#;
    const OLD: &str = r#"{"lastUpdated": "2020-06-03 23:59:53.688 +0000 UTC m=+202.6","currentTime": "2020-06-03 23:59:53 +0000 UTC"}"#;

    #[test]
    fn families_are_applied() {
        let (status, now) = after(&[answer(200, BOTH)]);
        assert_eq!(status.parts(), [V4, V6]);
        let health = status.health(now);
        assert!(health.healthy);
        let FamilyHealth { last_updated, healthy } = health.families[&IpFamily::IPv6];
        assert_eq!(last_updated, Some("2026-01-01T00:00:02.5Z".parse().unwrap()));
        assert!(healthy);
    }

    #[test]
    fn unhealthy_family_counts_at_once_and_recovers_at_once() {
        let (status, now) = after(&[answer(200, BOTH), answer(503, V6_FAILS)]);
        let health = status.health(now);
        let is_healthy = |family| health.families[&family].healthy;
        assert!(!health.healthy && is_healthy(IpFamily::IPv4) && !is_healthy(IpFamily::IPv6));
        let (status, now) = after(&[answer(503, V6_FAILS), answer(200, BOTH)]);
        assert!(status.health(now).healthy);
    }

    #[test]
    fn old_bodies_count_by_their_status_code() {
        for (code, healthy) in [(200, true), (503, false)] {
            for body in [OLD, "", "null", "[]", "ok", "\u{0}"] {
                let (status, now) = after(&[answer(code, body)]);
                let health = status.health(now);
                assert_eq!((health.healthy, health.families.len()), (healthy, 0), "{code} {body}");
                assert_eq!(health.last_updated, healthy.then_some(now.wall), "{code} {body}");
            }
        }
    }

    #[test]
    fn a_503_counts_even_with_healthy_families() {
        let body = V6_FAILS
            .replace("false", "true")
            .replacen("\"healthy\":true", "\"healthy\":false", 1);
        let (status, now) = after(&[answer(503, &body)]);
        assert!(!status.health(now).healthy);
    }

    #[test]
    fn a_200_is_healthy_with_any_body() {
        let (status, now) = after(&[answer(503, V6_FAILS), answer(200, V6_FAILS)]);
        assert!(status.health(now).healthy);
    }

    #[test]
    fn healthy_proxy_on_a_tainted_node_is_healthy() {
        let (status, now) = after(&[answer(503, r#"{"nodeEligible":false,"healthy":true}"#)]);
        assert!(status.health(now).healthy);
    }

    #[test]
    fn no_answer_counts_after_the_timeout_once_it_was_reached() {
        let no_answer = || PollResult::NoAnswer("refused".into());
        let (status, now) = after(&[no_answer()]);
        let late = |now: Moment, seconds| Moment {
            mono: now.mono + Duration::from_secs(seconds),
            ..now
        };
        // A server that was never reached is ignored.
        assert!(status.health(late(now, 600)).healthy);
        let (status, now) = after(&[answer(200, BOTH), no_answer()]);
        assert!(status.health(late(now, 59)).healthy);
        assert!(!status.health(late(now, 60)).healthy);
    }

    #[test]
    fn families_that_are_gone_are_removed() {
        let single = r#"{"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-01-01T00:00:01Z","healthy":true}}}"#;
        let (status, _) = after(&[answer(200, OLD), answer(200, BOTH), answer(200, single)]);
        assert_eq!(status.parts(), [V4]);
    }
}
