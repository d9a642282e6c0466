//! `azure.json`: the cloud's configuration, as cloud-provider-azure reads it.
//!
//! YAML or JSON, keys in any case, unknown ones ignored, so that the file which stands on every node can be used
//! as it is. Only what headgate needs is kept. Source: cloud-provider-azure `pkg/provider/config`,
//! `pkg/azclient`; the one key of ours is `enableLoadBalancerAdminState`.

use std::fmt;
use std::path::Path;

use headgate_settings::{EnvironmentLookup, SettingsError};
use serde_yaml::Value;

use self::fields::{Fields, Source};

mod fields;
mod validate;

/// A text that must not be seen.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Around a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for whoever sends it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Which Azure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AzureCloud {
    /// `AzurePublicCloud`; also what is not known or not said.
    #[default]
    Public,
    /// `AzureChinaCloud`.
    China,
    /// `AzureUSGovernmentCloud`.
    UsGovernment,
}

/// How headgate proves to Azure who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// A service account's token, projected into a file.
    WorkloadIdentity {
        /// The application.
        client_id: String,
        /// The file.
        token_file: String,
    },
    /// The virtual machine's identity; none names one of several.
    ManagedIdentity(Option<ManagedIdentity>),
    /// A service principal's secret.
    ClientSecret {
        /// The application.
        client_id: String,
        /// Its secret.
        secret: Secret,
    },
    /// Nothing was said.
    None,
}

/// Which of several identities of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagedIdentity {
    /// By its application.
    ClientId(String),
    /// By its resource.
    ResourceId(String),
}

/// Whose members backend pools have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendPoolType {
    /// The nodes' network interfaces.
    #[default]
    NodeIpConfiguration,
    /// The nodes' addresses.
    NodeIp,
    /// The Pods' addresses: not headgate's business.
    PodIp,
}

/// A bucket of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Requests a second, in the long run.
    pub qps: f64,
    /// Requests at once.
    pub bucket: u32,
}

/// How often ARM may be asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimits {
    /// For reads.
    pub read: RateLimit,
    /// For writes.
    pub write: RateLimit,
}

/// What headgate takes from `azure.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct AzureJson {
    /// Which Azure.
    pub cloud: AzureCloud,
    /// How it was called, which finds it among those that an ARM of one's own knows.
    pub cloud_name: Option<String>,
    /// An ARM of one's own, which says where tokens are to be had.
    pub resource_manager_endpoint: Option<String>,
    /// Who to tell ARM that it is asking.
    pub user_agent: Option<String>,
    /// The tenant of the load balancers.
    pub tenant_id: Option<String>,
    /// Their subscription.
    pub subscription_id: Option<String>,
    /// The nodes' subscription, where it is another one.
    pub compute_subscription_id: Option<String>,
    /// The nodes' resource group, in lower case.
    pub resource_group: Option<String>,
    /// The load balancers', where it is another one.
    pub load_balancer_resource_group: Option<String>,
    /// How to prove who one is.
    pub credential: Credential,
    /// The name of the one load balancer, where it is not the cluster's.
    pub load_balancer_name: Option<String>,
    /// The names of several.
    pub load_balancers: Vec<String>,
    /// Whose members pools have.
    pub backend_pool_type: BackendPoolType,
    /// Whether control-plane nodes are left out.
    pub exclude_master_from_standard_lb: bool,
    /// How often ARM may be asked, where that is limited.
    pub rate_limits: Option<RateLimits>,
    /// Whether admin states are to be set. Ours; cloud-provider-azure ignores it.
    pub enable_load_balancer_admin_state: bool,
}

/// Where the values come from besides the file.
#[derive(Clone, Copy, Default)]
pub struct ConfigSources<'a> {
    /// The text of the Secret's `cloud-config`, which wins over the file, unless that has another `cloudConfigType`.
    pub secret: Option<&'a str>,
    /// The environment, by name.
    pub environment: Option<&'a EnvironmentLookup<'a>>,
}

impl fmt::Debug for ConfigSources<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigSources").finish_non_exhaustive()
    }
}

impl AzureJson {
    /// Reads the file, if there is one, and what surrounds it.
    ///
    /// # Errors
    /// Every mistake, each with its place, key, value and what is allowed; never a secret's value.
    pub fn load(file: Option<&Path>, surroundings: ConfigSources<'_>) -> Result<Self, SettingsError> {
        let mut mistakes = Vec::new();
        let mut fields = Fields::default();
        if let Some(path) = file {
            fields.read_file(path, &mut mistakes);
            // As upstream: the file's only, and only this.
            fields.lower_case("resourceGroup");
        }
        if let Some(secret) = surroundings.secret {
            match fields.source(&mut mistakes) {
                Source::File => {}
                source => {
                    if source == Source::Secret {
                        fields = Fields::default();
                    }
                    fields.overlay("the Secret's cloud-config", secret, &mut mistakes);
                }
            }
        }
        if let Some(environment) = surroundings.environment {
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
        let taken = validate::take(&fields, &mut mistakes);
        if mistakes.is_empty() {
            Ok(taken)
        } else {
            Err(SettingsError(mistakes))
        }
    }

    /// Whether the file can be read and is YAML or JSON, where something yet to come may be laid over it.
    ///
    /// # Errors
    /// What is wrong with it, never a secret's value.
    pub fn check_readable(file: &Path) -> Result<(), SettingsError> {
        let (mut mistakes, mut fields) = (Vec::new(), Fields::default());
        fields.read_file(file, &mut mistakes);
        if mistakes.is_empty() {
            Ok(())
        } else {
            Err(SettingsError(mistakes))
        }
    }

    /// The resource group of the load balancers.
    #[must_use]
    pub fn load_balancers_group(&self) -> Option<&str> {
        self.load_balancer_resource_group
            .as_deref()
            .or(self.resource_group.as_deref())
    }
}

#[cfg(test)]
mod tests;
