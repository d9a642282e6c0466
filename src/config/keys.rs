//! The table of settings: one row for each key, with how its value is written, where it is kept, and its meaning. What a process needs of
//! its own, and tests, has a flag only.
//!
//! Everything else about settings derives from this table: loading, suggestions for unknown keys, the settings that the
//! process logs at its start, the reference and the JSON schema. To add a setting, add a row.

mod leader;
mod node;
mod notifications;
mod process;

use std::sync::LazyLock;
use std::time::Duration;

use serde_yaml::Value;

use super::Settings;
use super::value::{InvalidValue, ValueType};

/// One setting.
pub(super) struct Key {
    /// The dotted path in the file.
    pub(super) path: &'static str,
    /// The JSON schema of its values.
    pub(super) schema: serde_json::Value,
    /// The flag that overrides the file.
    pub(super) flag: Option<&'static str>,
    /// Its meaning in full sentences, for the reference.
    pub(super) about: &'static str,
    /// Sets a value, or says what is allowed.
    pub(super) set: Setter,
    /// The value in effect, as `--check-config` prints it.
    pub(super) get: Getter,
}

type Setter = Box<dyn Fn(&mut Settings, &Value) -> Result<(), InvalidValue> + Send + Sync>;
type Getter = Box<dyn Fn(&mut Settings) -> Value + Send + Sync>;

impl Key {
    fn new<T: 'static>(
        path: &'static str,
        value_type: ValueType<T>,
        field: fn(&mut Settings) -> &mut T,
        about: &'static str,
    ) -> Self {
        let ValueType { parse, show, schema } = value_type;
        let set = move |settings: &mut Settings, value: &Value| {
            *field(settings) = parse(value)?;
            Ok(())
        };
        Self {
            path,
            schema,
            flag: None,
            about,
            set: Box::new(set),
            get: Box::new(move |settings| show(field(settings))),
        }
    }

    fn flag(self, flag: &'static str) -> Self {
        Self {
            flag: Some(flag),
            ..self
        }
    }
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);

/// Every setting, in the order of the reference.
pub(super) fn keys() -> impl Iterator<Item = &'static Key> {
    static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
        [process::keys(), notifications::keys(), node::keys(), leader::keys()]
            .into_iter()
            .flatten()
            .collect()
    });
    KEYS.iter()
}

/// What has a flag and no key in the file.
pub(super) fn flags() -> impl Iterator<Item = &'static Key> {
    static FLAGS: LazyLock<Vec<Key>> = LazyLock::new(process::flags);
    FLAGS.iter()
}

/// The key at a dotted path.
pub(super) fn find(path: &str) -> Option<&'static Key> {
    keys().find(|key| key.path == path)
}

/// Whether a dotted path is a section that holds keys.
pub(super) fn is_section(path: &str) -> bool {
    keys().any(|key| key.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}
