//! The settings of the agent, with their defaults and validation.
//!
//! A settings file becomes one validated [`Settings`]; no other module checks a value again. Flags win over the file, the
//! file wins over defaults. All violations are reported together. `config/keys.rs` defines the keys; the reference
//! `docs/reference/settings.md` and the JSON schema are generated from it.

mod conflicts;
mod keys;
mod load;
mod names;
mod otlp;
mod reference;
mod schema;
mod suggestion;
mod value;
mod version;

use std::collections::BTreeSet;
use std::net::{Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use headgate_agent::connections::Prefix;
use headgate_agent::health::ProxySettings;
use headgate_agent::health::services::Cidr;
use headgate_agent::notify::NotificationSettings;
use headgate_controller::admin_state::AdminStateSettings;
use headgate_controller::local_service::LocalPoolsSettings;
use headgate_core::node::SignalRules;
use headgate_core::settings::IntOrPercent;
use headgate_core::telemetry::words;
use headgate_http::server::ProxyProtocol;
use headgate_maintenance::automatic::AutomaticMaintenances;

pub use headgate_core::telemetry::LogFormat;
pub use load::{FlagOverride, load};
pub use names::SecretName;
pub use reference::reference;
pub use schema::schema;

/// Default port of `/healthz` and `/livez`. 10256 is kube-proxy's.
pub const HEALTHZ_PORT: u16 = 10456;
/// Default port of metrics and of the process's own probes.
pub const METRICS_PORT: u16 = 10457;

/// The validated settings of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The address of `/healthz` and `/livez`.
    pub healthz_bind_address: SocketAddr,
    /// Whether connections to `/healthz` and `/livez` begin with a PROXY protocol header.
    pub proxy_protocol: ProxyProtocol,
    /// The address of metrics and of the process's own probes.
    pub metrics_bind_address: SocketAddr,
    /// Whether the process exits when an address cannot be bound, instead of trying again.
    pub bind_address_hard_fail: bool,
    /// The directory of the remembered state and of the probe socket.
    pub state_dir: PathBuf,
    /// How long `/healthz` answers 503 after SIGTERM before the port closes; zero for a plain roll.
    pub shutdown_delay: Duration,
    /// What is a drain signal.
    pub signals: SignalSettings,
    /// How kube-proxy's status is polled.
    pub proxy: ProxySettings,
    /// Whether and where the health of single Services is served.
    pub service_health: ServiceHealth,
    /// Whether the health of single Services fails on the node's signals, too.
    pub service_drain: bool,
    /// Whether the connections through the node are counted while it has a signal.
    pub count_connections: bool,
    /// Whose connections do not count.
    pub excluded_sources: Vec<Prefix>,
    /// The ranges of the machine's addresses that health check node ports listen on; empty means all.
    pub node_port_addresses: Vec<Cidr>,
    /// What is logged, and how.
    pub logging: LogSettings,
    /// Whether the process stands for election.
    pub leader_election: LeaderElectionSection,
    /// How Azure is reached.
    pub azure: AzureSettings,
    /// What the leader does with admin states.
    pub admin_state: AdminStateSettings,
    /// Whether the leader acts on maintenances.
    pub maintenance: MaintenanceSection,
    /// Whether and how the leader updates pools of Local Services.
    pub local_pools: LocalPoolsSettings,
    /// How many pool entries stay in service whatever the signals.
    pub guard: GuardSection,
    /// Who writes the Node condition `headgate.dev/OutOfLoadBalancers`.
    pub marker: MarkerSettings,
    /// Whether the deletion of nodes waits until they have left their load balancers.
    pub hold_deletion: HoldDeletionSettings,
    /// The base address of the OpenTelemetry collector, without a slash at its end; `None` exports no spans.
    pub otlp_endpoint: Option<String>,
    /// Where notices of what happens to nodes are sent.
    pub notifications: NotificationSettings,
}

/// What is logged on standard error, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// Text or JSON.
    pub format: LogFormat,
    /// Levels by target, in the form of `RUST_LOG`, which wins; `None` for the default.
    pub filter: Option<String>,
}

