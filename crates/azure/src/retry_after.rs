//! When a server wants to be asked again, in every way it may say so.
//!
//! Azure's own clients read milliseconds in either of two headers of Microsoft's, whole seconds, and a
//! date. What cannot be read says nothing. A date that has passed, and 0, mean at once.

use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::RETRY_AFTER;
use jiff::Timestamp;
use jiff::fmt::rfc2822;

/// Nobody waits longer on one answer's word.
const MOST: Duration = Duration::from_hours(24);

/// How long to wait from `now` on.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let milliseconds = |name| text(name).and_then(number).map(Duration::from_millis);
    milliseconds("retry-after-ms")
        .or_else(|| milliseconds("x-ms-retry-after-ms"))
        .or_else(|| {
            let text = text(RETRY_AFTER.as_str())?;
            number(text).map(Duration::from_secs).or_else(|| until(text, now))
        })
        .map(|wait| wait.min(MOST))
}

/// Digits only, as HTTP has it; more than can be counted is as much as can be.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Until an HTTP date.
fn until(text: &str, now: Timestamp) -> Option<Duration> {
    let date = rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn every_form() {
        let now: Timestamp = "2026-11-21T09:00:00.5Z".parse().unwrap();
        for (headers, wait) in [
            (&[][..], None),
            (&[("retry-after", "10")], Some(10_000)),
            (&[("retry-after", " 10 ")], Some(10_000)),
            (&[("retry-after", "0")], Some(0)),
            (&[("retry-after", "Sat, 21 Nov 2026 09:00:07 GMT")], Some(6500)),
            (&[("retry-after", "Sat, 21 Nov 2026 08:59:07 GMT")], Some(0)),
            (&[("retry-after-ms", "250")], Some(250)),
            (&[("x-ms-retry-after-ms", "1250")], Some(1250)),
            (&[("retry-after", "10"), ("x-ms-retry-after-ms", "1250")], Some(1250)),
            (&[("retry-after-ms", "1"), ("x-ms-retry-after-ms", "2")], Some(1)),
            (&[("retry-after-ms", "soon"), ("retry-after", "3")], Some(3000)),
            (&[("retry-after", "soon")], None),
            (&[("retry-after", "")], None),
            (&[("retry-after", "-1")], None),
            (&[("retry-after", "+1")], None),
            (&[("retry-after", "1.5")], None),
            // A day is the most.
            (&[("retry-after", "99999999999999999999999")], Some(86_400_000)),
            (&[("retry-after", "Sat, 21 Nov 2099 09:00:07 GMT")], Some(86_400_000)),
        ] {
            let map: HeaderMap = headers
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect();
            assert_eq!(retry_after(&map, now), wait.map(Duration::from_millis), "{headers:?}");
        }
    }
}
