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

use headgate_agent::health::ProxySettings;
use headgate_agent::notify::NotificationSettings;
use headgate_controller::admin_state::{AdminStateMode, GuardSettings, Policy};
use headgate_controller::local_pools::LocalPoolsMode;
use headgate_core::node::{Effect, KnownSignal, SignalSettings};
use headgate_core::settings::IntOrPercent;
use headgate_core::telemetry::words;
use headgate_http::server::ProxyProtocol;
use headgate_maintenance::automatic::AutomaticMaintenances;
use ipnet::IpNet;

pub use headgate_core::telemetry::LogFormat;
pub use load::load;
pub use names::SecretName;
pub use otlp::otlp_traces_url;
pub use reference::reference;
pub use schema::schema;

/// Default port of `/healthz` and `/livez`. 10256 is kube-proxy's.
pub const HEALTHZ_PORT: u16 = 10456;
/// Default port of metrics and of the process's own probes.
pub const METRICS_PORT: u16 = 10457;

/// The validated settings of an agent. Fields without a key in the file have a flag, or are for tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The address of `/healthz` and `/livez`.
    pub healthz_bind_address: SocketAddr,
    /// The address of metrics and of the process's own probes.
    pub metrics_bind_address: SocketAddr,
    /// Whether connections to `/healthz` and `/livez` begin with a PROXY protocol header.
    pub proxy_protocol: ProxyProtocol,
    /// Whether the process exits when an address cannot be bound, instead of trying again: `--bind-address-hard-fail`.
    pub bind_address_hard_fail: bool,
    /// The directory of the remembered state and of the probe socket: `--state-dir`.
    pub state_dir: PathBuf,
    /// Text or JSON on standard error.
    pub log_format: LogFormat,
    /// What is a drain signal.
    pub signals: SignalSettings,
    /// How kube-proxy's status is polled.
    pub kube_proxy: ProxySettings,
    /// Whether and where the health of single Services is served.
    pub service_health: ServiceHealth,
    /// Whether the connections through the node are counted while it has a signal.
    pub count_connections: bool,
    /// Whose connections do not count.
    pub excluded_sources: Vec<IpNet>,
    /// Who writes the Node condition `headgate.dev/OutOfLoadBalancers`.
    pub out_of_load_balancers: ConditionSettings,
    /// How long agents delay Cluster Autoscaler at most, from the taint with which it announces the deletion; `None` if they do not.
    pub cluster_autoscaler_delay: Option<Duration>,
    /// How Azure is reached.
    pub azure: AzureSettings,
    /// What the leader does with admin states.
    pub admin_state: Policy,
    /// How many pool entries stay in service whatever the signals.
    pub guard: GuardSection,
    /// Whether and how the leader updates pools of Local Services.
    pub local_pools: LocalPoolsMode,
    /// Whether the leader acts on maintenances.
    pub maintenance: MaintenanceSection,
    /// Where notices of what happens to nodes are sent.
    pub notifications: NotificationSettings,
}

/// How Azure is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AzureSettings {
    /// Whose eviction notices are acted on.
    pub eviction_notices: BTreeSet<NoticeSource>,
    /// `host` or `host:port` of the instance metadata service: `--imds-endpoint`.
    pub imds_authority: String,
    /// The path of `azure.json`; `None` reads no file: `--azure-config-file`.
    pub config_file: Option<PathBuf>,
    /// The Secret that wins over the file, key by key, or replaces it.
    pub config_secret: Option<SecretName>,
    /// The cluster's name, after which its load balancers are named.
    pub cluster_name: String,
}

words! {
    /// An item of `evictionNotices`: where Azure's notices come from.
    #[derive(PartialOrd, Ord)]
    pub enum NoticeSource {
        /// Each agent polls the metadata service of its VM.
        ScheduledEvents = "ScheduledEvents",
        /// The leader turns notices in Node events into taints.
        NodeEvents = "NodeEvents",
    }
}

impl AzureSettings {
    /// Whether agents poll Scheduled Events.
    pub fn polls_scheduled_events(&self) -> bool {
        self.eviction_notices.contains(&NoticeSource::ScheduledEvents)
    }

    /// Whether the leader acts on eviction notices in Node events.
    pub(crate) fn reads_node_events(&self) -> bool {
        self.eviction_notices.contains(&NoticeSource::NodeEvents)
    }

    /// Whether a file or a Secret is set. A process without either has no admin states to lead for.
    pub fn is_configured(&self) -> bool {
        self.config_file.is_some() || self.config_secret.is_some()
    }
}

/// Who writes the Node condition `headgate.dev/OutOfLoadBalancers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConditionSettings {
    /// From what it follows.
    pub source: ConditionSource,
    /// With `FailedProbes`: the failed probes in a row after which each agent says that its node is out.
    pub failed_probes: NonZeroU32,
}

