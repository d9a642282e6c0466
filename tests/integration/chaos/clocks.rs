//! The wall clocks of the controllers' machines, as the run has set them. A time that a controller writes is by its own clock; here it
//! becomes one of the run's clock, so that no check depends on a clock that is wrong.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::history::{Event, What};

/// A clock that is set while it is read may show the one or the other.
const READ_SLACK: SignedDuration = SignedDuration::from_secs(1);

/// When a clock was set, from begin to end, and by how much it is ahead since then.
#[derive(Clone, Copy, Debug)]
struct Setting {
    begin: Timestamp,
    end: Timestamp,
    ahead: SignedDuration,
}

/// The settings of each controller's clock, in order.
#[derive(Debug, Default)]
pub(super) struct Clocks<'a>(BTreeMap<&'a str, Vec<Setting>>);

/// When a clock was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) at: Timestamp,
    pub(super) is_wrong: bool,
}

impl<'a> Clocks<'a> {
    /// Of a history in order of the begins.
    pub(super) fn of(history: &'a [Event]) -> Self {
        let mut clocks = Self::default();
        for event in history {
            if let What::ClockSet {
                controller,
                ahead_seconds,
            } = &event.what
            {
                clocks.0.entry(controller).or_default().push(Setting {
                    begin: event.begin,
                    end: event.end,
                    ahead: SignedDuration::from_secs(*ahead_seconds),
                });
            }
        }
        clocks
    }

    /// When the controller's clock showed this time: the last time up to `until`, since a clock that jumps backwards shows a time twice.
    /// `None` if it never did. A clock that was never set is right.
    pub(super) fn read(&self, controller: &str, shown: Timestamp, until: Timestamp) -> Option<Reading> {
        let Some(settings) = self.0.get(controller) else {
            return Some(Reading {
                at: shown,
                is_wrong: false,
            });
        };
        let ends = settings.iter().skip(1).map(|next| next.end).chain([until]);
        let readings = settings.iter().zip(ends).filter_map(|(setting, end)| {
            let at = shown.saturating_sub(setting.ahead).ok()?;
            let is_shown = setting.begin <= at.saturating_add(READ_SLACK).ok()? && at <= end.min(until);
            is_shown.then_some(Reading {
                at,
                is_wrong: !setting.ahead.is_zero(),
            })
        });
        readings.max_by_key(|reading| reading.at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{at, clock_set};
    use super::*;

    #[test]
    fn a_time_is_read_by_the_clock_as_it_was_set_then() {
        let history = [
            clock_set("node-1", 0, 0),
            clock_set("node-1", 100, 60),
            clock_set("node-1", 200, -30),
            clock_set("node-2", 150, 7),
        ];
        let clocks = Clocks::of(&history);
        for (controller, shown, until, expected) in [
            ("node-1", 50, 210, Some((50, false))),
            ("node-1", 170, 190, Some((110, true))),
            ("node-1", 180, 300, Some((210, true))),
            ("node-1", 255, 300, Some((285, true))),
            // Before the jump backwards, and again after it.
            ("node-1", 250, 300, Some((280, true))),
            ("node-1", 250, 270, Some((190, true))),
            // Between both sides of the jump forwards.
            ("node-1", 130, 150, None),
            ("node-1", 400, 300, None),
            ("node-2", 140, 300, None),
            ("node-3", 140, 300, Some((140, false))),
        ] {
            let reading = clocks.read(controller, at(shown), at(until));
            let expected = expected.map(|(second, is_wrong)| Reading {
                at: at(second),
                is_wrong,
            });
            assert_eq!(reading, expected, "{controller} shows {shown}");
        }
    }
}
