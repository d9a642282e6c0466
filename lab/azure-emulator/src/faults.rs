//! The fault rules, in the order in which they were added. The first rule that matches a request acts on it.
//!
//! A rule counts the requests that it matches. It lets the first `skip` of them through, acts on the next `times`, and
//! is then spent: it stays in the list with its counts, and later rules are tried. A rule that lets a request through
//! does not stop later rules either. A rule behind one that acts does not count the request.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;

use axum::http::header::{IF_MATCH, USER_AGENT};
use axum::http::request::Parts;
use regex::bytes::Regex;
use serde::Deserialize;
use serde_json::{Value, json};

use self::action::Action;
use super::control::read;
use super::error::ErrorResponse;
use super::pattern;

pub(super) mod action;
mod given_response;
mod injected_response;

/// Rules at a time; every request is matched against each.
pub(super) const MAX_RULES: usize = 100;
/// Size of all rules as JSON: enough for a few pools of 5,000 addresses in responses and writes.
pub(super) const MAX_BYTES: usize = 8 * 1024 * 1024;

/// The parts of a request that rules match and injected responses repeat.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestSummary<'a> {
    pub(super) method: &'a str,
    /// The path without the query.
    pub(super) path: &'a str,
    pub(super) user_agent: &'a str,
    pub(super) if_match: Option<&'a str>,
    /// The caller's object id, `None` if it is not authenticated.
    pub(super) principal: Option<&'a str>,
}

impl<'a> RequestSummary<'a> {
    pub(super) fn from_parts(request: &'a Parts, principal: Option<&'a str>) -> Self {
        let text = |name| request.headers.get(name).and_then(|value| value.to_str().ok());
        Self {
            method: request.method.as_str(),
            path: request.uri.path(),
            user_agent: text(USER_AGENT).unwrap_or_default(),
            if_match: text(IF_MATCH),
            principal,
        }
    }
}

/// A rule that acts on a request.
#[derive(Clone, Debug)]
pub(super) struct FaultHit {
    /// The id of the rule.
    pub(super) rule: u64,
    pub(super) action: Arc<Action>,
}

#[derive(Debug, Default)]
pub(super) struct FaultRules {
    rules: VecDeque<Rule>,
    /// The id of the rule that was added last. Ids are not used twice.
    last: u64,
}

#[derive(Debug)]
struct Rule {
    id: u64,
    /// The JSON that the client sent.
    given: Value,
    bytes: usize,
    matcher: RequestMatcher,
    skip: u64,
    times: Option<u64>,
    action: Arc<Action>,
    /// Matching requests that were let through.
    passed: u64,
    /// Requests that the rule acted on.
    hits: u64,
}

/// A rule as a client sends it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenRule {
    #[serde(default, rename = "match")]
    matcher: RequestMatcher,
    skip: Option<u64>,
    times: Option<NonZeroU64>,
    action: Action,
}

/// The requests that a rule matches. A part that is `None` matches every request.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RequestMatcher {
    #[serde(deserialize_with = "pattern::read_anchored")]
    method: Option<Regex>,
    #[serde(deserialize_with = "pattern::read_unanchored")]
    path: Option<Regex>,
    #[serde(deserialize_with = "pattern::read_unanchored")]
    caller: Option<Regex>,
}

impl FaultRules {
    /// Adds a rule and returns its id.
    pub(super) fn add(&mut self, given: Value) -> Result<u64, ErrorResponse> {
        let bytes = given.to_string().len();
        if bytes > MAX_BYTES {
            return Err(too_much(format!(
                "The fault has {bytes} bytes; all faults together may have {MAX_BYTES}."
            )));
        }
        let mut rule = Rule::read(self.last + 1, given, bytes)?;
        while self.is_full(bytes) {
            // A spent rule is kept only for its counts.
            let Some(spent) = self.rules.iter().position(Rule::is_spent) else {
                return Err(too_much(format!(
                    "There are {} faults of {} bytes; at most {MAX_RULES} of together {MAX_BYTES} bytes are allowed. Remove some.",
                    self.rules.len(),
                    self.bytes()
                )));
            };
            self.rules.remove(spent);
        }
        self.last += 1;
        rule.id = self.last;
        self.rules.push_back(rule);
        Ok(self.last)
    }

