//! A number, or a percentage of a whole, as Kubernetes' `IntOrString` has it. Pure.

use std::fmt;

/// A number of things, or a percentage of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntOrPercent {
    /// A number.
    Int(u32),
    /// A percentage of all, from 1 to 100.
    Percent(u8),
}

impl IntOrPercent {
    /// All of them.
    pub const ALL: Self = Self::Percent(100);

    /// The number out of so many, rounded up.
    pub fn rounded_up(self, all: usize) -> usize {
        match self {
            Self::Int(count) => usize::try_from(count).unwrap_or(usize::MAX),
            Self::Percent(percent) => (all * usize::from(percent)).div_ceil(100),
        }
    }

    /// The number out of so many, rounded down, but at least one.
    pub fn rounded_down(self, all: usize) -> usize {
        let rounded = match self {
            Self::Int(count) => usize::try_from(count).unwrap_or(usize::MAX),
            Self::Percent(percent) => all * usize::from(percent) / 100,
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
