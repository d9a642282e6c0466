//! Settings: what an operator may set, its defaults, and what is said about a mistake.
//!
//! A settings file becomes one validated [`Settings`]; nobody re-checks a value afterwards. Flags win
//! over the file, the file over defaults. Every mistake is collected before anything is reported.
//! Which keys exist, what they mean and what they allow is said once, in `config/keys.rs`; the
//! reference in `docs/settings.md` is generated from that table.

mod contradictions;
mod keys;
mod load;
mod otlp;
mod qualified_name;
mod reference;
mod secret_name;
mod value;

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use headgate_controller::admin_state::AdminStateSettings;
use headgate_health::ProxySettings;
use headgate_health::services::Cidr;
use headgate_http::server::ProxyProtocol;
use headgate_node::DEFAULT_SIGNAL_TAINTS;

pub use load::{Override, load};
pub use reference::reference;
pub use secret_name::SecretName;

/// Port of `/healthz` and `/livez`. 10256 is kube-proxy's own.
pub const HEALTHZ_PORT: u16 = 10456;
/// Port of metrics and of the process's own probes.
pub const METRICS_PORT: u16 = 10457;

/// Everything the agent can be told, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where `/healthz` and `/livez` are served.
    pub healthz_bind_address: SocketAddr,
    /// Whether connections to `/healthz` and `/livez` begin with a PROXY protocol header.
    pub proxy_protocol: ProxyProtocol,
    /// Where metrics and the process's own probes are served.
    pub metrics_bind_address: SocketAddr,
    /// Exit when an address cannot be bound, instead of trying again.
    pub bind_address_hard_fail: bool,
    /// Directory of the remembered state and of the probe socket.
    pub state_dir: PathBuf,
    /// How long `/healthz` answers 503 after SIGTERM before the port closes; zero for a plain roll.
    pub shutdown_delay: Duration,
    /// Which taints are drain signals.
    pub signals: SignalSettings,
    /// How kube-proxy is asked for its status.
    pub proxy: ProxySettings,
    /// Whether and where the health of single Services is served.
    pub service_health: ServiceHealth,
    /// Which of the machine's addresses the health check node ports are opened on; empty means all.
    pub node_port_addresses: Vec<Cidr>,
    /// How Azure is found, and what is asked of it.
    pub azure: AzureSettings,
    /// What the leader does about admin states.
    pub admin_state: AdminStateSettings,
    /// Base address of the OpenTelemetry collector that is sent spans, without a slash at its end; `None` for none.
    pub otlp_endpoint: Option<String>,
}

/// How Azure is found, and what is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AzureSettings {
    /// Whether notices of eviction are looked for and acted on.
    pub scheduled_events: bool,
    /// `host` or `host:port` of the instance metadata service.
    pub imds_authority: String,
    /// The cloud's configuration as a file.
    pub config_file: Option<PathBuf>,
    /// The Secret that is laid over it, or stands in for it.
    pub config_secret: Option<SecretName>,
    /// The cluster's name, after which its load balancers are called.
    pub cluster_name: String,
}

impl AzureSettings {
    /// Whether it is said where Azure is. Who does not know that does not stand for election.
    #[must_use]
    pub fn is_said(&self) -> bool {
        self.config_file.is_some() || self.config_secret.is_some()
    }
}

/// Where the health of single Services is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceHealth {
    /// Nowhere; Services are not even watched.
    Off,
    /// At a path of the health port.
    Path,
    /// On each Service's own `healthCheckNodePort`, as kube-proxy does.
    NodePorts,
}

impl ServiceHealth {
    /// Its name in the settings.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Path => "path",
            Self::NodePorts => "nodePorts",
        }
    }
}

/// Taint keys, by what they stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalSettings {
    /// Fail this node's `/healthz`.
    pub health: Vec<String>,
    /// Take this node out of its load balancers' pools (leader only).
    pub admin_state: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let signals = || {
            DEFAULT_SIGNAL_TAINTS
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        Self {
            healthz_bind_address: SocketAddr::from((Ipv6Addr::UNSPECIFIED, HEALTHZ_PORT)),
            proxy_protocol: ProxyProtocol::Off,
            metrics_bind_address: SocketAddr::from((Ipv6Addr::UNSPECIFIED, METRICS_PORT)),
            bind_address_hard_fail: false,
            state_dir: PathBuf::from("/var/lib/headgate"),
            shutdown_delay: Duration::ZERO,
            signals: SignalSettings {
                health: signals(),
                admin_state: signals(),
            },
            proxy: ProxySettings {
                healthz_authority: Some("127.0.0.1:10256".to_owned()),
                poll_interval: Duration::from_secs(1),
                // Twice kube-proxy's default syncPeriod, as kube-proxy itself counts.
                health_timeout: Duration::from_mins(1),
            },
            service_health: ServiceHealth::Off,
            node_port_addresses: Vec::new(),
            azure: AzureSettings {
                scheduled_events: false,
                imds_authority: "169.254.169.254".to_owned(),
                config_file: None,
                config_secret: None,
                cluster_name: "kubernetes".to_owned(),
            },
            admin_state: AdminStateSettings::default(),
            otlp_endpoint: None,
        }
    }
}

impl Settings {
    /// These settings as a YAML document in the form of a settings file.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        load::to_yaml(self)
    }
}
