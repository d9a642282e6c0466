//! The times of the election: client-go's, the intervals between reads, and the backoffs after failed terms.
//!
//! Invariant: a holder stops before a candidate may acquire the Lease. Pure: randomness comes from the caller's generator.

use std::time::Duration;

use fastrand::Rng;

use crate::api_server::IDLE_TIMEOUT;

/// How long a candidate must observe a held Lease unchanged before it acquires it. A second less than client-go's default, so that
/// another leads within 15 s of the death of a leader whose term it has read.
pub(super) const LEASE_DURATION: Duration = Duration::from_secs(14);
/// How long a term is valid after the start of its last successful write. client-go's default.
pub(super) const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// From the start of one renewal to the start of the next. client-go's default.
pub(super) const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// Limit of one request: three that get no response fit into a term.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// How long the work of a term may take to end after a handover was requested or the term has ended.
pub(super) const WORK_STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// How far wall-clock and monotonic time may diverge after a renewal. More means that the machine stood still, or that its clock
/// was set; it is less than what lies between the end of a term and the end of its Lease.
pub(super) const MAX_CLOCK_DIVERGENCE: Duration = Duration::from_secs(2);
/// A live holder's `renewTime` is at most this old: one renewal failed.
pub(super) const MAX_RENEWAL_AGE: Duration = Duration::from_secs(5);
/// A Lease is waited for no longer than this, whatever duration it claims.
pub(super) const MAX_LEASE_DURATION: Duration = Duration::from_mins(5);

const _: () = assert!(RENEW_DEADLINE.as_secs() < LEASE_DURATION.as_secs());
const _: () = assert!(RENEW_DEADLINE.as_secs() + MAX_CLOCK_DIVERGENCE.as_secs() < LEASE_DURATION.as_secs());
const _: () = assert!(FIRST_READ_WINDOW.as_millis() + LEASE_DURATION.as_millis() < 15_000);
const _: () = assert!(RETRY_PERIOD.as_secs() * 2 <= RENEW_DEADLINE.as_secs());
const _: () = assert!(RETRY_PERIOD.as_millis() < IDLE_TIMEOUT.as_millis());
const _: () = assert!(IDLE_TIMEOUT.as_millis() < REQUEST_TIMEOUT.as_millis());

/// Each candidate adds this to the read interval of all.
const READ_INTERVAL_PER_CANDIDATE: Duration = Duration::from_millis(100);
/// Few candidates read this often: the Lease of a dead leader expires for a candidate so much later than it was renewed.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(500);
const MAX_READ_INTERVAL: Duration = Duration::from_mins(5);
/// The read interval until a leader has published the number of candidates: that of 300.
const DEFAULT_READ_INTERVAL: Duration = Duration::from_secs(30);
/// The first read interval while a leader has not published the number of candidates. It does so within seconds, so that a
/// second read suffices, unless the leader dies before or cannot list the Nodes.
const MIN_UNPUBLISHED_READ_INTERVAL: Duration = Duration::from_secs(4);
/// The first read comes within this time, so that a fleet that starts at once does not read at once. Where all have died, nobody has
/// read the Lease: this and a lease duration pass until one leads, less than 15 s.
const FIRST_READ_WINDOW: Duration = Duration::from_millis(800);
/// The part of an interval that jitter adds at most.
const JITTER: f64 = 0.2;

/// The longest backoff of an instance whose own work failed.
pub(super) const MAX_FAILED_TERM_BACKOFF: Duration = Duration::from_mins(10);
/// The longest wait for a released Lease whose leaders fail one after another.
const MAX_FAILING_LEASE_WAIT: Duration = Duration::from_mins(5);
/// How long the first signalled term lasts before its holder hands over.
const SIGNALLED_TERM_MIN_DURATION: Duration = Duration::from_mins(1);
const MAX_SIGNALLED_TERM_MIN_DURATION: Duration = Duration::from_mins(16);
/// A term that lasts this long counts as successful, whatever ends it.
pub(super) const SUCCESSFUL_TERM_DURATION: Duration = Duration::from_mins(1);

/// The time from one read of the Lease to the next, without jitter. The reads of all candidates together find a dead
/// leader.
pub(super) fn read_interval(candidates: Option<u32>) -> Duration {
    candidates.map_or(DEFAULT_READ_INTERVAL, |candidates| {
        let shared = READ_INTERVAL_PER_CANDIDATE.saturating_mul(candidates);
        shared.clamp(MIN_READ_INTERVAL, MAX_READ_INTERVAL)
    })
}

/// The time from one read of a held Lease to the next, without jitter, after this many reads in which no leader had published
/// the number of candidates. It grows to that of a Lease without a holder, so that a large fleet does not read it often.
pub(super) fn unpublished_read_interval(reads: u32) -> Duration {
    // Twice the same, so that the interval stays shorter than a lease duration until one has passed since the first read.
    let doublings = if reads < 3 { reads.saturating_sub(1) } else { reads - 2 };
    doubled(MIN_UNPUBLISHED_READ_INTERVAL, doublings).min(DEFAULT_READ_INTERVAL)
}

/// The time from one read of the Lease to the next, with the longest jitter.
pub(super) fn longest_read_interval(candidates: Option<u32>) -> Duration {
    read_interval(candidates).mul_f64(1.0 + JITTER)
}

