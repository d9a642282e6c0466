//! kube-proxy's own health as an input: asked each second, its answers fed to the proxy's state.
//!
//! 200 is an update, no answer wants one (and so counts after the health timeout), 503 counts at once,
//! 404 on `/livez` asks `/healthz` of the same server (before 1.28). One that was never reached since
//! start is ignored with a warning: there are clusters without kube-proxy. None of this touches the
//! process's own `/livez`: restarting headgate does not cure kube-proxy.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use headgate_clock::{Clock, Moment};
use headgate_http::fetch::Fetch;
use hyper::{StatusCode, Uri};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::proxy::{Family, Part, ProxyStatus};

/// How long one question may take; kube-proxy answers from memory.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// More than any body of kube-proxy's.
const MAX_BODY_BYTES: usize = 64 * 1024;

/// How kube-proxy is asked for its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// `host:port` of kube-proxy's health server; `None` never asks.
    pub healthz_authority: Option<String>,
    /// Time from one question to the next.
    pub poll_interval: Duration,
    /// How long kube-proxy may stay silent, or a change unapplied, before the node counts as unhealthy.
    pub health_timeout: Duration,
}

/// The fields of kube-proxy's body that are used; older ones have none of them.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Body {
    healthy: Option<bool>,
    status: BTreeMap<Family, FamilyStatus>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FamilyStatus {
    last_updated: Timestamp,
    healthy: bool,
}

/// What one question came to.
#[derive(Debug)]
enum Answered {
    /// An answer with this status and body, from `/livez` or the older `/healthz`.
    Yes(StatusCode, Bytes),
    /// None, or none of a health server's.
    No(String),
}

/// Feeds the outcome of one question to the state.
fn apply(status: &mut ProxyStatus, outcome: &Answered, now: Moment) {
    match outcome {
        Answered::No(_) => status.all_queued(now),
        Answered::Yes(code, body) => answered(status, *code, body, now),
    }
}

/// Feeds one answer to the state: its status code, and what can be read of its body. Pure.
pub fn answered(status: &mut ProxyStatus, code: StatusCode, body: &[u8], now: Moment) {
    // An unreadable body is an old one: the status code alone speaks.
    let body: Body = serde_json::from_slice(body).unwrap_or_default();
    // A 503 may come from a healthy proxy on a tainted node, where only `/healthz` is there to ask.
    let healthy = code == StatusCode::OK || body.healthy == Some(true);
    // The status code is what kube-proxy promises to keep; a 200 is an update, whatever stands beside it.
    let fails = |family: &FamilyStatus| code != StatusCode::OK && !family.healthy;
    let family_fails = body.status.values().any(fails);
    let mut parts: Vec<Part> = body.status.keys().copied().map(Part::Family).collect();
    if parts.is_empty() || (!healthy && !family_fails) {
        parts.push(Part::Whole);
    }
    status.retain(&parts);
    for part in parts {
        match part {
            Part::Family(family) if fails(&body.status[&family]) => {
                status.failing(part, Some(body.status[&family].last_updated));
            }
            Part::Family(family) => status.updated(part, body.status[&family].last_updated),
            Part::Whole if healthy => status.updated(part, now.wall),
            Part::Whole => status.failing(part, None),
        }
    }
}

