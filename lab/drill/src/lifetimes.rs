//! How long the long-lived connections of clients live, and whether they are used meanwhile.

use std::time::Duration;

use crate::speed::Speed;

/// Where the lifetimes of long-lived connections come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lifetimes {
    /// Each lives between half and all of this real time.
    AtMost(Duration),
    /// Each is drawn from a table of scenario times, from 1 s to [`LONGEST`], which this speed shortens.
    Mix(Speed),
}

/// What one long-lived connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// How long it lives, really.
    pub length: Duration,
    /// Whether it is silent until its end; others send a request now and then.
    pub is_idle: bool,
}

/// The longest lifetime of the table.
pub(crate) const LONGEST: Duration = Duration::from_mins(10);

/// Connections of one kind among those that are opened.
struct Kind {
    percent: u8,
    lifetime: Duration,
    is_idle: bool,
}

const fn kind(percent: u8, lifetime: Duration, is_idle: bool) -> Kind {
    Kind {
        percent,
        lifetime,
        is_idle,
    }
}

/// Most connections are short, and most of those open at one moment are long: those of 5 and 10 min are a fifth of the
/// connections that are opened, and soon four fifths of those that are held.
const MIX: [Kind; 8] = [
    kind(25, Duration::from_secs(1), false),
    kind(20, Duration::from_secs(10), false),
    kind(10, Duration::from_secs(30), true),
    kind(15, Duration::from_mins(1), false),
    kind(10, Duration::from_mins(2), true),
    kind(10, Duration::from_mins(5), false),
    kind(5, LONGEST, false),
    kind(5, LONGEST, true),
];

impl Lifetimes {
    /// What the next connection does.
    pub(crate) fn draw(self, random: &mut fastrand::Rng) -> Life {
        match self {
            Self::AtMost(longest) => Life {
                length: longest.mul_f64(0.5 + random.f64() / 2.0),
                is_idle: false,
            },
            Self::Mix(speed) => {
                let mut drawn = random.u8(..100);
                let (last, others) = MIX.split_last().unwrap_or((&MIX[0], &[]));
                let chosen = others.iter().find(|kind| {
                    let is_chosen = drawn < kind.percent;
                    drawn = drawn.saturating_sub(kind.percent);
                    is_chosen
                });
                let Kind { lifetime, is_idle, .. } = chosen.unwrap_or(last);
                Life {
                    length: speed.real(*lifetime),
                    is_idle: *is_idle,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_drawn_as_often_as_the_table_says() {
        assert_eq!(MIX.iter().map(|kind| u32::from(kind.percent)).sum::<u32>(), 100);
        let (mix, mut random) = (Lifetimes::Mix(Speed::new(10.0).unwrap()), fastrand::Rng::with_seed(1));
        let drawn: Vec<_> = (0..10_000).map(|_| mix.draw(&mut random)).collect();
        for kind in &MIX {
            let life = Life {
                length: kind.lifetime / 10,
                is_idle: kind.is_idle,
            };
            let percent = drawn.iter().filter(|other| **other == life).count() / 100;
            assert!(
                percent.abs_diff(usize::from(kind.percent)) <= 1,
                "{percent} % of {life:?}"
            );
        }
        let lengths = drawn.iter().map(|life| life.length);
        assert_eq!(lengths.clone().min(), Some(Duration::from_millis(100)));
        assert_eq!(lengths.max(), Some(LONGEST / 10));
    }

    #[test]
    fn a_bounded_lifetime_is_between_half_and_all_of_the_bound() {
        let (lifetimes, mut random) = (Lifetimes::AtMost(Duration::from_secs(20)), fastrand::Rng::with_seed(1));
        for _ in 0..100 {
            let life = lifetimes.draw(&mut random);
            assert!(
                (10.0..=20.0).contains(&life.length.as_secs_f64()) && !life.is_idle,
                "{life:?}"
            );
        }
    }
}
