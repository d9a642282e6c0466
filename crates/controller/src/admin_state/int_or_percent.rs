//! A number of a pool's entries, or a percentage of them, as Kubernetes' `IntOrString` has it. Pure.

use std::fmt;

/// A number of entries, or a percentage of a pool's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntOrPercent {
    /// A number of entries.
    Int(u32),
    /// A percentage of the pool's entries, from 1 to 100.
    Percent(u8),
}

impl IntOrPercent {
    /// Every entry.
    pub const ALL: Self = Self::Percent(100);

    /// The number for a pool of this size, rounded up.
    #[must_use]
    pub fn rounded_up(self, entries: usize) -> usize {
        match self {
            Self::Int(count) => usize::try_from(count).unwrap_or(usize::MAX),
            Self::Percent(percent) => (entries * usize::from(percent)).div_ceil(100),
        }
    }

    /// The number for a pool of this size, rounded down, but at least one.
    #[must_use]
    pub fn rounded_down(self, entries: usize) -> usize {
        let rounded = match self {
            Self::Int(count) => usize::try_from(count).unwrap_or(usize::MAX),
            Self::Percent(percent) => entries * usize::from(percent) / 100,
        };
        rounded.max(1)
    }
}

impl fmt::Display for IntOrPercent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}
