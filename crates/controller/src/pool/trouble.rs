//! What is in the way of a load balancer's tasks, for people: events, metrics, status.

use headgate_azure::{ArmError, ErrorClass};
use tokio::time::Instant;

/// One failure, which lasts until something succeeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Trouble {
    /// What to do about it.
    pub class: ErrorClass,
    /// Its name, such as ARM's code.
    pub code: String,
    /// What was said.
    pub text: String,
    /// When it began.
    pub since: Instant,
    /// How often it has been met.
    pub count: u64,
}

impl Trouble {
    /// Of ARM's failure, after another one.
    #[must_use]
    pub fn new(error: &ArmError, before: Option<&Self>) -> Self {
        // ARM's word and ours until its time has come are one trouble.
        let code = if error.is_throttled() {
            "Throttled"
        } else {
            error.code()
        };
        Self::named(error.class(), code, error.to_string(), before)
    }

    /// Of any failure.
    #[must_use]
    pub fn named(class: ErrorClass, code: &str, text: String, before: Option<&Self>) -> Self {
        Self {
            class,
            code: code.to_owned(),
            text,
            since: before.map_or_else(Instant::now, |before| before.since),
            count: before.map_or(0, |before| before.count) + 1,
        }
    }

    /// Whether the two are of one kind, so that the second is no news.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        (self.class, &self.code) == (other.class, &other.code)
    }
}
