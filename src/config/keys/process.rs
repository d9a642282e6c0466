//! The settings of every process, whatever its role.

use super::Key;
use crate::config::value::{
    bind_address, boolean_flag, directory, extra_signals, file, http_server, known_signals, optional, words,
};
use crate::config::{LogFormat, METRICS_PORT};

/// These settings, in the order of the reference.
pub(super) fn keys() -> Vec<Key> {
    vec![
        Key::new(
            "metricsBindAddress",
            bind_address(METRICS_PORT),
            |s| &mut s.metrics_bind_address,
            "Address and port of `/metrics`, `/statusz`, and this process's own `/livez` and `/readyz`.",
        )
        .flag("--metrics-bind-address"),
        Key::new(
            "logFormat",
            words(&LogFormat::ALL, LogFormat::as_str),
            |s| &mut s.log_format,
            "The format of the logs on standard error: `Text`, `JSON`, or `Auto`, which is text on a terminal and JSON otherwise. The \
             environment variable `RUST_LOG` selects what is logged. Guide: docs/guides/monitoring.md.",
        ),
        Key::new(
            "signals.disabled",
            known_signals(),
            |s| &mut s.signals.disabled,
            "Names of signals that count for nothing, of those in docs/concepts/how-it-works.md.",
        ),
        Key::new(
            "signals.extra",
            extra_signals(),
            |s| &mut s.signals.extra,
            "Signals that count besides, each with `for: [health, adminState]`. An entry is a name, a matcher of a taint, condition, \
             label or annotation, or `{signal: cordon, after: 10s, for: [adminState]}`. An entry with the name of a default replaces what \
             that counts for. `terminate`, `redeploy` and `reboot` need `evictionNotices`, also taint the Node, and can be for `health` \
             only, as `preempt` is. Guide: docs/concepts/how-it-works.md.",
        ),
    ]
}

/// What has no key in the file, because processes with one file differ in it, or because only tests change it.
pub(super) fn flags() -> Vec<Key> {
    vec![
        Key::new(
            "bindAddressHardFail",
            boolean_flag(),
            |s| &mut s.bind_address_hard_fail,
            "",
        )
        .flag("--bind-address-hard-fail"),
        Key::new("stateDir", directory(), |s| &mut s.state_dir, "").flag("--state-dir"),
        Key::new("imdsEndpoint", http_server(), |s| &mut s.azure.imds_authority, "").flag("--imds-endpoint"),
        Key::new("azureConfigFile", optional(file()), |s| &mut s.azure.config_file, "").flag("--azure-config-file"),
    ]
}
