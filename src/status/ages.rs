//! How long ago something was, in few letters. Pure.

use jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// `12s`, `3m`, `5h` or `2d`; what lies ahead, by another's clock, is `0s`.
pub(super) fn age(since: Timestamp, now: Timestamp) -> String {
    match now.duration_since(since).as_secs().max(0) {
        seconds if seconds < MINUTE => format!("{seconds}s"),
        seconds if seconds < HOUR => format!("{}m", seconds / MINUTE),
        seconds if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        seconds => format!("{}d", seconds / DAY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_unit_is_enough() {
        for (seconds, text) in [
            (-5, "0s"),
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (3599, "59m"),
            (3600, "1h"),
            (47 * HOUR, "47h"),
            (2 * DAY, "2d"),
        ] {
            let now = Timestamp::from_second(1_000_000 + seconds).unwrap();
            assert_eq!(age(Timestamp::from_second(1_000_000).unwrap(), now), text);
        }
    }
}