    /// The rules as they were sent, with their ids and counts.
    pub(super) fn list(&self) -> Value {
        json!({"faults": self.rules.iter().map(Rule::shown).collect::<Value>()})
    }

    /// Removes a rule; false if there is none with this id.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        let before = self.rules.len();
        self.rules.retain(|rule| rule.id != id);
        self.rules.len() < before
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    /// The rule that acts on this request. Counts the request.
    pub(super) fn next(&mut self, request: &RequestSummary<'_>) -> Option<FaultHit> {
        let mut matching = self
            .rules
            .iter_mut()
            .filter(|rule| !rule.is_spent() && rule.matcher.matches(request));
        let rule = matching.find_map(|rule| {
            if rule.passed < rule.skip {
                rule.passed += 1;
                return None;
            }
            rule.hits += 1;
            Some(rule)
        })?;
        Some(FaultHit {
            rule: rule.id,
            action: Arc::clone(&rule.action),
        })
    }

    fn bytes(&self) -> usize {
        self.rules.iter().map(|rule| rule.bytes).sum()
    }

    fn is_full(&self, more: usize) -> bool {
        self.rules.len() >= MAX_RULES || self.bytes() + more > MAX_BYTES
    }
}

impl Rule {
    fn read(id: u64, given: Value, bytes: usize) -> Result<Self, ErrorResponse> {
        let rule: GivenRule = read(given.clone(), "fault")?;
        Ok(Self {
            id,
            given,
            bytes,
            matcher: rule.matcher,
            skip: rule.skip.unwrap_or(0),
            times: rule.times.map(NonZeroU64::get),
            action: Arc::new(rule.action),
            passed: 0,
            hits: 0,
        })
    }

    fn is_spent(&self) -> bool {
        self.times.is_some_and(|times| self.hits >= times)
    }

    fn shown(&self) -> Value {
        let mut shown = self.given.clone();
        shown["id"] = self.id.into();
        shown["passed"] = self.passed.into();
        shown["hits"] = self.hits.into();
        // Absent without `times`: the rule acts without limit.
        if let Some(times) = self.times {
            shown["left"] = times.saturating_sub(self.hits).into();
        }
        shown
    }
}

impl RequestMatcher {
    fn matches(&self, request: &RequestSummary<'_>) -> bool {
        let matches = |pattern: &Option<Regex>, text: &str| {
            pattern.as_ref().is_none_or(|pattern| pattern.is_match(text.as_bytes()))
        };
        matches(&self.method, request.method)
            && matches(&self.path, request.path)
            && matches(&self.caller, request.user_agent)
    }
}

