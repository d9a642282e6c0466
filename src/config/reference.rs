//! The reference of all settings (`docs/reference/settings.md`), generated from the table of keys.

use std::fmt::Write as _;

use serde_yaml::Value;

use super::Settings;
use super::keys::keys;

/// The text of `docs/reference/settings.md`.
#[must_use]
pub fn reference() -> String {
    let mut defaults = Settings::default();
    let mut text = String::from(
        "# Settings\n\n\
         <!-- Generated from src/config/keys by `make docs`; a test compares it. -->\n\n\
         `headgate agent --config FILE` reads one YAML document. Flags win over the file, the file over the defaults \
         below. Durations carry their unit (`500ms`, `5s`, `1m30s`). `--check-config` reports every mistake with its \
         line and prints the settings in effect; a mistake ends the process with exit code 2.\n\n\
         The document is a `HeadgateConfiguration` of `config.headgate.dev/v1alpha1`; editors and CI can check it with its JSON \
         schema, `docs/reference/settings.schema.json`. Settings of every process come first, then those of the agent on a node, \
         then those of the leader. Null means the same as omission, and only settings whose default is null may be null. What has \
         a flag only is in docs/reference/cli.md.\n\n\
         The defaults, as a file:\n\n```yaml\n",
    );
    text.push_str(&defaults.to_yaml());
    text.push_str("```\n");
    for key in keys() {
        let default = default_text((key.get)(&mut defaults));
        let flag = key.flag.map(|flag| format!(" Flag: `{flag}`.")).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "\n## `{}`\n\n{}\n\nDefault: {default}.{flag}",
            key.path, key.about
        );
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
        Value::Sequence(_) => "the list above".to_owned(),
        other => format!("`{other:?}`"),
    }
}