/// Whether the process stands for election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderElectionSection {
    /// Whether it does, where its role and the settings of Azure allow it.
    pub leader_elect: bool,
}

impl Default for LeaderElectionSection {
    fn default() -> Self {
        Self { leader_elect: true }
    }
}

/// How Azure is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AzureSettings {
    /// Whether Scheduled Events are polled and eviction notices are acted on.
    pub scheduled_events: bool,
    /// `host` or `host:port` of the instance metadata service.
    pub imds_authority: String,
    /// The path of `azure.json`; `None` reads no file.
    pub config_file: Option<PathBuf>,
    /// The Secret that wins over the file, key by key, or replaces it.
    pub config_secret: Option<SecretName>,
    /// The cluster's name, after which its load balancers are named.
    pub cluster_name: String,
    /// Whether the leader turns eviction notices in Node events into taints.
    pub preempt_events: bool,
}

impl AzureSettings {
    /// Whether a file or a Secret is set. A process without either has no admin states to lead for.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        self.config_file.is_some() || self.config_secret.is_some()
    }
}

/// Who writes the Node condition `headgate.dev/OutOfLoadBalancers`. At most one of the two is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkerSettings {
    /// Whether the leader does.
    pub mode: MarkerMode,
    /// The failed probes after which each agent says that its node is out; 0 if the agents do not.
    pub probes: u32,
}

/// Who writes the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerWriter {
    /// No process.
    None,
    /// The leader; the agents make it `Unknown` when no leader confirms it.
    Leader,
    /// Each agent on its own Node, after so many failed probes.
    Probes(NonZeroU32),
}

impl MarkerSettings {
    /// The writer that follows from both settings.
    #[must_use]
    pub fn writer(self) -> MarkerWriter {
        match (self.mode, NonZeroU32::new(self.probes)) {
            (MarkerMode::AdminState, _) => MarkerWriter::Leader,
            (MarkerMode::Off, Some(probes)) => MarkerWriter::Probes(probes),
            (MarkerMode::Off, None) => MarkerWriter::None,
        }
    }
}

/// Whether the deletion of nodes waits until they have left their load balancers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldDeletionSettings {
    /// Whether agents delay Cluster Autoscaler.
    pub cluster_autoscaler: ClusterAutoscalerHold,
    /// The longest delay, from the taint with which Cluster Autoscaler announces the deletion.
    pub timeout: Duration,
}

impl HoldDeletionSettings {
    /// The longest delay; `None` if nothing is delayed.
    #[must_use]
    pub fn cluster_autoscaler_timeout(self) -> Option<Duration> {
        (self.cluster_autoscaler == ClusterAutoscalerHold::Candidates).then_some(self.timeout)
    }
}

words! {
    /// `holdDeletion.clusterAutoscaler`: whether agents delay Cluster Autoscaler.
    pub enum ClusterAutoscalerHold {
        /// They do not.
        Off = "off",
        /// Each annotates its own Node while that is a candidate for deletion.
        Candidates = "candidates",
    }
}

words! {
    /// `marker.mode`: whether the leader writes the condition.
    pub enum MarkerMode {
        /// It does not.
        Off = "off",
        /// From what it read of the load balancers.
        AdminState = "adminState",
    }
}

words! {
    /// Whether and where the health of single Services is served.
    pub enum ServiceHealth {
        /// Not served; Services are not watched.
        Off = "off",
        /// At `/healthz/services/NAMESPACE/NAME` of the health port.
        Path = "path",
        /// On each Service's own `healthCheckNodePort`, as kube-proxy does.
        NodePorts = "nodePorts",
    }
}

/// Whether the leader acts on maintenances, and on how many nodes at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaintenanceSection {
    /// Whether the leader acts on `NodeMaintenance` and `Evacuation` objects.
    pub enabled: bool,
    /// How many of all Nodes may be under maintenance at once.
    pub max_concurrent_nodes: IntOrPercent,
    /// Whether nodes under maintenance are kept out of upgrades of AKS.
    pub pauses_upgrades: bool,
    /// Which nodes get a maintenance by themselves.
    pub automatic: AutomaticMaintenances,
}

