//! Reads the parts of a status that this version knows.

use serde::de::{Deserialize, DeserializeOwned, Deserializer};
use serde_json::Value;

/// The value, or none if it is not known.
pub(super) fn known<'de, D: Deserializer<'de>, T: DeserializeOwned + Default>(from: D) -> Result<T, D::Error> {
    let value = Value::deserialize(from)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

/// The items of a list that are known.
pub(super) fn known_items<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Vec<T>, D::Error> {
    let items = Option::<Vec<Value>>::deserialize(from)?.unwrap_or_default();
    let known = items.into_iter().filter_map(|item| serde_json::from_value(item).ok());
    Ok(known.collect())
}