fn too_much(message: String) -> ErrorResponse {
    ErrorResponse::bad_request("TooManyFaults", message)
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;
    use crate::tests::rows;

    const POOL: &str =
        "/subscriptions/s/resourceGroups/G/providers/Microsoft.Network/loadBalancers/lb/backendAddressPools/p";

    fn faults(given: &[Value]) -> FaultRules {
        let mut faults = FaultRules::default();
        for value in given {
            faults.add(value.clone()).unwrap();
        }
        faults
    }

    /// The ids of the rules that act on these requests, 0 where none does.
    fn acting_rules(faults: &mut FaultRules, requests: &[(&str, &str, &str)]) -> Vec<u64> {
        let hit = |&(method, path, user_agent)| {
            let request = RequestSummary {
                method,
                path,
                user_agent,
                ..RequestSummary::default()
            };
            faults.next(&request).map_or(0, |hit| hit.rule)
        };
        requests.iter().map(hit).collect()
    }

    #[test]
    fn rules_match_by_method_path_and_caller() {
        let requests = [
            ("PUT", POOL, "azsdk-go-armnetwork/v9.0.0"),
            ("GET", POOL, "azsdk-python-mgmt-network/33.1.0"),
            ("PUT", "/x", ""),
        ];
        for (matcher, want) in [
            (json!({}), [1, 1, 1]),
            (json!({"method": "PUT"}), [1, 0, 1]),
            (json!({"method": "get|head"}), [0, 1, 0]),
            (json!({"path": "resourcegroups/g/.*backendaddresspools/P$"}), [1, 1, 0]),
            (json!({"caller": "azsdk-GO"}), [1, 0, 0]),
            (json!({"method": "PUT", "path": "Pools", "caller": "python"}), [0, 0, 0]),
        ] {
            let mut faults = faults(&[json!({"match": matcher, "action": {"cut": "before"}})]);
            assert_eq!(acting_rules(&mut faults, &requests), want, "{matcher}");
        }
    }

    #[test]
    fn skip_and_times_apply_in_order() {
        for (rules, want) in [
            (&[(Some(2), None)][..], [1, 1, 0, 0, 0]),
            (&[(Some(1), Some(2))], [0, 0, 1, 0, 0]),
            (&[(None, Some(1))], [0, 1, 1, 1, 1]),
            (&[(Some(1), None), (Some(2), None)], [1, 2, 2, 0, 0]),
            (&[(Some(1), Some(1)), (Some(2), None)], [2, 1, 2, 0, 0]),
            (&[(None, None), (Some(1), None)], [1, 1, 1, 1, 1]),
        ] {
            let rule = |(times, skip): (Option<u64>, Option<u64>)| json!({"times": times, "skip": skip, "action": {"cut": "before"}});
            let given: Vec<_> = rules.iter().copied().map(rule).collect();
            let mut faults = faults(&given);
            assert_eq!(acting_rules(&mut faults, &[("PUT", "/", ""); 5]), want, "{rules:?}");
        }
    }

    #[test]
    fn list_shows_counts() {
        let rule = json!({"match": {"method": "PUT"}, "times": 2, "skip": 1, "action": {"stall": "1s"}});
        let mut faults = faults(&[rule.clone(), json!({"action": {"cut": "after"}})]);
        acting_rules(&mut faults, &[("PUT", "/", ""), ("PUT", "/", "")]);
        let mut shown = rule;
        for (key, value) in [("id", 1), ("passed", 1), ("hits", 1), ("left", 1)] {
            shown[key] = value.into();
        }
        let other = json!({"action": {"cut": "after"}, "id": 2, "passed": 0, "hits": 1});
        assert_eq!(faults.list(), json!({"faults": [shown, other]}));
        assert!(faults.remove(1));
        assert!(!faults.remove(1));
        faults.clear();
        assert_eq!(faults.list(), json!({"faults": []}));
        assert_eq!(
            faults.add(json!({"action": {"cut": "after"}})),
            Ok(3),
            "ids are not used twice"
        );
    }

    #[test]
    fn invalid_rules_are_refused() {
        let table = r#"
{} → missing field `action`
{"match": {"path": "("}, "action": {"cut": "before"}} → a pattern must be a regular expression: unclosed group
{"match": {"host": "x"}, "action": {"cut": "before"}} → unknown field `host`
{"times": 0, "action": {"cut": "before"}} → expected a nonzero u64
{"extra": 1, "action": {"cut": "before"}} → unknown field `extra`
"#;
        for (given, what) in rows(table) {
            let given = serde_json::from_str(given).unwrap();
            let error = FaultRules::default().add(given).unwrap_err();
            assert_eq!(error.status, StatusCode::BAD_REQUEST);
            assert!(error.message.contains(what), "{}", error.message);
        }
    }

    #[test]
    fn fault_rules_are_bounded_and_used_up_ones_are_replaced() {
        let mut faults = FaultRules::default();
        faults.add(json!({"times": 1, "action": {"cut": "after"}})).unwrap();
        for _ in 1..MAX_RULES {
            faults.add(json!({"action": {"cut": "after"}})).unwrap();
        }
        assert_eq!(
            faults.add(json!({"action": {"cut": "after"}})).unwrap_err().code,
            "TooManyFaults"
        );
        acting_rules(&mut faults, &[("PUT", "/", "")]);
        faults.add(json!({"action": {"cut": "after"}})).unwrap();
        assert_eq!(faults.rules[0].id, 2, "the spent rule was removed");
        let large = json!({"action": {"answer": {"status": 200, "text": "x".repeat(MAX_BYTES)}}});
        assert_eq!(faults.add(large).unwrap_err().code, "TooManyFaults");
    }
}
