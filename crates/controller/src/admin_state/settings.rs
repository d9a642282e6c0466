//! What the leader is to do about admin states.

/// How far it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdminStateMode {
    /// Admin states are written.
    #[default]
    Enforce,
    /// What would be written is worked out and shown.
    Observe,
    /// What was written before is given back, and then nothing is done.
    Off,
}

impl AdminStateMode {
    /// All, in the order of the reference.
    pub const ALL: [Self; 3] = [Self::Enforce, Self::Observe, Self::Off];

    /// Its name in the settings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::Off => "off",
        }
    }
}

/// What becomes of a `Down` that somebody else wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForeignDown {
    /// It stays.
    #[default]
    Keep,
    /// It goes where its node has no signal.
    Restore,
}

impl ForeignDown {
    /// All, in the order of the reference.
    pub const ALL: [Self; 2] = [Self::Keep, Self::Restore];

    /// Its name in the settings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Restore => "restore",
        }
    }
}

/// What the leader is to do about admin states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdminStateSettings {
    /// How far it goes.
    pub mode: AdminStateMode,
    /// What becomes of others' `Down`.
    pub foreign_down: ForeignDown,
}
