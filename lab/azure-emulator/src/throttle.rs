//! Throttling: token buckets as documented for ARM (one for a principal and one for all principals of a subscription)
//! and for its network provider.
//!
//! A bucket is stored as the time when it will be full, so a full bucket can be dropped, and their number is bounded.
//! When a bucket is empty, requests are refused until it is full again: 250 reads at 25 a second are the 10 seconds
//! that were recorded. A refused request costs no token and does not prolong the wait.

use std::collections::HashMap;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

pub use self::bucket::RateLimit;
use self::bucket::{Bucket, Scope, key_name, whole_seconds};
use super::error::ErrorResponse;

mod bucket;

/// Buckets at a time; 200 principals that read, write and delete at once have fewer.
const MAX_BUCKETS: usize = 1024;

/// The limits of all buckets; the defaults are the documented ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ThrottleSettings {
    /// Whether requests are ever refused.
    pub enabled: bool,
    /// Limit of a principal's reads of a subscription.
    pub reads: RateLimit,
    /// Limit of its writes.
    pub writes: RateLimit,
    /// Limit of its deletes.
    pub deletes: RateLimit,
    /// All principals of a subscription together have this many times the limit of one.
    pub global_factor: u32,
    /// Limit of a principal's reads of the network provider in a subscription.
    pub network_reads: RateLimit,
    /// Limit of its writes and deletes there.
    pub network_writes: RateLimit,
}

impl Default for ThrottleSettings {
    fn default() -> Self {
        let five_minutes = 300.0;
        Self {
            enabled: true,
            reads: RateLimit::new(250, 25.0),
            writes: RateLimit::new(200, 10.0),
            deletes: RateLimit::new(200, 10.0),
            global_factor: 15,
            // Guess: these numbers "per five minutes" are token buckets too, and not windows.
            network_reads: RateLimit::new(10_000, 10_000.0 / five_minutes),
            network_writes: RateLimit::new(1000, 1000.0 / five_minutes),
        }
    }
}

impl ThrottleSettings {
    /// A principal's limit for this kind of request.
    fn limit(&self, kind: Kind) -> RateLimit {
        match kind {
            Kind::Read => self.reads,
            Kind::Write => self.writes,
            Kind::Delete => self.deletes,
        }
    }
}

/// The kind of request that a bucket counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A GET or HEAD request.
    Read,
    /// A PUT, PATCH or POST request.
    Write,
    /// A DELETE request, which the network provider counts as a write.
    Delete,
}

impl Kind {
    /// The kind of a method.
    pub(super) fn from_method(method: &Method) -> Self {
        match *method {
            Method::GET | Method::HEAD => Self::Read,
            Method::DELETE => Self::Delete,
            _ => Self::Write,
        }
    }

    /// The kind as ARM's messages spell it.
    fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Delete => "delete",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    subscription: String,
    principal: String,
    scope: Scope,
    kind: Kind,
}

/// The tokens that are left after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remaining {
    kind: Kind,
    /// Tokens in the principal's bucket.
    pub(super) own: u32,
    /// Tokens in the bucket of all principals.
    pub(super) global: u32,
}

impl Remaining {
    fn headers(self) -> [(HeaderName, HeaderValue); 2] {
        let (own, global) = match self.kind {
            Kind::Read => (
                "x-ms-ratelimit-remaining-subscription-reads",
                "x-ms-ratelimit-remaining-subscription-global-reads",
            ),
            Kind::Write => (
                "x-ms-ratelimit-remaining-subscription-writes",
                "x-ms-ratelimit-remaining-subscription-global-writes",
            ),
            Kind::Delete => (
                "x-ms-ratelimit-remaining-subscription-deletes",
                "x-ms-ratelimit-remaining-subscription-global-deletes",
            ),
        };
        [
            (HeaderName::from_static(own), self.own.into()),
            (HeaderName::from_static(global), self.global.into()),
        ]
    }

    /// Adds the two headers for this kind of request.
    pub(super) fn write(self, headers: &mut HeaderMap) {
        headers.extend(self.headers());
    }
}

/// The limits, and the buckets that are not full.
#[derive(Debug)]
pub(super) struct Throttle {
    settings: ThrottleSettings,
    buckets: HashMap<Key, Bucket>,
}

impl Throttle {
    /// Starts with full buckets.
    pub(super) fn new(settings: ThrottleSettings) -> Self {
        Self {
            settings,
            buckets: HashMap::new(),
        }
    }

    pub(super) fn reset(&mut self) {
        self.buckets.clear();
    }