/// Asks kube-proxy for ever and publishes its state, or keeps it unknown where it is not to be asked;
/// never returns of itself.
pub async fn follow(settings: ProxySettings, state: watch::Sender<ProxyStatus>, clock: Clock) {
    let Some(authority) = settings.healthz_authority else {
        // Whoever reads the state needs its sender to live.
        return state.closed().await;
    };
    let fetch = Fetch::new(ANSWER_TIMEOUT, MAX_BODY_BYTES);
    let mut ticks = interval(settings.poll_interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reached = None;
    loop {
        ticks.tick().await;
        let answered = match ask(&fetch, &authority, "/livez").await {
            Answered::Yes(StatusCode::NOT_FOUND, _) => ask(&fetch, &authority, "/healthz").await,
            other => other,
        };
        let answered = match answered {
            Answered::Yes(code, _) if code != StatusCode::OK && code != StatusCode::SERVICE_UNAVAILABLE => {
                Answered::No(format!(
                    "it answers {code}, which no health server of kube-proxy's does"
                ))
            }
            other => other,
        };
        announce(&mut reached, &answered, &authority);
        state.send_if_modified(|status| {
            let before = status.clone();
            apply(status, &answered, clock.now());
            *status != before
        });
    }
}

/// Says in the log when kube-proxy is first reached, lost, and reached again.
fn announce(reached: &mut Option<bool>, answered: &Answered, authority: &str) {
    match (*reached, answered) {
        (None | Some(false), Answered::Yes(code, _)) => {
            tracing::info!(
                server = authority,
                code = code.as_u16(),
                "kube-proxy's health is part of the answers"
            );
            *reached = Some(true);
        }
        (None, Answered::No(why)) => {
            tracing::warn!(
                server = authority,
                why,
                "kube-proxy's health server has not answered; ignored until it does"
            );
            // Told once; until the first answer the state has no part that could be queued.
            *reached = Some(false);
        }
        (Some(true), Answered::No(why)) => {
            tracing::warn!(
                server = authority,
                why,
                "kube-proxy's health server stopped answering; counts after the health timeout"
            );
            *reached = Some(false);
        }
        _ => {}
    }
}

async fn ask(fetch: &Fetch, authority: &str, path: &str) -> Answered {
    let uri = Uri::builder()
        .scheme("http")
        .authority(authority)
        .path_and_query(path)
        .build();
    match uri {
        Ok(uri) => match fetch.get(uri, &[]).await {
            Ok((status, body)) => Answered::Yes(status, body),
            Err(error) => Answered::No(error.to_string()),
        },
        Err(error) => Answered::No(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_mins(1);
    const V4: Part = Part::Family(Family::IPv4);
    const V6: Part = Part::Family(Family::IPv6);

    fn yes(code: u16, body: &str) -> Answered {
        Answered::Yes(
            StatusCode::from_u16(code).unwrap(),
            Bytes::copy_from_slice(body.as_bytes()),
        )
    }

    fn after(answers: &[Answered]) -> (ProxyStatus, Moment) {
        let mut status = ProxyStatus::new(TIMEOUT);
        let now = Clock::System.now();
        for answer in answers {
            apply(&mut status, answer, now);
        }
        (status, now)
    }

    const BOTH: &str = r#"{"lastUpdated":"2026-01-01T00:00:09Z","currentTime":"2026-01-01T00:00:09Z","healthy":true,"status":{"IPv4":{"lastUpdated":"2026-01-01T00:00:01Z","healthy":true},"IPv6":{"lastUpdated":"2026-01-01T00:00:02.5Z","healthy":true}}}"#;
    const V6_FAILS: &str = r#"{"lastUpdated":"2026-01-01T00:00:02Z","currentTime":"2026-01-01T00:02:00Z","healthy":false,"status":{"IPv4":{"lastUpdated":"2026-01-01T00:00:01Z","healthy":true},"IPv6":{"lastUpdated":"2026-01-01T00:00:02Z","healthy":false}}}"#;
    const OLD: &str = r#"{"lastUpdated": "2020-06-03 23:59:53.688 +0000 UTC m=+202.6","currentTime": "2020-06-03 23:59:53 +0000 UTC"}"#;

    #[test]
    fn families_are_passed_on() {
        let (status, now) = after(&[yes(200, BOTH)]);
        assert_eq!(status.parts(), [V4, V6]);
        let health = status.health(now);
        assert!(health.healthy);
        assert_eq!(
            health.families[&Family::IPv6],
            ("2026-01-01T00:00:02.5Z".parse().unwrap(), true)
        );
    }

    #[test]
    fn an_unhealthy_family_counts_at_once_and_recovers_at_once() {
        let (status, now) = after(&[yes(200, BOTH), yes(503, V6_FAILS)]);
        let health = status.health(now);
        assert!(!health.healthy && health.families[&Family::IPv4].1 && !health.families[&Family::IPv6].1);
        let (status, now) = after(&[yes(503, V6_FAILS), yes(200, BOTH)]);
        assert!(status.health(now).healthy);
    }

    #[test]
    fn old_bodies_speak_by_their_status_code() {
        for (code, healthy) in [(200, true), (503, false)] {
            for body in [OLD, "", "null", "[]", "ok", "\u{0}"] {
                let (status, now) = after(&[yes(code, body)]);
                let health = status.health(now);
                assert_eq!((health.healthy, health.families.len()), (healthy, 0), "{code} {body}");
            }
        }
    }

    #[test]
    fn a_503_whose_families_all_claim_health_still_counts() {
        let body = V6_FAILS
            .replace("false", "true")
            .replacen("\"healthy\":true", "\"healthy\":false", 1);
        let (status, now) = after(&[yes(503, &body)]);
        assert!(!status.health(now).healthy);
    }

    #[test]
    fn a_200_is_healthy_whatever_its_body_claims() {
        let (status, now) = after(&[yes(503, V6_FAILS), yes(200, V6_FAILS)]);
        assert!(status.health(now).healthy);
    }

    #[test]
    fn a_healthy_proxy_on_a_tainted_node_is_healthy() {
        let (status, now) = after(&[yes(503, r#"{"nodeEligible":false,"healthy":true}"#)]);
        assert!(status.health(now).healthy);
    }

    #[test]
    fn silence_counts_after_the_timeout_and_only_once_reached() {
        let silence = || Answered::No("refused".into());
        let (status, now) = after(&[silence()]);
        let later = Moment {
            mono: now.mono + 10 * TIMEOUT,
            ..now
        };
        assert!(status.health(later).healthy, "never reached is ignored");
        let (status, now) = after(&[yes(200, BOTH), silence()]);
        let late = |seconds| Moment {
            mono: now.mono + Duration::from_secs(seconds),
            ..now
        };
        assert!(status.health(late(59)).healthy);
        assert!(!status.health(late(60)).healthy);
    }

    #[test]
    fn a_proxy_that_changes_its_families_leaves_nothing_behind() {
        let single = r#"{"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-01-01T00:00:01Z","healthy":true}}}"#;
        let (status, _) = after(&[yes(200, OLD), yes(200, BOTH), yes(200, single)]);
        assert_eq!(status.parts(), [V4]);
    }
}
