//! The body of kube-proxy's `/livez`: with any body, the status code decides.

use std::time::Duration;

use headgate_agent::health::{ProxyPart, ProxyStatus, apply_kube_proxy_answer};
use headgate_core::clock::{Clock, Moment};
use hyper::StatusCode;
use serde::Deserialize;

use crate::mutated_corpus;

const TIMEOUT: Duration = Duration::from_mins(1);
const WORDS: &[&[u8]] = &[
    b"\"healthy\":",
    b"true",
    b"false",
    b"null",
    b"\"status\":{",
    b"\"IPv4\":",
    b"\"IPv6\":",
    b"\"IPv5\":",
    b"\"lastUpdated\":",
    b"\"nodeEligible\":",
    b"\"0001-01-01T00:00:00Z\"",
    b"\"9999-12-31T23:59:60+23:59\"",
    b"\"-009999-01-02T01:59:59Z\"",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b"1e999",
    b"\\ud800",
];

/// The health of the whole in a body, as far as it is readable.
#[derive(Deserialize)]
struct BodyHealth {
    healthy: Option<bool>,
}

/// The parts a state has, and whether it is healthy.
fn seen(status: &ProxyStatus, now: Moment) -> (Vec<ProxyPart>, bool) {
    (status.parts(), status.health(now).healthy)
}

#[test]
fn status_code_decides_with_any_body() {
    let now = Clock::System.now();
    mutated_corpus::fuzz("kube_proxy_body", WORDS, |bytes| {
        // Several answers may be in one input, a line each.
        let mut status = ProxyStatus::new(TIMEOUT);
        for body in bytes.split(|byte| *byte == b'\n') {
            let parsed = serde_json::from_slice::<BodyHealth>(body);
            let body_is_healthy = parsed.is_ok_and(|body| body.healthy == Some(true));
            for code in [
                StatusCode::SERVICE_UNAVAILABLE,
                StatusCode::OK,
                StatusCode::SERVICE_UNAVAILABLE,
            ] {
                apply_kube_proxy_answer(&mut status, code, body, now);
                let (parts, healthy) = seen(&status, now);
                assert!((1..=3).contains(&parts.len()), "{parts:?}");
                let health = status.health(now);
                assert!(health.families.len() <= 2);
                if code == StatusCode::OK {
                    assert!(healthy, "200 is healthy");
                    assert!(health.families.values().all(|family| family.healthy));
                } else if !body_is_healthy {
                    assert!(!healthy, "503 is unhealthy unless the body has healthy: true");
                }
                // A repeated answer changes nothing; the state depends on the last answer only.
                let mut again = status.clone();
                apply_kube_proxy_answer(&mut again, code, body, now);
                assert_eq!(again, status);
                let mut fresh = ProxyStatus::new(TIMEOUT);
                apply_kube_proxy_answer(&mut fresh, code, body, now);
                assert_eq!(seen(&fresh, now), seen(&status, now), "history leaves nothing behind");
                // No answer counts after the timeout, and not before.
                let mut silent = status.clone();
                silent.mark_all_pending(now);
                let later = |mono| Moment { mono, ..now };
                assert_eq!(silent.health(later(now.mono + TIMEOUT / 2)).healthy, healthy);
                assert!(!silent.health(later(now.mono + TIMEOUT)).healthy);
            }
        }
    });
}