    /// Takes a token from each bucket that the request falls under.
    ///
    /// # Errors
    ///
    /// A 429 if a bucket is empty. The network provider's bucket comes after ARM's, so a request that it refuses has
    /// cost a token there.
    pub(super) fn take(
        &mut self,
        subscription: &str,
        principal: &str,
        kind: Kind,
        is_network: bool,
        now: Instant,
    ) -> Result<Remaining, ErrorResponse> {
        let limit = self.settings.limit(kind);
        let global_limit = limit.times(self.settings.global_factor);
        if !self.settings.enabled {
            return Ok(Remaining {
                kind,
                own: limit.capacity.saturating_sub(1),
                global: global_limit.capacity.saturating_sub(1),
            });
        }
        let key = |scope, principal, kind| Key {
            subscription: key_name(subscription),
            principal: key_name(principal),
            scope,
            kind,
        };
        let (own, global) = (key(Scope::Principal, principal, kind), key(Scope::Global, "", kind));
        let waits = [(&own, limit), (&global, global_limit)];
        for (key, limit) in waits {
            if let Some(wait) = self.bucket(key, limit, now).wait(key.scope, now) {
                return Err(too_many_requests(key.scope, subscription, principal, kind, wait));
            }
        }
        let mut take = |key, limit| {
            let bucket = self.bucket(key, limit, now);
            bucket.take(now);
            bucket.tokens(now)
        };
        let remaining = Remaining {
            kind,
            own: take(&own, limit),
            global: take(&global, global_limit),
        };
        if is_network {
            let (kind, limit) = match kind {
                Kind::Read => (kind, self.settings.network_reads),
                Kind::Write | Kind::Delete => (Kind::Write, self.settings.network_writes),
            };
            let bucket = self.bucket(&key(Scope::Network, principal, kind), limit, now);
            if let Some(wait) = bucket.wait(Scope::Network, now) {
                let mut error = too_many_requests(Scope::Network, subscription, principal, kind, wait);
                error.headers.extend(remaining.headers());
                return Err(error);
            }
            bucket.take(now);
        }
        Ok(remaining)
    }

    /// The bucket with this key, a full one if it is new. At the bound, full buckets are removed or, if there is none,
    /// the one that will be full first.
    fn bucket(&mut self, key: &Key, limit: RateLimit, now: Instant) -> &mut Bucket {
        if self.buckets.len() >= MAX_BUCKETS && !self.buckets.contains_key(key) {
            self.buckets.retain(|_, bucket| !bucket.is_full(now));
            if self.buckets.len() >= MAX_BUCKETS {
                let first = self.buckets.iter().min_by_key(|(_, bucket)| bucket.full_at);
                if let Some(first) = first.map(|(key, _)| key.clone()) {
                    self.buckets.remove(&first);
                }
            }
        }
        self.buckets
            .entry(key.clone())
            .or_insert_with(|| Bucket::full(limit, now))
    }

    /// The settings and the buckets that are not full, for the control API.
    pub(super) fn snapshot(&self, now: Instant) -> Value {
        let mut shown: Vec<(&Key, &Bucket)> = self.buckets.iter().filter(|(_, b)| !b.is_full(now)).collect();
        shown.sort_by_key(|(key, _)| *key);
        let buckets = shown.into_iter().map(|(key, bucket)| {
            let mut shown = json!({
                "scope": key.scope.as_str(),
                "subscription": key.subscription,
                "principal": key.principal,
                "kind": key.kind.as_str(),
                "remaining": bucket.tokens(now),
                "capacity": bucket.limit.capacity,
            });
            if let Some(until) = bucket.closed_until.filter(|until| *until > now) {
                shown["retryAfterSeconds"] = whole_seconds(until - now).into();
            }
            shown
        });
        json!({"settings": self.settings, "buckets": buckets.collect::<Vec<_>>()})
    }
}

/// The 429 of an empty bucket; `wait` is in seconds.
fn too_many_requests(scope: Scope, subscription: &str, principal: &str, kind: Kind, wait: u64) -> ErrorResponse {
    let (status, kind) = (StatusCode::TOO_MANY_REQUESTS, kind.as_str());
    let error = match scope {
        Scope::Principal => ErrorResponse::new(
            status,
            "SubscriptionRequestsThrottled",
            format!(
                "Number of '{kind}' requests for subscription '{subscription}' actor '{principal}' exceeded. Please try \
                 again after '{wait}' seconds."
            ),
        )
        .by_gateway(),
        // Guess: the wording; only a principal's own bucket was recorded empty.
        Scope::Global => ErrorResponse::new(
            status,
            "SubscriptionRequestsThrottled",
            format!(
                "Number of '{kind}' requests for subscription '{subscription}' exceeded. Please try again after '{wait}' \
                 seconds."
            ),
        )
        .by_gateway(),
        // Guess: the whole body; no throttled answer of the network provider is recorded.
        Scope::Network => ErrorResponse::new(
            status,
            "TooManyRequests",
            format!(
                "Number of '{kind}' requests to 'Microsoft.Network' for subscription '{subscription}' actor \
                 '{principal}' exceeded. Please try again after '{wait}' seconds."
            ),
        )
        .without_details(),
    };
    error.retry_after(wait)
}

#[cfg(test)]
mod tests;
