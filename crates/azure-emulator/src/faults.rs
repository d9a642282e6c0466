//! The rules by which requests meet faults, in the order they were given; the first that matches acts.
//!
//! A rule counts the requests it matches. It lets its first ones through (`skip`), acts on the next ones
//! (`times`), and then is spent: it stays listed with its hits and steps aside for later rules. A rule that lets a
//! request through steps aside as well, and a rule behind one that acts does not count the request.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::http::header::{IF_MATCH, USER_AGENT};
use axum::http::request::Parts;
use regex::bytes::Regex;
use serde_json::{Value, json};

use super::error::ArmError;
use super::fault::Action;
use super::{fields, pattern};

/// No more rules: every request is held against each of them.
pub(super) const MAX_RULES: usize = 100;
/// All rules as JSON are no longer than this; enough for a few pools of 5,000 addresses in answers and writes.
pub(super) const MAX_BYTES: usize = 8 * 1024 * 1024;
/// More requests than a test makes, so that sums cannot overflow.
const MAX_COUNT: u64 = 1_000_000_000;

/// A request, as far as rules and answers look at it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked<'a> {
    pub(super) method: &'a str,
    /// Without the query.
    pub(super) path: &'a str,
    pub(super) user_agent: &'a str,
    pub(super) if_match: Option<&'a str>,
    /// Who it is from, where that is known.
    pub(super) principal: Option<&'a str>,
}

