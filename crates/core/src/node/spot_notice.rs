//! The annotation in which an eviction notice is recorded on a Node. `headgate_agent::spot` writes it; the leader reads the time of the
//! eviction from it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Deserialize;

use super::names::SPOT_NOTICE_ANNOTATION;

/// The field of the record that is read here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NoticeTime {
    #[serde(default)]
    not_before: Option<Timestamp>,
}

/// The earliest time of the eviction (Azure's `NotBefore`); `None` if no notice is recorded, or none with a time.
#[must_use]
pub fn recorded_not_before(annotations: &BTreeMap<String, String>) -> Option<Timestamp> {
    let notice: NoticeTime = serde_json::from_str(annotations.get(SPOT_NOTICE_ANNOTATION)?).ok()?;
    notice.not_before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_the_recorded_notice() {
        for (text, expected) in [
            (
                r#"{"eventId":"a","notBefore":"2026-04-11T22:26:58Z","bootId":"b"}"#,
                Some("2026-04-11T22:26:58Z"),
            ),
            (r#"{"eventId":"a"}"#, None),
            (r#"{"eventId":"a","notBefore":"soon"}"#, None),
            ("", None),
        ] {
            let annotations = [(SPOT_NOTICE_ANNOTATION.to_owned(), text.to_owned())].into();
            assert_eq!(
                recorded_not_before(&annotations),
                expected.map(|at| at.parse().unwrap()),
                "{text}"
            );
        }
        assert_eq!(recorded_not_before(&BTreeMap::new()), None);
    }
}
