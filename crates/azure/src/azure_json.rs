//! `azure.json`: the configuration of the cloud provider, read as cloud-provider-azure reads it.
//!
//! The file of a node works as it is: YAML or JSON, keys in any case, unknown keys ignored. Only what headgate needs is
//! kept. Source: `pkg/provider/config` and `pkg/azclient` of cloud-provider-azure. One key is headgate's own:
//! `enableLoadBalancerAdminState`.

use std::fmt;
use std::path::Path;

use headgate_core::settings::{EnvironmentLookup, SettingsError, Violation};
use serde_yaml::Value;

use self::fields::{ConfigType, Fields};

mod fields;
mod validate;

/// A text that no log and no error shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A secret with this text; `Debug` and logs never show it.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself, to be sent.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The Azure clouds that cloud-provider-azure knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AzureCloud {
    /// `AzurePublicCloud`, and every unknown or absent name.
    #[default]
    Public,
    /// The cloud with the name `AzureChinaCloud`.
    China,
    /// The cloud with the name `AzureUSGovernmentCloud`.
    UsGovernment,
}

/// The credential of headgate towards Azure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// Workload identity: the token of a service account in a projected file.
    WorkloadIdentity {
        /// The application (client) id.
        client_id: String,
        /// The path of the projected file.
        token_file: String,
    },
    /// The managed identity of the virtual machine; `None` for its only one.
    ManagedIdentity(Option<ManagedIdentity>),
    /// A service principal's secret.
    ClientSecret {
        /// The application (client) id.
        client_id: String,
        /// The client secret, from `aadClientSecret`.
        secret: Secret,
    },
    /// The account with which `az` is logged in on this machine. No key of `azure.json` selects it: a person's command does where there is
    /// no other credential.
    AzureCli,
    /// No credential is configured.
    None,
}

/// Selects one of several managed identities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagedIdentity {
    /// By its client id.
    ClientId(String),
    /// By its ARM resource id.
    ResourceId(String),
}

/// What the entries of backend pools are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendPoolType {
    /// Network interfaces of nodes.
    #[default]
    NodeIpConfiguration,
    /// IP addresses of nodes.
    NodeIp,
}

/// A client-side rate limit, as a token bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Sustained requests per second.
    pub qps: f64,
    /// Largest burst of requests.
    pub bucket: u32,
}

/// Client-side rate limits of requests to ARM.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimits {
    /// Limit of GET requests.
    pub read: RateLimit,
    /// Limit of PUT requests.
    pub write: RateLimit,
}

/// The values of `azure.json` that headgate uses.
#[derive(Clone, Debug, PartialEq)]
pub struct AzureJson {
    /// The cloud that `cloud` names.
    pub cloud: AzureCloud,
    /// The text of `cloud`, which selects a cloud in the metadata of `resource_manager_endpoint`.
    pub cloud_name: Option<String>,
    /// The URL of another ARM, whose metadata has the other endpoints.
    pub resource_manager_endpoint: Option<String>,
    /// Value of the `User-Agent` header.
    pub user_agent: Option<String>,
    /// The tenant of the load balancers.
    pub tenant_id: Option<String>,
    /// The subscription of the load balancers.
    pub subscription_id: Option<String>,
    /// The subscription of the nodes, if it is another one.
    pub compute_subscription_id: Option<String>,
    /// The resource group of the nodes, in lower case.
    pub resource_group: Option<String>,
    /// The resource group of the load balancers, if it is another one.
    pub load_balancer_resource_group: Option<String>,
    /// What token requests prove the identity with.
    pub credential: Credential,
    /// The name of the load balancer, if it is not the cluster's name.
    pub load_balancer_name: Option<String>,
    /// The names of multiple standard load balancers.
    pub load_balancers: Vec<String>,
    /// `loadBalancerSku`; absent means `standard`, and `basic` is refused.
    pub load_balancer_sku: Option<String>,
    /// `loadBalancerBackendPoolUpdateIntervalInSeconds`.
    pub backend_pool_update_interval_seconds: Option<i64>,
    /// `loadBalancerBackendPoolUpdateMaxRetries`. A key of the design of bounded retry; 0 turns retries off.
    pub backend_pool_update_max_retries: Option<i64>,
    /// `preConfiguredBackendPoolLoadBalancerTypes`: whose pools' members are managed elsewhere.
    pub pre_configured_load_balancer_types: Option<String>,
    /// `vnetName`.
    pub virtual_network: Option<String>,
    /// `vnetResourceGroup`, if it is not the resource group of the nodes.
    pub virtual_network_resource_group: Option<String>,
    /// What the entries of the pools are.
    pub backend_pool_type: BackendPoolType,
    /// Whether pools exclude control-plane nodes.
    pub exclude_master_from_standard_lb: bool,
    /// `None` for no limit.
    pub rate_limits: Option<RateLimits>,
    /// Whether the leader sets admin states. This key is headgate's; cloud-provider-azure ignores it.
    pub enable_load_balancer_admin_state: bool,
}

