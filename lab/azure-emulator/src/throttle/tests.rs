//! Requests against small buckets, and against the documented ones.

use std::time::Duration;

use super::*;

fn small() -> Throttle {
    Throttle::new(ThrottleSettings {
        reads: RateLimit::new(3, 1.0),
        writes: RateLimit::new(2, 1.0),
        global_factor: 2,
        network_writes: RateLimit::new(1, 0.1),
        ..ThrottleSettings::default()
    })
}

fn summary(result: Result<Remaining, ErrorResponse>) -> Result<(u32, u32), String> {
    let text = |(name, value): &(HeaderName, HeaderValue)| format!("{name}={value:?};");
    result
        .map(|left| (left.own, left.global))
        .map_err(|error| error.headers.iter().map(text).collect::<Vec<_>>().concat())
}

#[test]
fn the_first_request_leaves_the_remainders_seen_on_azure() {
    let now = Instant::now();
    for (method, word, left) in [
        (Method::GET, "reads", ["249", "3749"]),
        (Method::HEAD, "reads", ["249", "3749"]),
        (Method::PUT, "writes", ["199", "2999"]),
        (Method::PATCH, "writes", ["199", "2999"]),
        (Method::DELETE, "deletes", ["199", "2999"]),
    ] {
        for enabled in [true, false] {
            let settings = ThrottleSettings::default();
            let mut throttle = Throttle::new(ThrottleSettings { enabled, ..settings });
            let mut headers = HeaderMap::new();
            let remaining = throttle.take("S", "p", Kind::from_method(&method), true, now).unwrap();
            remaining.write(&mut headers);
            let seen = ["", "global-"].map(|scope| {
                let name = format!("x-ms-ratelimit-remaining-subscription-{scope}{word}");
                headers[name].to_str().unwrap()
            });
            assert_eq!((seen, headers.len()), (left, 2), "{method}");
        }
    }
}

#[test]
fn the_251st_read_is_refused_as_recorded() {
    let (mut throttle, now) = (Throttle::new(ThrottleSettings::default()), Instant::now());
    for left in (0..250).rev() {
        assert_eq!(throttle.take("sub", "me", Kind::Read, false, now).unwrap().own, left);
    }
    let error = throttle.take("sub", "me", Kind::Read, false, now).unwrap_err();
    let response = error.response();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["retry-after"]),
        (429, &HeaderValue::from(10))
    );
    assert_eq!(
        json!({"error": error.object()}),
        json!({"error": {"code": "SubscriptionRequestsThrottled", "message":
            "Number of 'read' requests for subscription 'sub' actor 'me' exceeded. Please try again after '10' seconds."
        }})
    );
    // Further requests before the time do not prolong the wait.
    for (seconds, wait) in [(1, "9"), (1, "9"), (9, "1")] {
        let error = throttle.take("SUB", "ME", Kind::Read, false, now + Duration::from_secs(seconds));
        assert_eq!(error.unwrap_err().response().headers()["retry-after"], wait);
    }
    let later = throttle.take("sub", "me", Kind::Read, false, now + Duration::from_secs(10));
    assert_eq!(later.unwrap().own, 249);
    // Other principals, subscriptions and kinds have their own buckets.
    for (subscription, principal, kind) in [
        ("sub", "you", Kind::Read),
        ("other", "me", Kind::Read),
        ("sub", "me", Kind::Write),
        ("sub", "me", Kind::Delete),
    ] {
        throttle
            .take(subscription, principal, kind, false, now + Duration::from_secs(10))
            .unwrap();
    }
}

#[test]
fn principals_share_a_bucket_and_the_network_provider_has_its_own() {
    let (mut throttle, now) = (small(), Instant::now());
    let gateway = "x-ms-failure-cause=\"gateway\";retry-after=\"3\";";
    let no_writes = "retry-after=\"10\";x-ms-ratelimit-remaining-subscription-writes=\"0\";\
                     x-ms-ratelimit-remaining-subscription-global-writes=\"2\";";
    // The network provider counts deletes as writes.
    let no_deletes = "retry-after=\"10\";x-ms-ratelimit-remaining-subscription-deletes=\"199\";\
                      x-ms-ratelimit-remaining-subscription-global-deletes=\"399\";";
    for (principal, kind, network, want) in [
        ("a", Kind::Read, false, Ok((2, 5))),
        ("a", Kind::Read, false, Ok((1, 4))),
        ("a", Kind::Read, false, Ok((0, 3))),
        ("a", Kind::Read, false, Err(gateway)),
        ("b", Kind::Read, false, Ok((2, 2))),
        ("b", Kind::Read, false, Ok((1, 1))),
        ("b", Kind::Read, false, Ok((0, 0))),
        ("c", Kind::Read, false, Err(gateway)),
        ("a", Kind::Write, true, Ok((1, 3))),
        ("a", Kind::Write, true, Err(no_writes)),
        ("a", Kind::Delete, true, Err(no_deletes)),
        ("d", Kind::Write, true, Ok((1, 1))),
    ] {
        let seen = summary(throttle.take("s", principal, kind, network, now));
        assert_eq!(seen, want.map_err(str::to_owned), "{principal} {kind:?}");
    }
    throttle.reset();
    assert_eq!(throttle.take("s", "a", Kind::Read, false, now).unwrap().own, 2);
}

#[test]
fn buckets_are_bounded_and_full_ones_are_removed_first() {
    let (mut throttle, now) = (small(), Instant::now());
    for _ in 0..3 {
        throttle.take("kept", "me", Kind::Read, false, now).unwrap();
    }
    let later = now + Duration::from_millis(500);
    for n in 0..5 * MAX_BUCKETS {
        let long = "x".repeat(200);
        let _ = throttle.take(&format!("{n}-{long}"), &long, Kind::Delete, false, later);
        assert!(throttle.buckets.len() <= MAX_BUCKETS);
    }
    // A second later all other buckets are full again.
    let later = later + Duration::from_secs(1);
    throttle.take("new", "me", Kind::Read, false, later).unwrap();
    assert!(throttle.snapshot(later)["buckets"].as_array().unwrap().len() < 10);
}

#[test]
fn throttle_settings_round_trip_and_the_snapshot_lists_used_buckets() {
    let settings: ThrottleSettings =
        serde_json::from_value(json!({"reads": {"capacity": 1, "refillPerSecond": 0.5}})).unwrap();
    assert_eq!(settings.writes, RateLimit::new(200, 10.0));
    let text = serde_json::to_value(&settings).unwrap();
    assert_eq!(serde_json::from_value::<ThrottleSettings>(text).unwrap(), settings);
    assert!(serde_json::from_value::<ThrottleSettings>(json!({"read": {}})).is_err());
    let (mut throttle, now) = (Throttle::new(settings), Instant::now());
    throttle.take("Sub", "Me", Kind::Read, false, now).unwrap();
    throttle.take("Sub", "Me", Kind::Read, false, now).unwrap_err();
    assert_eq!(
        throttle.snapshot(now)["buckets"],
        json!([
            {"scope": "global", "subscription": "sub", "principal": "", "kind": "read", "remaining": 14, "capacity": 15},
            {"scope": "principal", "subscription": "sub", "principal": "me", "kind": "read", "remaining": 0,
             "capacity": 1, "retryAfterSeconds": 2},
        ])
    );
    assert_eq!(throttle.snapshot(now + Duration::from_secs(3))["buckets"], json!([]));
}