/// How much longer a signalled candidate leaves a free Lease to others: a lease duration, or less if all others read
/// twice in less. `is_read_by_all` is whether they have read how many candidates there are; otherwise they may read more rarely.
pub(super) fn signalled_delay(candidates: Option<u32>, is_read_by_all: bool) -> Duration {
    if !is_read_by_all {
        return LEASE_DURATION;
    }
    LEASE_DURATION.min(2 * longest_read_interval(candidates))
}

/// An interval with jitter, which only prolongs it.
pub(super) fn jittered(rng: &mut Rng, interval: Duration) -> Duration {
    interval.mul_f64(1.0 + JITTER * rng.f64())
}

/// A random time within the mean length of a jittered interval. It keeps the rate of a fleet's reads even.
pub(super) fn spread(rng: &mut Rng, interval: Duration) -> Duration {
    interval.mul_f64((1.0 + JITTER / 2.0) * rng.f64())
}

/// The time from the start to the first read.
pub(super) fn first_read_delay(rng: &mut Rng) -> Duration {
    FIRST_READ_WINDOW.mul_f64(rng.f64())
}

/// How long an instance abstains after this many of its own terms failed one after another.
pub(super) fn failed_term_backoff(failed_terms: u32) -> Duration {
    doubled(LEASE_DURATION, failed_terms.saturating_sub(1)).min(MAX_FAILED_TERM_BACKOFF)
}

/// How long all candidates wait for a released Lease after this many terms of any leader failed one after another.
/// Otherwise a failure that every leader meets would pass through the fleet at ten terms a second.
pub(super) fn failing_lease_wait(failed_terms: u32) -> Duration {
    match failed_terms.checked_sub(2) {
        None => Duration::ZERO,
        Some(doublings) => doubled(LEASE_DURATION, doublings).min(MAX_FAILING_LEASE_WAIT),
    }
}

/// How long a signalled term lasts before its holder hands over, after this many signalled terms of its own. Each handover without a
/// successor leaves a gap without a leader; and of several signalled candidates that see one without a signal, each succeeds the other.
pub(super) fn signalled_term_min_duration(signalled_terms: u32) -> Duration {
    doubled(SIGNALLED_TERM_MIN_DURATION, signalled_terms).min(MAX_SIGNALLED_TERM_MIN_DURATION)
}

/// The wait after this many requests failed one after another, while the number of candidates is unknown.
pub(super) fn failed_request_backoff(failures: u32) -> Duration {
    doubled(RETRY_PERIOD, failures.saturating_sub(1)).min(DEFAULT_READ_INTERVAL)
}

fn doubled(duration: Duration, times: u32) -> Duration {
    duration.saturating_mul(2_u32.saturating_pow(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_read_interval_grows_with_the_number_of_candidates() {
        let interval = |candidates| read_interval(candidates).as_millis();
        for (candidates, millis) in [
            (0, 500),
            (2, 500),
            (5, 500),
            (6, 600),
            (20, 2000),
            (21, 2100),
            (150, 15_000),
            (1000, 100_000),
            (3000, 300_000),
            (5000, 300_000),
            (u32::MAX, 300_000),
        ] {
            assert_eq!(interval(Some(candidates)), millis, "{candidates}");
        }
        assert_eq!(interval(None), 30_000);
        for (candidates, is_read_by_all, millis) in [
            (Some(2), true, 1200),
            (Some(2), false, 14_000),
            (Some(50), true, 12_000),
            (Some(5000), true, 14_000),
            (None, true, 14_000),
        ] {
            let delay = signalled_delay(candidates, is_read_by_all);
            assert_eq!(delay.as_millis(), millis, "{candidates:?} {is_read_by_all}");
        }
    }

    #[test]
    fn jitter_is_even_and_only_prolongs() {
        let mut rng = Rng::with_seed(7);
        let second = Duration::from_secs(1);
        let all: Vec<_> = (0..10_000).map(|_| jittered(&mut rng, second)).collect();
        assert!(all.iter().all(|each| *each >= second && *each < second.mul_f64(1.2)));
        let mean = all.iter().sum::<Duration>() / 10_000;
        assert!(mean > second.mul_f64(1.098) && mean < second.mul_f64(1.102), "{mean:?}");
        assert!((0..1000).all(|_| first_read_delay(&mut rng) < FIRST_READ_WINDOW));
        let spread: Vec<_> = (0..10_000).map(|_| spread(&mut rng, second)).collect();
        assert!(spread.iter().all(|each| *each < second.mul_f64(1.1)));
        assert!(spread.iter().any(|each| *each > second.mul_f64(1.09)));
    }

    #[test]
    fn backoffs_double_up_to_their_limits() {
        let seconds = |backoff: fn(u32) -> Duration| [0, 1, 2, 3, 4, u32::MAX].map(|count| backoff(count).as_secs());
        assert_eq!(seconds(failed_term_backoff), [14, 14, 28, 56, 112, 600]);
        assert_eq!(seconds(failing_lease_wait), [0, 0, 14, 28, 56, 300]);
        assert_eq!(seconds(signalled_term_min_duration), [60, 120, 240, 480, 960, 960]);
        assert_eq!(seconds(failed_request_backoff), [2, 2, 4, 8, 16, 30]);
        assert_eq!(seconds(unpublished_read_interval), [4, 4, 8, 8, 16, 30]);
        assert_eq!(unpublished_read_interval(5).as_secs(), 30);
    }
}
