//! What a rule's probe targets: headgate's `/healthz`, or something else. Pure.
//!
//! Only an HTTP probe of `/healthz` on the agents' health port fails because of a signal. A TCP probe finds the port
//! open in any case, `/livez` does not depend on signals, and the port does not serve TLS.

use serde::{Deserialize, Serialize};

use super::view::{PoolView, Probe, Rule};

/// What a rule's probe targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ProbeTarget {
    /// The path `/healthz` on headgate's health port.
    Headgate,
    /// headgate's health port, with a probe that signals do not fail.
    PortOnly,
    /// Another port, so another server.
    Elsewhere,
    /// The rule has no probe, so admin states have no effect.
    NoProbe,
}

impl ProbeTarget {
    /// The target of a rule's probe; `health_port` is the agents' health port.
    pub fn from_rule(rule: &Rule, health_port: u16) -> Self {
        match &rule.probe {
            None => Self::NoProbe,
            Some(probe) if probe.port != health_port => Self::Elsewhere,
            Some(probe)
                if probe.protocol.eq_ignore_ascii_case("http")
                    && probe.path.as_deref().is_some_and(is_healthz_path) =>
            {
                Self::Headgate
            }
            Some(_) => Self::PortOnly,
        }
    }

    /// A short description for the table of pools.
    pub fn description(self) -> &'static str {
        match self {
            Self::Headgate => "headgate",
            Self::PortOnly => "headgate's port, but no signals",
            Self::Elsewhere => "another server",
            Self::NoProbe => "no probe: Down has no effect",
        }
    }
}

impl Probe {
    /// The namespace and the name of the Service whose health on the node headgate answers at this path.
    pub(crate) fn service(&self) -> Option<(&str, &str)> {
        let path = self.path.as_deref()?.split('?').next()?;
        let (namespace, name) = path.strip_prefix("/healthz/services/")?.split_once('/')?;
        (self.protocol.eq_ignore_ascii_case("http") && !name.contains('/')).then_some((namespace, name))
    }
}

impl PoolView {
    /// Whether a rule of the pool probes headgate, so that `/healthz` decides about new connections.
    pub fn probes_headgate(&self, health_port: u16) -> bool {
        let mut targets = self.rules.iter().map(|rule| ProbeTarget::from_rule(rule, health_port));
        targets.any(|target| target == ProbeTarget::Headgate)
    }
}

fn is_healthz_path(path: &str) -> bool {
    path.split('?').next() == Some("/healthz")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_http_probes_of_healthz_on_the_health_port_target_headgate() {
        for (protocol, port, path, target) in [
            ("Http", 10456, Some("/healthz"), ProbeTarget::Headgate),
            ("http", 10456, Some("/healthz?from=lb"), ProbeTarget::Headgate),
            ("Http", 10456, Some("/livez"), ProbeTarget::PortOnly),
            ("Http", 10456, Some("/healthz/services/a/b"), ProbeTarget::PortOnly),
            ("Http", 10456, None, ProbeTarget::PortOnly),
            ("Https", 10456, Some("/healthz"), ProbeTarget::PortOnly),
            ("Tcp", 10456, None, ProbeTarget::PortOnly),
            ("Http", 10256, Some("/healthz"), ProbeTarget::Elsewhere),
            ("unknown", 0, None, ProbeTarget::Elsewhere),
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
            assert_eq!(
                ProbeTarget::from_rule(&rule, 10456),
                target,
                "{protocol} {port} {path:?}"
            );
        }
        for (protocol, path, service) in [
            ("Http", "/healthz/services/a/b?from=lb", Some(("a", "b"))),
            ("Http", "/healthz/services/a/b/c", None),
            ("Https", "/healthz/services/a/b", None),
            ("Http", "/healthz", None),
        ] {
            let probe = Probe {
                protocol: protocol.to_owned(),
                port: 10456,
                path: Some(path.to_owned()),
            };
            assert_eq!(probe.service(), service, "{protocol} {path}");
        }
        let bare = Rule {
            name: "r".to_owned(),
            probe: None,
        };
        assert_eq!(ProbeTarget::from_rule(&bare, 10456), ProbeTarget::NoProbe);
    }
}
