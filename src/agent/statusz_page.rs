//! `/statusz` as a page for browsers.
//!
//! Invariants: the page runs no script and loads nothing but its own style sheet, which its Content-Security-Policy
//! enforces. Every value is escaped, because names and error texts come from others. It has the text form, and on the
//! leader the cluster above it (`cluster_page`). A header has the browser load it again every [`REFRESH_SECONDS`].

use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, REFRESH};
use axum::http::header::{HeaderName, VARY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use super::cluster_page::cluster;
use super::cluster_view::Shown;
use crate::agent_status::AgentStatus;

/// What a browser may do with the page: load the style sheet from where the page came, and nothing else.
const POLICY: &str =
    "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Between two loads of the page by a browser that has it open.
const REFRESH_SECONDS: &str = "5";

/// The style sheet, served beside the page.
const STYLE: &str = "\
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; }
h2 { font-size: 1.1rem; margin: 1.5rem 0 .3rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid #8884; padding: .25rem .6rem .25rem 0; text-align: left; vertical-align: top; }
th { font-weight: normal; opacity: .75; }
td, pre { overflow-wrap: anywhere; white-space: pre-wrap; }
.long, .long thead, .long tbody { display: block; }
.long tbody { content-visibility: auto; contain-intrinsic-height: auto 90rem; }
.long tr { display: table; table-layout: fixed; width: 100%; }
.good, .bad { border-radius: .3rem; color: #fff; padding: 0 .4rem; }
.good { background: #19692c; }
.bad { background: #a3161a; }
";

/// Whether a request prefers the page: its `Accept` names `text/html`, as that of browsers does.
pub(super) fn accepts_page(accept: &str) -> bool {
    accept.split(',').any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_html = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/html"));
        let is_refused = parts.any(|parameter| {
            let quality = parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q="));
            quality.and_then(|quality| quality.parse().ok()) == Some(0.0_f32)
        });
        is_html && !is_refused
    })
}

/// The style sheet as a response.
pub(super) async fn style() -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/css; charset=utf-8")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (headers, STYLE).into_response()
}

/// The page as a response; with the cluster, where this process leads.
pub(super) fn response(statusz: &AgentStatus, shown: Option<&Shown>) -> Response {
    const HEADERS: [(HeaderName, HeaderValue); 8] = [
        (REFRESH, HeaderValue::from_static(REFRESH_SECONDS)),
        (CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (VARY, HeaderValue::from_static("Accept")),
    ];
    (HEADERS, page(statusz, shown).into_string()).into_response()
}

pub(super) fn badge(text: &str, is_good: bool) -> Markup {
    html! { span class=(if is_good { "good" } else { "bad" }) { (text) } }
}

fn page(statusz: &AgentStatus, shown: Option<&Shown>) -> Markup {
    let title = format!("{} – headgate", statusz.node.name);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                // Relative, so that it is found behind the API server's proxy, too.
                link rel="stylesheet" href="statusz.css";
            }
            body {
                h1 { "headgate " (statusz.version) " on node " (statusz.node.name) }
                @if let Some(shown) = shown {
                    (cluster(&shown.report, &shown.trends))
                    h2 { "This process" }
                }
                pre { (statusz) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_is_for_requests_that_name_html() {
        for (accept, expected) in [
            (
                "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8",
                true,
            ),
            ("application/xml, Text/HTML; q=0.5", true),
            ("*/*", false),
            ("text/plain", false),
            ("text/html;q=0, text/plain", false),
            ("text/html;q=0.000", false),
            ("", false),
        ] {
            assert_eq!(accepts_page(accept), expected, "{accept}");
        }
    }

    #[test]
    fn values_of_others_are_escaped() {
        let hostile = "<script>alert(1)</script>\"'&";
        let statusz = AgentStatus::example(hostile);
        let page = page(&statusz, None).into_string();
        assert!(!page.contains("<script"), "{page}");
        let escaped = page.matches("&lt;script&gt;alert(1)&lt;/script&gt;&quot;").count();
        // The title, the heading and the text's, the UID, a signal, a pool, the error, kube-proxy's address, a Service and why, and
        // the message about connections, and a listener.
        assert_eq!(escaped, 12, "{page}");
        for attribute in ["style=", "onerror=", "onload=", "src=", "http-equiv"] {
            assert!(!page.contains(attribute), "{attribute} in {page}");
        }
    }
}
