//! Whether a rule's probe asks headgate. Pure.
//!
//! Only an HTTP probe of `/healthz` at the agents' health port learns of signals: a TCP probe finds the port open whatever
//! the node's fate, `/livez` never fails because of a signal, and the port speaks no TLS.

use headgate_controller::pool::Rule;
use serde::Serialize;

/// What a rule's probe asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Reaches {
    /// headgate's `/healthz`.
    Headgate,
    /// headgate's port, in a way that does not tell of signals.
    PortOnly,
    /// Somebody else.
    Elsewhere,
    /// There is no probe, so that an admin state has no effect.
    NoProbe,
}

impl Reaches {
    /// For a rule, where agents serve `/healthz` at this port.
    #[must_use]
    pub fn of(rule: &Rule, health_port: u16) -> Self {
        match &rule.probe {
            None => Self::NoProbe,
            Some(probe) if probe.port != health_port => Self::Elsewhere,
            Some(probe)
                if probe.protocol.eq_ignore_ascii_case("http") && probe.path.as_deref().is_some_and(is_healthz) =>
            {
                Self::Headgate
            }
            Some(_) => Self::PortOnly,
        }
    }

    /// In few words, for people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Headgate => "headgate",
            Self::PortOnly => "headgate's port, but no signals",
            Self::Elsewhere => "somebody else",
            Self::NoProbe => "nobody: Down has no effect",
        }
    }
}

fn is_healthz(path: &str) -> bool {
    path.split('?').next() == Some("/healthz")
}

#[cfg(test)]
mod tests {
    use headgate_controller::pool::Probe;

    use super::*;

    #[test]
    fn only_http_for_healthz_at_the_port_asks_about_signals() {
        for (protocol, port, path, reaches) in [
            ("Http", 10456, Some("/healthz"), Reaches::Headgate),
            ("http", 10456, Some("/healthz?from=lb"), Reaches::Headgate),
            ("Http", 10456, Some("/livez"), Reaches::PortOnly),
            ("Http", 10456, Some("/healthz/services/a/b"), Reaches::PortOnly),
            ("Http", 10456, None, Reaches::PortOnly),
            ("Https", 10456, Some("/healthz"), Reaches::PortOnly),
            ("Tcp", 10456, None, Reaches::PortOnly),
            ("Http", 10256, Some("/healthz"), Reaches::Elsewhere),
            ("unknown", 0, None, Reaches::Elsewhere),
        ] {
            let probe = Probe {
                protocol: protocol.to_owned(),
                port,
                path: path.map(str::to_owned),
            };
            let rule = Rule {
                name: "r".to_owned(),
                probe: Some(probe),
            };
            assert_eq!(Reaches::of(&rule, 10456), reaches, "{protocol} {port} {path:?}");
        }
        let bare = Rule {
            name: "r".to_owned(),
            probe: None,
        };
        assert_eq!(Reaches::of(&bare, 10456), Reaches::NoProbe);
    }
}
