//! How many requests are let through: token buckets as documented for Resource Manager (a principal's
//! own and all principals' of a subscription) and for its network provider.
//!
//! A bucket is one moment, when it will be full again; so a full bucket is worth nothing and may be
//! forgotten, and their number is bounded. Who asks for more than there is waits until the whole bucket
//! is full: 250 reads at 25 a second are the 10 seconds that were recorded. What is asked in between is
//! refused with what remains of the wait; it neither costs a token nor makes the wait longer.

use std::collections::HashMap;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};
use tokio::time::Instant;

pub use self::bucket::RateLimit;
use self::bucket::{Bucket, Scope, name, whole_seconds};
use self::refusal::refusal;
pub use self::settings::ThrottleSettings;
use super::error::ArmError;

mod bucket;
mod refusal;
mod settings;

/// Buckets that are kept; 200 principals that read, write and delete at once have fewer.
const MAX_BUCKETS: usize = 1024;

/// What a request counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    /// GET, HEAD.
    Read,
    /// PUT, PATCH, POST.
    Write,
    /// DELETE.
    Delete,
}

impl Kind {
    /// That of a method.
    pub(super) fn of(method: &Method) -> Self {
        match *method {
            Method::GET | Method::HEAD => Self::Read,
            Method::DELETE => Self::Delete,
            _ => Self::Write,
        }
    }

    /// As Resource Manager's message has it.
    fn word(self) -> &'static str {
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

/// What a request left over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remaining {
    kind: Kind,
    /// In the principal's bucket.
    pub(super) own: u32,
    /// In that of all principals.
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

    /// Writes the two headers of this kind of request.
    pub(super) fn write(self, headers: &mut HeaderMap) {
        headers.extend(self.headers());
    }
}

/// All buckets.
#[derive(Debug)]
pub(super) struct Throttle {
    settings: ThrottleSettings,
    buckets: HashMap<Key, Bucket>,
}

impl Throttle {
    /// With every bucket full.
    pub(super) fn new(settings: ThrottleSettings) -> Self {
        Self {
            settings,
            buckets: HashMap::new(),
        }
    }

    /// Fills every bucket.
    pub(super) fn reset(&mut self) {
        self.buckets.clear();
    }

    /// Lets one request through, which costs a token of each bucket it falls under, or says how long to wait.
    ///
    /// # Errors
    ///
    /// A 429. The network provider is asked after Resource Manager has let the request through, so what
    /// it refuses has been paid for there.
    pub(super) fn take(
        &mut self,
        subscription: &str,
        principal: &str,
        kind: Kind,
        network: bool,
        now: Instant,
    ) -> Result<Remaining, ArmError> {
        let limit = self.settings.of(kind);
        let global_limit = limit.times(self.settings.global_factor);
        if !self.settings.enabled {
            return Ok(Remaining {
                kind,
                own: limit.capacity.saturating_sub(1),
                global: global_limit.capacity.saturating_sub(1),
            });
        }
        let key = |scope, principal, kind| Key {
            subscription: name(subscription),
            principal: name(principal),
            scope,
            kind,
        };
        let (own, global) = (key(Scope::Principal, principal, kind), key(Scope::Global, "", kind));
        let waits = [(&own, limit), (&global, global_limit)];
        for (key, limit) in waits {
            if let Some(wait) = self.bucket(key, limit, now).wait(key.scope, now) {
                return Err(refusal(key.scope, subscription, principal, kind, wait));
            }
        }
        let mut pay = |key, limit| {
            let bucket = self.bucket(key, limit, now);
            bucket.take(now);
            bucket.tokens(now)
        };
        let remaining = Remaining {
            kind,
            own: pay(&own, limit),
            global: pay(&global, global_limit),
        };
        if network {
            let (kind, limit) = match kind {
                Kind::Read => (kind, self.settings.network_reads),
                Kind::Write | Kind::Delete => (Kind::Write, self.settings.network_writes),
            };
            let bucket = self.bucket(&key(Scope::Network, principal, kind), limit, now);
            if let Some(wait) = bucket.wait(Scope::Network, now) {
                let mut error = refusal(Scope::Network, subscription, principal, kind, wait);
                error.headers.extend(remaining.headers());
                return Err(error);
            }
            bucket.take(now);
        }
        Ok(remaining)
    }

    /// The bucket, made full if it is not there, for which another may have to go: a full one, as long as
    /// there is any, else the one that will be full first.
    fn bucket(&mut self, key: &Key, limit: RateLimit, now: Instant) -> &mut Bucket {
        if self.buckets.len() >= MAX_BUCKETS && !self.buckets.contains_key(key) {
            self.buckets.retain(|_, bucket| !bucket.is_as_new(now));
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

    /// The settings, and the buckets that are not full, in order.
    pub(super) fn snapshot(&self, now: Instant) -> Value {
        let mut shown: Vec<(&Key, &Bucket)> = self.buckets.iter().filter(|(_, b)| !b.is_as_new(now)).collect();
        shown.sort_by_key(|(key, _)| *key);
        let buckets = shown.into_iter().map(|(key, bucket)| {
            let mut shown = json!({
                "scope": key.scope.word(),
                "subscription": key.subscription,
                "principal": key.principal,
                "kind": key.kind.word(),
                "remaining": bucket.tokens(now),
                "capacity": bucket.limit.capacity,
            });
            if let Some(until) = bucket.shut_until.filter(|until| *until > now) {
                shown["retryAfterSeconds"] = whole_seconds(until - now).into();
            }
            shown
        });
        json!({"settings": self.settings, "buckets": buckets.collect::<Vec<_>>()})
    }
}

#[cfg(test)]
mod tests;
