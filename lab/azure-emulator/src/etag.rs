//! Etags, and the preconditions `If-Match` and `If-None-Match`.
//!
//! Recorded: `If-Match: invalid` is read as `W/"invalid"`, so only the opaque part is compared.

use axum::http::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode};
use uuid::Uuid;

use super::error::ErrorResponse;

/// The etag of one version of a top-level resource; all its children share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Etag(pub(super) Uuid);

impl std::fmt::Display for Etag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "W/\"{}\"", self.0)
    }
}

/// Checks `If-Match` and `If-None-Match` of a write against the current etag.
///
/// # Errors
/// 412 with the recorded body.
pub(super) fn check(headers: &HeaderMap, current: Option<Etag>, id: &str) -> Result<(), ErrorResponse> {
    let matches = |value: &String| match current {
        Some(etag) => value == "*" || opaque(value).eq_ignore_ascii_case(&etag.0.to_string()),
        // Guess: nothing matches a resource that does not exist, not even `*`.
        None => false,
    };
    if let Some(given) = header_etags(headers, &IF_MATCH)
        && !given.iter().any(matches)
    {
        return Err(mismatch("if-match", &given, current, id));
    }
    if let Some(given) = header_etags(headers, &IF_NONE_MATCH)
        && given.iter().any(matches)
    {
        return Err(mismatch("if-none-match", &given, current, id));
    }
    Ok(())
}

/// The etags in a header, `None` without the header. An empty or unreadable value is an etag that no resource has, so
/// the write is refused.
fn header_etags(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<String>> {
    let values = headers.get_all(name).iter();
    let texts: Vec<_> = values.map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
    let etags = texts.iter().flat_map(|text| text.split(',')).map(str::trim);
    (!texts.is_empty()).then(|| etags.map(str::to_owned).collect())
}

/// The part between the quotes: `x` of `W/"x"`, `"x"` and `x`.
fn opaque(value: &str) -> &str {
    let value = value.trim();
    let value = value
        .strip_prefix("W/")
        .or_else(|| value.strip_prefix("w/"))
        .unwrap_or(value);
    value.trim_matches('"')
}

fn mismatch(header: &str, given: &[String], current: Option<Etag>, id: &str) -> ErrorResponse {
    let given = given.first().map_or("", |first| opaque(first));
    let current = current.map_or_else(|| "(none)".to_owned(), |etag| etag.to_string());
    ErrorResponse::new(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", "Precondition failed.").detail(
        "PreconditionFailedEtagMismatch",
        format!("Etag provided in {header} header W/\"{given}\" does not match etag {current} of resource {id} in NRP data store."),
    )
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn every_spelling_of_if_match_is_understood() {
        let uuid = Uuid::from_u128(7);
        let etag = Some(Etag(uuid));
        let check_value = |value: &str, current| {
            let mut headers = HeaderMap::new();
            headers.insert(IF_MATCH, value.parse().unwrap());
            check(&headers, current, "/x").map_err(|error| error.status.as_u16())
        };
        for value in [
            format!("W/\"{uuid}\""),
            format!("\"{uuid}\""),
            uuid.to_string(),
            uuid.to_string().to_uppercase(),
            "*".to_owned(),
            format!("\"other\", \"{uuid}\""),
        ] {
            assert_eq!(check_value(&value, etag), Ok(()), "{value}");
            assert_eq!(check_value(&value, None), Err(412), "{value}");
        }
        for value in ["invalid", "", " ", ",", "\"\""] {
            assert_eq!(check_value(value, etag), Err(412), "{value:?}");
        }
        assert_eq!(check(&HeaderMap::new(), None, "/x"), Ok(()));
    }

    #[test]
    fn an_unreadable_precondition_refuses_the_write() {
        let etag = Some(Etag(Uuid::from_u128(7)));
        let mut headers = HeaderMap::new();
        headers.insert(IF_MATCH, HeaderValue::from_bytes("W/\"…\"".as_bytes()).unwrap());
        let refused = check(&headers, etag, "/x").unwrap_err();
        assert_eq!(refused.status, StatusCode::PRECONDITION_FAILED);
        let message = &refused.details.unwrap()[0].message;
        assert!(
            message.starts_with("Etag provided in if-match header W/\"…\" does not match"),
            "{message}"
        );
    }

    #[test]
    fn if_none_match_is_understood() {
        let uuid = Uuid::from_u128(7);
        let check_value = |value: &str, current| {
            let mut headers = HeaderMap::new();
            headers.insert(IF_NONE_MATCH, value.parse().unwrap());
            check(&headers, current, "/x").is_ok()
        };
        let etag = Some(Etag(uuid));
        assert!(!check_value("*", etag));
        assert!(check_value("*", None));
        assert!(!check_value(&format!("\"other\", W/\"{uuid}\""), etag));
        assert!(check_value("other", etag));
    }
}
