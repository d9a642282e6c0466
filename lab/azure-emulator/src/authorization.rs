//! `Microsoft.Authorization`: what the caller may do at a scope, and the deny assignments there, as the seed lists them. They are shown
//! and not enforced.
//!
//! Source of the documents: the API's description and examples, version 2022-04-01.

use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::id::{ResourceId, same_name};
use super::request::JsonResponse;

const NAMESPACE: &str = "Microsoft.Authorization";

/// The section `authorization` of the seed.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Authorization {
    /// What every caller may do; without a list, everything.
    permissions: Vec<SeededPermission>,
    /// Deny assignments as a GET shows them, each with its `id` and `properties.scope`.
    deny_assignments: Vec<Value>,
}

/// A permission at one scope and below it; without a scope, at every one.
#[derive(Clone, Debug, Deserialize)]
struct SeededPermission {
    #[serde(default)]
    scope: String,
    #[serde(flatten)]
    shown: Map<String, Value>,
}

impl Default for Authorization {
    fn default() -> Self {
        let shown = json!({"actions": ["*"], "notActions": [], "dataActions": [], "notDataActions": []});
        Self {
            permissions: vec![SeededPermission {
                scope: String::new(),
                shown: shown.as_object().cloned().unwrap_or_default(),
            }],
            deny_assignments: Vec::new(),
        }
    }
}

impl Authorization {
    /// Answers a list of this provider; `None` for another one. `parent` has no segments if the scope is the resource group.
    pub(super) fn list(&self, parent: &ResourceId, kind: &str) -> Option<JsonResponse> {
        let scope = scope(parent)?;
        let value: Vec<Value> = if same_name(kind, "permissions") {
            let here = self.permissions.iter().filter(|known| contains(&known.scope, &scope));
            here.map(|known| known.shown.clone().into()).collect()
        } else if same_name(kind, "denyAssignments") {
            let is_shown = |known: &&Value| {
                let of = known.pointer("/properties/scope").and_then(Value::as_str);
                of.is_none_or(|of| contains(of, &scope) || contains(&scope, of))
            };
            self.deny_assignments.iter().filter(is_shown).cloned().collect()
        } else {
            return None;
        };
        Some(JsonResponse::new(StatusCode::OK, json!({"value": value})))
    }
}

/// The scope that a list of this provider is about: the resource group, or the resource in it before the provider's name.
fn scope(parent: &ResourceId) -> Option<String> {
    let group = format!("/subscriptions/{}/resourceGroups/{}", parent.subscription, parent.group);
    match parent.segments.split_last() {
        None => same_name(&parent.namespace, NAMESPACE).then_some(group),
        Some(((providers, namespace), resource)) => {
            let is_ours = same_name(providers, "providers") && same_name(namespace, NAMESPACE);
            (is_ours && !resource.is_empty()).then(|| parent.ancestor(resource.len()).to_string())
        }
    }
}

/// Whether a scope is another one or below it.
fn contains(outer: &str, inner: &str) -> bool {
    let outer = outer.trim_end_matches('/');
    let (Some(start), Some(rest)) = (inner.get(..outer.len()), inner.get(outer.len()..)) else {
        return false;
    };
    same_name(start, outer) && (rest.is_empty() || rest.starts_with('/'))
}
