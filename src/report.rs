//! What the commands that show something show, in the formats of `-o`.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// The level of detail of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// For the width of a terminal.
    Narrow,
    /// All columns and all rows.
    Wide,
}

/// What a command shows; its JSON is that of `-o json`.
pub(crate) trait Report: Serialize {
    /// Whether cells of the text get colours on a terminal.
    const IS_COLOURED: bool = false;

    /// The `kind` of its JSON and YAML; `None` where it is a list.
    const KIND: Option<&'static str>;

    /// The time of the read, which is no change.
    fn taken_at(&self) -> Timestamp;

    /// For people.
    fn text(&self, detail: Detail) -> String;

    /// The objects that are shown, as `TYPE/NAME`.
    fn names(&self) -> Vec<String>;

    /// What a watch compares.
    fn comparable(&self) -> Value {
        let mut json = serde_json::to_value(self).unwrap_or_default();
        if let Some(fields) = json.as_object_mut() {
            fields.remove("askedAt");
        }
        json
    }
}