impl<'a> Asked<'a> {
    /// What a request asks.
    pub(super) fn of(request: &'a Parts, principal: Option<&'a str>) -> Self {
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

/// A rule has acted.
#[derive(Clone, Debug)]
pub(super) struct Hit {
    /// Which one.
    pub(super) rule: u64,
    pub(super) action: Arc<Action>,
}

/// The rules.
#[derive(Debug, Default)]
pub(super) struct Faults {
    rules: VecDeque<Rule>,
    /// The number of the last one ever added: numbers are not given twice.
    last: u64,
}

#[derive(Debug)]
struct Rule {
    id: u64,
    /// As given.
    given: Value,
    bytes: usize,
    wanted: Wanted,
    skip: u64,
    times: Option<u64>,
    action: Arc<Action>,
    /// Requests let through.
    passed: u64,
    /// Requests acted on.
    hits: u64,
}

/// Which requests; a part that is not given takes all.
#[derive(Debug, Default)]
struct Wanted {
    method: Option<Regex>,
    path: Option<Regex>,
    caller: Option<Regex>,
}

impl Faults {
    /// Adds a rule and gives its number.
    pub(super) fn add(&mut self, given: Value) -> Result<u64, ArmError> {
        let bytes = given.to_string().len();
        if bytes > MAX_BYTES {
            return Err(too_much(format!(
                "The fault has {bytes} bytes; all together may have {MAX_BYTES}."
            )));
        }
        let mut rule = Rule::read(self.last + 1, given, bytes)?;
        while self.is_full(bytes) {
            // Spent ones are kept for their counts only.
            let Some(spent) = self.rules.iter().position(Rule::is_spent) else {
                return Err(too_much(format!(
                    "There are {} faults of {} bytes, and there is room for {MAX_RULES} of {MAX_BYTES} bytes; remove some.",
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

    /// The rules as given, with their numbers and counts.
    pub(super) fn list(&self) -> Value {
        json!({"faults": self.rules.iter().map(Rule::shown).collect::<Value>()})
    }

    /// Whether there was such a rule to remove.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        let before = self.rules.len();
        self.rules.retain(|rule| rule.id != id);
        self.rules.len() < before
    }

    /// Removes all.
    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    /// What happens to this request, which is counted.
    pub(super) fn next(&mut self, asked: &Asked<'_>) -> Option<Hit> {
        let mut matching = self
            .rules
            .iter_mut()
            .filter(|rule| !rule.is_spent() && rule.wanted.is(asked));
        let rule = matching.find_map(|rule| {
            if rule.passed < rule.skip {
                rule.passed += 1;
                return None;
            }
            rule.hits += 1;
            Some(rule)
        })?;
        Some(Hit {
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
    fn read(id: u64, given: Value, bytes: usize) -> Result<Self, ArmError> {
        let shown = given.clone();
        fields::read(given, "fault", |fields| {
            let wanted = fields.object("match", |fields| {
                Some(Wanted {
                    method: fields.text("method", pattern::whole),
                    path: fields.text("path", pattern::anywhere),
                    caller: fields.text("caller", pattern::anywhere),
                })
            });
            let times = fields.number("times", 1..=MAX_COUNT);
            let skip = fields.number("skip", 0..=MAX_COUNT);
            let action = fields.object("action", Action::read);
            let Some(action) = action else {
                fields.missing("action");
                return None;
            };
            Some(Self {
                id,
                given: shown,
                bytes,
                wanted: wanted.unwrap_or_default(),
                skip: skip.unwrap_or(0),
                times,
                action: Arc::new(action),
                passed: 0,
                hits: 0,
            })
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
        // Absent: for ever.
        if let Some(times) = self.times {
            shown["left"] = times.saturating_sub(self.hits).into();
        }
        shown
    }
}

impl Wanted {
    fn is(&self, asked: &Asked<'_>) -> bool {
        let fits = |pattern: &Option<Regex>, text: &str| {
            pattern.as_ref().is_none_or(|pattern| pattern.is_match(text.as_bytes()))
        };
        fits(&self.method, asked.method) && fits(&self.path, asked.path) && fits(&self.caller, asked.user_agent)
    }
}

fn too_much(message: String) -> ArmError {
    ArmError::new(StatusCode::BAD_REQUEST, "TooManyFaults", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: &str =
        "/subscriptions/s/resourceGroups/G/providers/Microsoft.Network/loadBalancers/lb/backendAddressPools/p";

    fn faults(given: &[Value]) -> Faults {
        let mut faults = Faults::default();
        for value in given {
            faults.add(value.clone()).unwrap();
        }
        faults
    }

    /// The rules that act on these requests one after the other, 0 where none does.
    fn story(faults: &mut Faults, requests: &[(&str, &str, &str)]) -> Vec<u64> {
        let hit = |&(method, path, user_agent)| {
            let asked = Asked {
                method,
                path,
                user_agent,
                ..Asked::default()
            };
            faults.next(&asked).map_or(0, |hit| hit.rule)
        };
        requests.iter().map(hit).collect()
    }

    #[test]
    fn which_requests() {
        let requests = [
            ("PUT", POOL, "azsdk-go-armnetwork/v9.0.0"),
            ("GET", POOL, "azsdk-python-mgmt-network/33.1.0"),
            ("PUT", "/x", ""),
        ];
        for (wanted, want) in [
            (json!({}), [1, 1, 1]),
            (json!({"method": "PUT"}), [1, 0, 1]),
            (json!({"method": "get|head"}), [0, 1, 0]),
            (json!({"path": "resourcegroups/g/.*backendaddresspools/P$"}), [1, 1, 0]),
            (json!({"caller": "azsdk-GO"}), [1, 0, 0]),
            (json!({"method": "PUT", "path": "Pools", "caller": "python"}), [0, 0, 0]),
        ] {
            let mut faults = faults(&[json!({"match": wanted, "action": {"cut": "before"}})]);
            assert_eq!(story(&mut faults, &requests), want, "{wanted}");
        }
    }

    #[test]
    fn skip_times_and_order() {
        let cut = |times: Value, skip: Value| json!({"times": times, "skip": skip, "action": {"cut": "before"}});
        let null = Value::Null;
        for (rules, want) in [
            (vec![cut(json!(2), null.clone())], [1, 1, 0, 0, 0]),
            (vec![cut(json!(1), json!(2))], [0, 0, 1, 0, 0]),
            (vec![cut(null.clone(), json!(1))], [0, 1, 1, 1, 1]),
            (
                vec![cut(json!(1), null.clone()), cut(json!(2), null.clone())],
                [1, 2, 2, 0, 0],
            ),
            // What the first lets through, the second acts on.
            (
                vec![cut(json!(1), json!(1)), cut(json!(2), null.clone())],
                [2, 1, 2, 0, 0],
            ),
            (
                vec![cut(null.clone(), null.clone()), cut(json!(1), null.clone())],
                [1, 1, 1, 1, 1],
            ),
        ] {
            let mut faults = faults(&rules);
            assert_eq!(story(&mut faults, &[("PUT", "/", ""); 5]), want, "{rules:?}");
        }
    }

    #[test]
    fn the_list_counts() {
        let rule = json!({"match": {"method": "PUT"}, "times": 2, "skip": 1, "action": {"stall": "1s"}});
        let mut faults = faults(&[rule.clone(), json!({"action": {"cut": "after"}})]);
        story(&mut faults, &[("PUT", "/", ""), ("PUT", "/", "")]);
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
            "numbers are not given twice"
        );
    }

    #[test]
    fn mistakes_are_told_together() {
        let given = json!({"match": {"path": "(", "host": "x"}, "times": 0, "action": {"cut": 1}, "extra": 1});
        let error = Faults::default().add(given).unwrap_err();
        assert_eq!(error.status, StatusCode::BAD_REQUEST);
        let told: Vec<_> = error
            .details
            .unwrap()
            .into_iter()
            .map(|detail| detail.message)
            .collect();
        let want = [
            "match.path must be a regular expression: unclosed group",
            "match.host is unknown; known here: method, path, caller",
            "times must be a whole number from 1 to 1000000000",
            "action.cut must be one of before, after",
            "extra is unknown; known here: match, times, skip, action",
        ];
        assert_eq!(told, want);
        let error = Faults::default().add(json!({})).unwrap_err();
        assert_eq!(error.details.unwrap()[0].message, "it must have action");
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut faults = Faults::default();
        faults.add(json!({"times": 1, "action": {"cut": "after"}})).unwrap();
        for _ in 1..MAX_RULES {
            faults.add(json!({"action": {"cut": "after"}})).unwrap();
        }
        assert_eq!(
            faults.add(json!({"action": {"cut": "after"}})).unwrap_err().code,
            "TooManyFaults"
        );
        story(&mut faults, &[("PUT", "/", "")]);
        faults.add(json!({"action": {"cut": "after"}})).unwrap();
        assert_eq!(faults.rules[0].id, 2, "the spent one has made room");
        let large = json!({"action": {"answer": {"status": 200, "text": "x".repeat(MAX_BYTES)}}});
        assert_eq!(faults.add(large).unwrap_err().code, "TooManyFaults");
    }
}
