//! How long a server asks its client to wait, in every form of `Retry-After`.
//!
//! Like azcore, Microsoft's Go client: milliseconds in either of two headers of Microsoft's, then whole seconds or an HTTP
//! date in the standard header. An unreadable value counts as absent. 0 and a date in the past mean at once.

use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::RETRY_AFTER;
use jiff::Timestamp;
use jiff::fmt::rfc2822;

/// The longest wait that is taken from one response.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(24);

/// The wait from `now`, or `None` if the headers request none.
pub(crate) fn parse_retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let milliseconds = |name| text(name).and_then(parse_digits).map(Duration::from_millis);
    milliseconds("retry-after-ms")
        .or_else(|| milliseconds("x-ms-retry-after-ms"))
        .or_else(|| {
            let text = text(RETRY_AFTER.as_str())?;
            parse_digits(text)
                .map(Duration::from_secs)
                .or_else(|| until_date(text, now))
        })
        .map(|wait| wait.min(MAX_RETRY_AFTER))
}

/// Digits only, as in HTTP; a number that is too large saturates.
fn parse_digits(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// The time until an HTTP date.
fn until_date(text: &str, now: Timestamp) -> Option<Duration> {
    let date = rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    Some(Duration::try_from(date.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn every_form_of_retry_after() {
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
            // A day at most.
            (&[("retry-after", "99999999999999999999999")], Some(86_400_000)),
            (&[("retry-after", "Sat, 21 Nov 2099 09:00:07 GMT")], Some(86_400_000)),
        ] {
            let map: HeaderMap = headers
                .iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect();
            let wait = wait.map(Duration::from_millis);
            assert_eq!(parse_retry_after(&map, now), wait, "{headers:?}");
        }
    }
}
