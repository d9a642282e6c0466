//! Removes secrets from bodies and URLs before the journal keeps them, and bounds their size.
//!
//! Bodies of token requests are not kept at all. In other bodies, members that hold secrets are replaced, and the
//! signatures in the URLs of operations are removed. Bodies that are not JSON are not kept either: a form may hold a
//! secret.

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

/// The largest body that is kept: a load balancer with some 60 addresses. Of larger ones the size and the hash are
/// kept.
pub(super) const MAX_BODY_BYTES: usize = 16 * 1024;
/// Length of any other text: more than any path of ARM, less than the signed URL of an operation.
const MAX_TEXT_BYTES: usize = 2048;
/// Members that hold secrets, in lower case and without underscores.
const SECRET_MEMBERS: [&str; 8] = [
    "accesstoken",
    "adminpassword",
    "clientassertion",
    "clientsecret",
    "idtoken",
    "password",
    "protectedsettings",
    "refreshtoken",
];
/// Query parameters that are secret or a signature; `t`, the time of a signature, is removed with it.
const SECRET_PARAMETERS: [&str; 7] = ["c", "client_assertion", "client_secret", "h", "s", "sig", "t"];

/// A body as JSON text, without secrets.
pub(super) fn body(path: &str, body: &[u8]) -> Option<Box<str>> {
    if body.is_empty() {
        return None;
    }
    let bytes = body.len();
    if is_about_tokens(path) {
        return Some(json!({"withheld": true, "bytes": bytes}).to_string().into());
    }
    let parsed = || serde_json::from_slice(body).ok();
    let shown = if bytes > MAX_BODY_BYTES {
        json!({"truncated": true, "bytes": bytes, "sha256": sha256(body)})
    } else if let Some(mut value) = parsed() {
        redact_members(&mut value);
        value
    } else {
        json!({"notJson": true, "bytes": bytes, "sha256": sha256(body)})
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

/// A query with `…` in place of secret values.
pub(super) fn query(query: &str) -> String {
    let redacted = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, _)) if SECRET_PARAMETERS.iter().any(|secret| name.eq_ignore_ascii_case(secret)) => {
            format!("{name}=…")
        }
        _ => pair.to_owned(),
    });
    text(&redacted.collect::<Vec<_>>().join("&"))
}

/// A URL without the parameters of its signature.
pub(super) fn url(url: &str) -> String {
    match url.split_once('?') {
        None => text(url),
        Some((path, signed)) => {
            let plain = |pair: &&str| {
                let name = pair.split('=').next().unwrap_or_default();
                !SECRET_PARAMETERS.iter().any(|secret| name.eq_ignore_ascii_case(secret))
            };
            let kept: Vec<_> = signed.split('&').filter(plain).collect();
            text(&format!("{path}?{}", kept.join("&")))
        }
    }
}

fn is_about_tokens(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    path.contains("/oauth2/") || path.ends_with("/token")
}

/// Replaces secret members. The recursion is bounded: serde parses at most 128 levels.
fn redact_members(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                let name = name.replace('_', "").to_ascii_lowercase();
                if SECRET_MEMBERS.contains(&name.as_str()) {
                    *member = "withheld".into();
                } else {
                    redact_members(member);
                }
            }
        }
        Value::Array(members) => members.iter_mut().for_each(redact_members),
        _ => {}
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
    use super::*;

    #[test]
    fn bodies_are_kept_without_secrets() {
        let large = json!({"x": "y".repeat(MAX_BODY_BYTES)}).to_string();
        for (path, given, want) in [
            ("/a", "", None),
            ("/a", r#"{"b": [1, {"c": null}]}"#, Some(json!({"b": [1, {"c": null}]}))),
            (
                "/a",
                r#"{"osProfile": {"adminPassword": {"x": 1}, "b": 1}, "access_token": "x"}"#,
                Some(json!({"osProfile": {"adminPassword": "withheld", "b": 1}, "access_token": "withheld"})),
            ),
            (
                "/tenant/OAuth2/v2.0/token",
                "client_secret=x",
                Some(json!({"withheld": true, "bytes": 15})),
            ),
            ("/MSI/token", "{}", Some(json!({"withheld": true, "bytes": 2}))),
            (
                "/a",
                "abc",
                Some(json!({
                    "notJson": true,
                    "bytes": 3,
                    "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
                })),
            ),
            (
                "/a",
                large.as_str(),
                Some(json!({"truncated": true, "bytes": large.len(), "sha256": sha256(large.as_bytes())})),
            ),
        ] {
            let kept = body(path, given.as_bytes()).map(|text| serde_json::from_str::<Value>(&text).unwrap());
            assert_eq!(kept, want, "{path}");
        }
    }

    #[test]
    fn urls_are_kept_without_signatures() {
        for (given, blanked, cut) in [
            ("/a", "/a", "/a"),
            (
                "https://arm/operations/1?api-version=2025-05-01&t=1&c=2&S=3&h=4",
                "https://arm/operations/1?api-version=2025-05-01&t=…&c=…&S=…&h=…",
                "https://arm/operations/1?api-version=2025-05-01",
            ),
        ] {
            assert_eq!(url(given), cut);
            let shown = given
                .split_once('?')
                .map_or(given.to_owned(), |(path, text)| format!("{path}?{}", query(text)));
            assert_eq!(shown, blanked);
        }
        let long = "é".repeat(MAX_TEXT_BYTES);
        assert_eq!(text(&long), format!("{}…", "é".repeat(MAX_TEXT_BYTES / 2)));
    }
}