/// Where the values come from.
#[derive(Clone, Copy, Default)]
pub struct ConfigSources<'a> {
    /// The path of `azure.json`; `None` reads no file.
    pub file: Option<&'a Path>,
    /// The value of `cloud-config` in the Secret. It wins over the file, unless the file's `cloudConfigType` excludes it.
    pub secret: Option<&'a str>,
    /// Looks up environment variables.
    pub environment: Option<&'a EnvironmentLookup<'a>>,
}

impl fmt::Debug for ConfigSources<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigSources")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl AzureJson {
    /// Reads and validates all sources.
    ///
    /// # Errors
    /// Every violation, each with its source, key, value and what is allowed; never the value of a secret.
    pub fn load(sources: ConfigSources<'_>) -> Result<Self, SettingsError> {
        let mut violations = Vec::new();
        let fields = Self::read(sources, &mut violations);
        let config = validate::validate(&fields, &mut violations);
        if violations.is_empty() {
            Ok(config)
        } else {
            Err(SettingsError(violations))
        }
    }

    /// The file, Secret or variable that the value of a key comes from, and its line.
    pub fn place_of(sources: ConfigSources<'_>, key: &str) -> Option<(String, Option<usize>)> {
        Self::read(sources, &mut Vec::new()).place(key)
    }

    fn read(sources: ConfigSources<'_>, violations: &mut Vec<Violation>) -> Fields {
        let mut fields = Fields::default();
        if let Some(path) = sources.file {
            fields.read_file(path, violations);
            // As upstream: only this key, and only from the file.
            fields.lower_case("resourceGroup");
        }
        if let Some(secret) = sources.secret {
            match fields.config_type(violations) {
                ConfigType::File => {}
                config_type => {
                    if config_type == ConfigType::Secret {
                        fields = Fields::default();
                    }
                    fields.overlay("the Secret's cloud-config", secret, violations);
                }
            }
        }
        if let Some(environment) = sources.environment {
            for (name, key) in [
                ("AZURE_TENANT_ID", "tenantId"),
                ("AZURE_CLIENT_ID", "aadClientId"),
                ("AZURE_FEDERATED_TOKEN_FILE", "aadFederatedTokenFile"),
            ] {
                if let Some(value) = environment(name).filter(|value| !value.is_empty()) {
                    fields.set(name, key, Value::String(value));
                    if key == "aadFederatedTokenFile" {
                        fields.set(name, "useFederatedWorkloadIdentityExtension", Value::Bool(true));
                    }
                }
            }
            if fields.is_empty("aadClientSecret")
                && let Some(value) = environment("AZURE_CLIENT_SECRET").filter(|value| !value.is_empty())
            {
                fields.set("AZURE_CLIENT_SECRET", "aadClientSecret", Value::String(value));
            }
        }
        fields
    }

    /// Checks that the file can be read and is YAML or JSON. Its values are not validated: a Secret may replace them.
    ///
    /// # Errors
    /// What is wrong with the file, never the value of a secret.
    pub fn check_readable(file: &Path) -> Result<(), SettingsError> {
        let (mut violations, mut fields) = (Vec::new(), Fields::default());
        fields.read_file(file, &mut violations);
        if violations.is_empty() {
            Ok(())
        } else {
            Err(SettingsError(violations))
        }
    }

    /// The id of the cluster's virtual network, which is in the subscription of the nodes. `None` if a part of it is missing.
    pub fn virtual_network_id(&self) -> Option<String> {
        let subscription = self
            .compute_subscription_id
            .as_ref()
            .or(self.subscription_id.as_ref())?;
        let group = self
            .virtual_network_resource_group
            .as_ref()
            .or(self.resource_group.as_ref())?;
        let name = self.virtual_network.as_ref()?;
        Some(format!(
            "/subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Network/virtualNetworks/{name}"
        ))
    }

    /// The resource group of the load balancers.
    pub fn load_balancers_group(&self) -> Option<&str> {
        self.load_balancer_resource_group
            .as_deref()
            .or(self.resource_group.as_deref())
    }
}

#[cfg(test)]
mod tests;