words! {
    /// `outOfLoadBalancers.source`: from what the condition follows.
    pub enum ConditionSource {
        /// Nobody writes it.
        Disabled = "Disabled",
        /// The leader, from what it read of the load balancers.
        AdminState = "AdminState",
        /// Each agent for its own node, from the probes that it answered.
        FailedProbes = "FailedProbes",
    }
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

impl ConditionSettings {
    /// The writer that follows from both settings.
    pub fn writer(self) -> MarkerWriter {
        match self.source {
            ConditionSource::Disabled => MarkerWriter::None,
            ConditionSource::AdminState => MarkerWriter::Leader,
            ConditionSource::FailedProbes => MarkerWriter::Probes(self.failed_probes),
        }
    }
}

words! {
    /// Whether and where the health of single Services is served.
    pub enum ServiceHealth {
        /// Not served; Services are not watched.
        Disabled = "Disabled",
        /// At `/healthz/services/NAMESPACE/NAME` of the health port.
        Path = "Path",
        /// On each Service's own `healthCheckNodePort`, as kube-proxy does.
        NodePorts = "NodePorts",
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
            automatic: AutomaticMaintenances::default(),
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

/// As the chart's `outOfLoadBalancers.probes`.
const DEFAULT_FAILED_PROBES: NonZeroU32 = NonZeroU32::MIN.saturating_add(2);

impl Default for Settings {
    fn default() -> Self {
        Self {
            healthz_bind_address: SocketAddr::from((Ipv6Addr::UNSPECIFIED, HEALTHZ_PORT)),
            metrics_bind_address: SocketAddr::from((Ipv6Addr::UNSPECIFIED, METRICS_PORT)),
            proxy_protocol: ProxyProtocol::Disabled,
            bind_address_hard_fail: false,
            state_dir: PathBuf::from("/var/lib/headgate"),
            log_format: LogFormat::Auto,
            signals: SignalSettings::default(),
            kube_proxy: ProxySettings {
                healthz_authority: Some("127.0.0.1:10256".to_owned()),
                poll_interval: Duration::from_secs(1),
                // Twice kube-proxy's default syncPeriod, like kube-proxy's own timeout.
                health_timeout: Duration::from_mins(1),
            },
            service_health: ServiceHealth::Disabled,
            count_connections: false,
            excluded_sources: Vec::new(),
            out_of_load_balancers: ConditionSettings {
                source: ConditionSource::Disabled,
                failed_probes: DEFAULT_FAILED_PROBES,
            },
            cluster_autoscaler_delay: None,
            azure: AzureSettings {
                eviction_notices: BTreeSet::new(),
                imds_authority: "169.254.169.254".to_owned(),
                config_file: None,
                config_secret: None,
                cluster_name: "kubernetes".to_owned(),
            },
            admin_state: Policy::default(),
            guard: GuardSection::default(),
            local_pools: LocalPoolsMode::default(),
            maintenance: MaintenanceSection::default(),
            notifications: NotificationSettings::default(),
        }
    }
}

impl Settings {
    /// Whether a controller stands for election although Azure is not configured: the maintenance controllers are the whole work of its
    /// terms.
    pub(crate) fn leads_maintenances_alone(&self) -> bool {
        !self.azure.is_configured() && self.maintenance.enabled
    }

    /// Whether these settings say that a leader sets admin states of Azure's pools, or writes the condition from them.
    pub(crate) fn has_azure_leader(&self) -> bool {
        self.azure.is_configured() || self.out_of_load_balancers.writer() == MarkerWriter::Leader
    }

    /// Whether nodes with this signal leave their load balancers, as far as the settings say who confirms that.
    pub(crate) fn takes_out(&self, signal: KnownSignal) -> bool {
        let effects: &[Effect] = match self.out_of_load_balancers.writer() {
            _ if self.has_azure_leader() => &[Effect::AdminState],
            MarkerWriter::Probes(_) => &[Effect::Health],
            // The flag of another process may name Azure.
            MarkerWriter::None | MarkerWriter::Leader => &Effect::ALL,
        };
        effects.iter().any(|effect| self.signals.counts(signal, *effect))
    }

    /// How long an agent delays Cluster Autoscaler at most; `None` also where nothing but that time would end the delay.
    pub(crate) fn deletion_delay(&self) -> Option<Duration> {
        let is_enforced = !self.has_azure_leader() || self.admin_state.mode == AdminStateMode::Enforce;
        let is_ended = is_enforced && self.takes_out(KnownSignal::ClusterAutoscaler);
        self.cluster_autoscaler_delay.filter(|_| is_ended)
    }

    /// What stays in service, where this process may record holds on Nodes or not.
    pub(crate) fn guard_settings(&self, may_write_holds: bool) -> GuardSettings {
        GuardSettings {
            minimum_in_service: self.guard.minimum_in_service,
            max_new_down: self.guard.max_new_down,
            health_port: self.healthz_bind_address.port(),
            health_rules: self.signals.health(),
            may_write_holds,
        }
    }

    /// These settings as a YAML document in the form of a settings file.
    pub fn to_yaml(&self) -> String {
        load::to_yaml(self)
    }
}
