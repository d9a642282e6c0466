//! Bounds bodies and URLs before the journal keeps them. Of bodies that are too large or not JSON, such as forms with secrets, the hash is kept.

use ring::digest::{SHA256, digest};
use serde_json::json;

/// The largest body that is kept: a load balancer with some 60 addresses. Of larger ones the size and the hash are
/// kept.
pub(super) const MAX_BODY_BYTES: usize = 16 * 1024;
/// Length of any other text: more than any path of ARM, less than the signed URL of an operation.
const MAX_TEXT_BYTES: usize = 2048;
/// A body as JSON text.
pub(super) fn body(body: &[u8]) -> Option<Box<str>> {
    if body.is_empty() {
        return None;
    }
    let bytes = body.len();
    let shown = if bytes > MAX_BODY_BYTES {
        json!({"truncated": true, "bytes": bytes, "sha256": sha256(body)})
    } else {
        serde_json::from_slice(body)
            .unwrap_or_else(|_| json!({"notJson": true, "bytes": bytes, "sha256": sha256(body)}))
    };
    Some(shown.to_string().into())
}

/// A text, cut at the bound.
pub(super) fn text(text: &str) -> String {
    if text.len() <= MAX_TEXT_BYTES {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(MAX_TEXT_BYTES)])
}

/// A query with `…` in place of the signature of an operation, which has 3 KB.
pub(super) fn query(query: &str) -> String {
    let shown = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name @ ("c" | "h" | "s" | "t"), _)) => format!("{name}=…"),
        _ => pair.to_owned(),
    });
    text(&shown.collect::<Vec<_>>().join("&"))
}

/// A URL, the same of its query.
pub(super) fn url(url: &str) -> String {
    match url.split_once('?') {
        None => text(url),
        Some((path, signed)) => text(&format!("{path}?{}", query(signed))),
    }
}

fn sha256(body: &[u8]) -> String {
    use std::fmt::Write as _;
    digest(&SHA256, body)
        .as_ref()
        .iter()
        .fold(String::new(), |mut hex, byte| {
            // Writing to a text does not fail.
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn bodies_that_are_json_are_kept() {
        let large = json!({"x": "y".repeat(MAX_BODY_BYTES)}).to_string();
        for (given, want) in [
            ("", None),
            (r#"{"b": [1, {"c": null}]}"#, Some(json!({"b": [1, {"c": null}]}))),
            (
                "abc",
                Some(json!({
                    "notJson": true,
                    "bytes": 3,
                    "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
                })),
            ),
            (
                large.as_str(),
                Some(json!({"truncated": true, "bytes": large.len(), "sha256": sha256(large.as_bytes())})),
            ),
        ] {
            let kept = body(given.as_bytes()).map(|text| serde_json::from_str::<Value>(&text).unwrap());
            assert_eq!(kept, want, "{given:.20}");
        }
    }

    #[test]
    fn signatures_and_long_texts_are_shortened() {
        for (given, want) in [
            ("/a", "/a"),
            (
                "https://arm/operations/1?api-version=2025-05-01&t=1&c=2&s=3&h=4",
                "https://arm/operations/1?api-version=2025-05-01&t=…&c=…&s=…&h=…",
            ),
        ] {
            assert_eq!(url(given), want);
        }
        let long = "é".repeat(MAX_TEXT_BYTES);
        assert_eq!(text(&long), format!("{}…", "é".repeat(MAX_TEXT_BYTES / 2)));
    }
}
