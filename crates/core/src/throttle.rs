//! Until when a service throttles this process. Who obeys it is left to `headgate-azure`, who passes it on to the election.

use tokio::time::Instant;

/// Until when ARM throttles requests; `None` where it does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThrottledUntil {
    /// When ARM accepts reads (GET) again, on the monotonic clock.
    pub reads: Option<Instant>,
    /// When ARM accepts writes (PUT) again, on the monotonic clock.
    pub writes: Option<Instant>,
}