impl Default for MaintenanceSection {
    fn default() -> Self {
        Self {
            enabled: false,
            max_concurrent_nodes: IntOrPercent::ALL,
            pauses_upgrades: false,
            automatic: AutomaticMaintenances {
                causes: BTreeSet::new(),
                shutdown_grace_period: Duration::from_secs(30),
                // The default of Cluster Autoscaler's --max-graceful-termination-sec.
                autoscaler_drain_timeout: Duration::from_mins(10),
            },
        }
    }
}

/// How many pool entries stay in service whatever the signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardSection {
    /// The number for each pool; only the leader uses it.
    pub minimum_in_service: IntOrPercent,
    /// How many entries of a pool become `Down` within 5 minutes for signals that do not announce the machine's end.
    pub max_new_down: IntOrPercent,
}

impl Default for GuardSection {
    fn default() -> Self {
        Self {
            minimum_in_service: IntOrPercent::Int(1),
            max_new_down: IntOrPercent::Percent(25),
        }
    }
}

/// What is a drain signal, by its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalSettings {
    /// What makes `/healthz` answer 503.
    pub health: SignalRules,
    /// What takes the node out of its load balancers' pools; only the leader uses it.
    pub admin_state: SignalRules,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            healthz_bind_address: SocketAddr::from((Ipv6Addr::UNSPECIFIED, HEALTHZ_PORT)),
            proxy_protocol: ProxyProtocol::Off,
            metrics_bind_address: SocketAddr::from((Ipv6Addr::UNSPECIFIED, METRICS_PORT)),
            bind_address_hard_fail: false,
            state_dir: PathBuf::from("/var/lib/headgate"),
            shutdown_delay: Duration::ZERO,
            signals: SignalSettings {
                health: SignalRules::default_health(),
                admin_state: SignalRules::default_admin_state(),
            },
            proxy: ProxySettings {
                healthz_authority: Some("127.0.0.1:10256".to_owned()),
                poll_interval: Duration::from_secs(1),
                // Twice kube-proxy's default syncPeriod, like kube-proxy's own timeout.
                health_timeout: Duration::from_mins(1),
            },
            service_health: ServiceHealth::Off,
            service_drain: true,
            count_connections: false,
            excluded_sources: Vec::new(),
            node_port_addresses: Vec::new(),
            logging: LogSettings::default(),
            leader_election: LeaderElectionSection::default(),
            azure: AzureSettings {
                scheduled_events: false,
                imds_authority: "169.254.169.254".to_owned(),
                config_file: None,
                config_secret: None,
                cluster_name: "kubernetes".to_owned(),
                preempt_events: false,
            },
            admin_state: AdminStateSettings::default(),
            maintenance: MaintenanceSection::default(),
            local_pools: LocalPoolsSettings::default(),
            guard: GuardSection::default(),
            marker: MarkerSettings {
                mode: MarkerMode::Off,
                probes: 0,
            },
            hold_deletion: HoldDeletionSettings {
                cluster_autoscaler: ClusterAutoscalerHold::Off,
                // As --node-deletion-delay-timeout of Cluster Autoscaler.
                timeout: Duration::from_mins(2),
            },
            otlp_endpoint: None,
            notifications: NotificationSettings::default(),
        }
    }
}

impl Settings {
    /// Whether a process whose role may lead stands for election.
    #[must_use]
    pub fn allows_election(&self) -> bool {
        self.leader_election.leader_elect && self.azure.is_configured()
    }

    /// Whether a controller stands for election although Azure is not configured: the maintenance controllers are the whole work of its
    /// terms.
    #[must_use]
    pub fn leads_maintenances_alone(&self) -> bool {
        self.leader_election.leader_elect && !self.azure.is_configured() && self.maintenance.enabled
    }

    /// Whether these settings say that a leader sets admin states of Azure's pools, or writes the marker from them.
    #[must_use]
    pub fn has_azure_leader(&self) -> bool {
        self.azure.is_configured() || self.marker.writer() == MarkerWriter::Leader
    }

    /// These settings as a YAML document in the form of a settings file.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        load::to_yaml(self)
    }
}
