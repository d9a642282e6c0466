//! The words of a report, read from JSON. A report has them as constants, because this program writes the same ones; one that only
//! another version knows becomes [`UNKNOWN`].

use headgate_azure::AdminState;
use headgate_controller::admin_state::{AdminStateMode, ForeignDown, LedgerStage};
use headgate_maintenance::api::{LoadBalancerState, Stage};
use serde::{Deserialize as _, Deserializer};

/// A word of a report. The alias keeps serde from borrowing it.
pub(crate) type Word = &'static str;

const UNKNOWN: Word = "unknown";

fn find(text: &str) -> Word {
    let mut words = (AdminState::ALL.map(AdminState::as_str).into_iter())
        .chain(LedgerStage::ALL.map(LedgerStage::as_str))
        .chain(AdminStateMode::ALL.map(AdminStateMode::as_str))
        .chain(ForeignDown::ALL.map(ForeignDown::as_str))
        .chain(Stage::ALL.map(Stage::as_str))
        .chain(LoadBalancerState::ALL.map(LoadBalancerState::as_str));
    words.find(|word| *word == text).unwrap_or(UNKNOWN)
}

pub(crate) fn word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
    String::deserialize(deserializer).map(|text| find(&text))
}

pub(crate) fn optional_word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Word>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.map(|text| find(&text)))
}
