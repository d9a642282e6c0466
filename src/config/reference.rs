//! The reference of all settings (`docs/reference/settings.md`), generated from the table of keys.

use std::fmt::Write as _;

use serde_yaml::Value;

use super::Settings;
use super::keys::keys;

/// The text of `docs/reference/settings.md`.
pub fn reference() -> String {
    let mut defaults = Settings::default();
    let mut text = String::from(
        "# Settings\n\n\
         <!-- Generated from src/config/keys by `make docs`; a test compares it. -->\n\n\
         Look up here what each key of `headgate agent --config FILE` means. [settings.yaml](../../manifests/settings.yaml) is such a \
         file, with all keys and defaults; its JSON schema is `docs/reference/settings.schema.json`. Flags win over the file, the file \
         over the defaults. Durations carry their unit (`500ms`, `5s`, `1m30s`). Null means the same as omission, and only settings \
         whose default is null may be null. `--check-config` reports every mistake with its line and prints the settings in effect; a \
         mistake ends the process with exit code 2.\n\n\
         Settings of every process come first, then those of the agent on a node, then those of the leader. What has a flag only is \
         in [the command line](cli.md#headgate-agent).\n",
    );
    for key in keys() {
        let default = default_text((key.get)(&mut defaults));
        let flag = key.flag.map(|flag| format!(" Flag: `{flag}`.")).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\n## `{}`\n\n{} Default: {default}.{flag}", key.path, key.about);
    }
    text
}

fn default_text(value: Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::String(text) => format!("`{text}`"),
        Value::Bool(flag) => format!("`{flag}`"),
        Value::Number(number) => format!("`{number}`"),
        Value::Sequence(items) if items.is_empty() => "none".to_owned(),
        Value::Sequence(items) => items.into_iter().map(default_text).collect::<Vec<_>>().join(", "),
        other => format!("`{other:?}`"),
    }
}
