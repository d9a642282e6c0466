//! From the settings `azure.*` and `azure.json` to a connection to ARM.
//!
//! The configuration is checked when the process starts, and read again at the start of each term and every minute of it, with the
//! Secret merged over the file: a changed file or Secret needs no restart. Nothing is retried here, every step is bounded,
//! and no error contains a secret.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use headgate_azure::{
    ArmClient, ArmClientOptions, AzureJson, ConfigSources, Credential, EndpointError, Endpoints, Identity,
    IdentityError, InvalidId, Metrics, Origin, ResourceGroupId, TokenCache, Transport,
};
use headgate_controller::admin_state::{ClusterConnection, ClusterTarget, TargetSource};
use headgate_core::clock::Clock;
use headgate_core::settings::{SettingsError, Violation};
use headgate_http::client::{TlsError, TrustedRoots};
use headgate_http::proxies::Proxies;
use headgate_kubernetes::Decoded;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::time::{sleep, timeout};

use super::Role;
use crate::config::{AzureSettings, SecretName, Settings};

/// The key of the Secret's data, as with cloud-provider-azure.
const SECRET_KEY: &str = "cloud-config";
/// For the Secret, and for the file.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
const CONFIG_RELOAD_INTERVAL: Duration = Duration::from_mins(1);

/// A connection to ARM, and the configuration that it was made from.
#[derive(Clone, Debug)]
pub struct ArmConnection {
    /// The client. It gets its first token with its first request.
    pub arm: ArmClient,
    /// The tokens of its identity.
    pub tokens: Arc<TokenCache>,
    /// `azure.json` with the Secret merged over it.
    pub config: AzureJson,
}

/// Why there is no connection to ARM.
#[derive(Debug, thiserror::Error)]
pub enum ArmConnectError {
    /// `azure.json` is invalid or incomplete.
    #[error(transparent)]
    Config(#[from] SettingsError),
    /// The Secret cannot be used.
    #[error("the Secret {name} (azure.configSecret) {reason}")]
    Secret {
        /// The namespace and name from `azure.configSecret`.
        name: SecretName,
        /// The reason, which completes the error's sentence.
        reason: String,
    },
    /// The file was not read within [`READ_TIMEOUT`].
    #[error("{} (--azure-config-file) was not read within {} s: see whether its file system answers", .0.display(), READ_TIMEOUT.as_secs())]
    File(PathBuf),
    /// There was no connection within the caller's time limit.
    #[error("there was no connection to Azure within {} s", .0.as_secs())]
    Timeout(Duration),
    /// `resourceManagerEndpoint` does not work.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// `azure.json` has no credential that can be used.
    #[error(transparent)]
    Credential(#[from] IdentityError),
    /// TLS could not be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Subscription or resource group are not valid names.
    #[error(transparent)]
    Group(#[from] InvalidId),
}

/// Connects to ARM as the settings say.
#[derive(Clone)]
pub struct AzureAccess {
    /// The settings under `azure`.
    pub settings: AzureSettings,
    /// The client that reads the Secret.
    pub client: Client,
    /// Counts the requests to ARM.
    pub metrics: Metrics,
    /// Wall and monotonic time.
    pub clock: Clock,
    /// Whether `az` gives the token where the configuration has no credential: a person's command runs.
    pub may_use_az: bool,
}

impl AzureAccess {
    /// The access of a command that a person runs.
    pub(crate) fn of_command(settings: AzureSettings, client: Client) -> Self {
        Self {
            settings,
            client,
            metrics: Metrics::default(),
            clock: Clock::System,
            may_use_az: true,
        }
    }

    /// Reads the configuration and makes a client of it.
    ///
    /// # Errors
    /// If something is missing, invalid, or does not answer in time. The caller retries.
    pub async fn connect(&self) -> Result<ArmConnection, ArmConnectError> {
        let (config, imds) = (self.load_config().await?, imds_url(&self.settings));
        let transport = Transport::network(&TrustedRoots::System, Proxies::from_env())?;
        let endpoints = match &config.resource_manager_endpoint {
            Some(own) => Endpoints::discover(&transport, own, config.cloud_name.as_deref()).await?,
            None => Endpoints::for_cloud(config.cloud),
        };
        let identity = Identity::new(&config.credential, config.tenant_id.as_deref(), &endpoints, &imds)?;
        let tokens = Arc::new(TokenCache::new(identity, transport.clone(), self.clock.clone()));
        let options = ArmClientOptions {
            endpoints,
            rate_limits: config.rate_limits,
            user_agent: config.user_agent.clone(),
        };
        let arm = ArmClient::new(options, transport, Arc::clone(&tokens), self.clock.clone());
        Ok(ArmConnection {
            tokens,
            arm: arm.with_metrics(self.metrics.clone()),
            config,
        })
    }

    /// The same within a time limit.
    pub(crate) async fn connect_within(&self, limit: Duration) -> Result<ArmConnection, ArmConnectError> {
        let connected = timeout(limit, Self::connect(self)).await;
        connected.unwrap_or(Err(ArmConnectError::Timeout(limit)))
    }

    /// Waits until the configuration differs from `config`. A configuration that is invalid or cannot be read does not count.
    async fn config_changed(&self, config: &AzureJson) {
        let mut last_error = String::new();
        loop {
            sleep(CONFIG_RELOAD_INTERVAL).await;
            match self.load_config().await {
                Ok(loaded) if loaded != *config => return,
                Ok(_) => last_error.clear(),
                Err(error) => {
                    let error = error.to_string();
                    if error != last_error {
                        tracing::warn!(error, "Azure configuration not loaded again; the last one stays in use");
                    }
                    last_error = error;
                }
            }
        }
    }

    async fn load_config(&self) -> Result<AzureJson, ArmConnectError> {
        let secret = match &self.settings.config_secret {
            Some(name) => Some(self.read_secret(name).await?),
            None => None,
        };
        let file = self.settings.config_file.clone();
        let unread = || ArmConnectError::File(self.settings.config_file.clone().unwrap_or_default());
        let (origin, imds) = (config_origin(&self.settings), imds_url(&self.settings));
        let may_use_az = self.may_use_az;
        let load = tokio::task::spawn_blocking(move || {
            let sources = sources(file.as_deref(), secret.as_deref());
            let mut config = AzureJson::load(sources)?;
            if may_use_az && matches!(config.credential, Credential::None) {
                config.credential = Credential::AzureCli;
            }
            validate_for_leader(&config, sources, &origin, &imds).map(|()| config)
        });
        let loaded = timeout(READ_TIMEOUT, load).await.map_err(|_| unread())?;
        loaded.map_err(|_| unread())?.map_err(ArmConnectError::Config)
    }

    async fn read_secret(&self, name: &SecretName) -> Result<String, ArmConnectError> {
        let unusable = |reason: String| ArmConnectError::Secret {
            name: name.clone(),
            reason,
        };
        let secrets = Api::<Decoded<Secret>>::namespaced(self.client.clone(), &name.namespace);
        let secret = async { secrets.get_opt(&name.name).await?.map(Decoded::into_object).transpose() };
        let found = timeout(READ_TIMEOUT, secret).await;
        let found = found
            .map_err(|_| unusable(format!("was not answered within {} s", READ_TIMEOUT.as_secs())))?
            .map_err(|error| {
                unusable(format!(
                    "cannot be read: {}",
                    headgate_core::telemetry::error_chain(&error)
                ))
            })?
            .ok_or_else(|| unusable("is not there".to_owned()))?;
        let text = found.data.and_then(|mut data| data.remove(SECRET_KEY));
        let text = text.ok_or_else(|| unusable(format!("has no key {SECRET_KEY}")))?;
        String::from_utf8(text.0).map_err(|_| unusable(format!("has no text in its key {SECRET_KEY}")))
    }
}

impl TargetSource for AzureAccess {
    type Error = ArmConnectError;

    async fn connect(&self) -> Result<ClusterConnection, ArmConnectError> {
        let ArmConnection { arm, config, .. } = Self::connect(self).await?;
        let target = ClusterTarget::new(arm, &config, &self.settings.cluster_name)?;
        let access = self.clone();
        let config_changed = async move { access.config_changed(&config).await };
        Ok(ClusterConnection {
            target,
            config_changed: config_changed.boxed(),
        })
    }
}

/// The address of IMDS, which issues the tokens of managed identities.
fn imds_url(settings: &AzureSettings) -> String {
    format!("http://{}", settings.imds_authority)
}

/// Where the configuration is from, for messages.
fn config_origin(settings: &AzureSettings) -> String {
    let file = settings.config_file.as_ref().map(|file| file.display().to_string());
    match (file, &settings.config_secret) {
        (Some(file), Some(secret)) => format!("{file} with the Secret {secret}"),
        (Some(file), None) => file,
        (None, Some(secret)) => format!("the Secret {secret}"),
        (None, None) => "azure.json".to_owned(),
    }
}

fn sources<'a>(file: Option<&'a Path>, secret: Option<&'a str>) -> ConfigSources<'a> {
    ConfigSources {
        file,
        secret,
        environment: Some(&|name| std::env::var(name).ok()),
    }
}

/// Checks whether the configuration is enough for the role, as far as that is known without a request.
///
/// # Errors
/// Every mistake, each with its origin, key, value and what is allowed; never the value of a secret.
pub(crate) fn check_azure_settings(settings: &Settings, role: Role) -> Result<(), SettingsError> {
    let azure = &settings.azure;
    match (&azure.config_file, &azure.config_secret) {
        _ if !role.may_lead() => Ok(()),
        (None, None) if role.answers_probes() || settings.leads_maintenances_alone() => Ok(()),
        (None, None) => Err(SettingsError(vec![Violation {
            line: None,
            origin: format!("--role={}", role.as_str()),
            key: Some("azure.configSecret".to_owned()),
            message: "null leaves nothing to be done; allowed: the name of a Secret, or --azure-config-file".to_owned(),
        }])),
        (Some(file), Some(_)) => AzureJson::check_readable(file),
        // The Secret needs a request to the API server.
        (None, Some(_)) => Ok(()),
        (Some(file), None) => {
            let sources = sources(Some(file), None);
            let config = AzureJson::load(sources)?;
            validate_for_leader(&config, sources, &config_origin(azure), &imds_url(azure))
        }
    }
}

/// Checks whether the configuration from these sources is enough for a leader. `origin` names them.
fn validate_for_leader(
    config: &AzureJson,
    read_from: ConfigSources<'_>,
    origin: &str,
    imds: &str,
) -> Result<(), SettingsError> {
    let mut mistakes = Vec::new();
    let mut wrong = |key: &str, message: String| {
        let place = AzureJson::place_of(read_from, key);
        let (origin, line) = place.unwrap_or_else(|| (origin.to_owned(), None));
        mistakes.push(Violation {
            line,
            origin,
            key: Some(key.to_owned()),
            message,
        });
    };
    // The network's own subscription and tenant count before those of the nodes, as upstream.
    let set_key = |network: &'static str, nodes| AzureJson::place_of(read_from, network).map_or(nodes, |_| network);
    let subscription_key = set_key("networkResourceSubscriptionID", "subscriptionId");
    let tenant_key = set_key("networkResourceTenantID", "tenantId");
    let (subscription, group) = (config.subscription_id.as_deref(), config.load_balancers_group());
    let (group_key, group_allowed) = match config.load_balancer_resource_group {
        Some(_) => ("loadBalancerResourceGroup", "the resource group of the load balancers"),
        None => ("resourceGroup", "the resource group of the nodes"),
    };
    for (key, value, allowed) in [
        (subscription_key, subscription, "the subscription of the load balancers"),
        (group_key, group, group_allowed),
    ] {
        match value {
            None => wrong(key, format!("is missing; allowed: {allowed}")),
            Some(name) if ResourceGroupId::new(name, "group").is_err() => {
                wrong(key, format!("{name:?} is not allowed; allowed: {allowed}"));
            }
            Some(_) => {}
        }
    }
    if let Some(own) = &config.resource_manager_endpoint
        && let Err(error) = Origin::parse(own)
    {
        let allowed = "an address without a path, such as https://management.azure.com";
        wrong("resourceManagerEndpoint", format!("{error}; allowed: {allowed}"));
    }
    // A credential is valid or invalid for any endpoints.
    let endpoints = Endpoints::for_cloud(config.cloud);
    match Identity::new(&config.credential, config.tenant_id.as_deref(), &endpoints, imds) {
        Ok(_) => {}
        Err(error @ IdentityError::NoCredential) => {
            let key = "useFederatedWorkloadIdentityExtension, useManagedIdentityExtension, aadClientId";
            wrong(key, format!("{error}; allowed: one of these three"));
        }
        Err(error @ (IdentityError::MissingTenant | IdentityError::InvalidTenant(_))) => {
            wrong(tenant_key, format!("{error}; allowed: the tenant's GUID or domain"));
        }
        Err(error @ IdentityError::InvalidImds(_)) => wrong("--imds-endpoint", error.to_string()),
    }
    if mistakes.is_empty() {
        Ok(())
    } else {
        Err(SettingsError(mistakes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(text: Option<&str>, secret: bool, role: Role) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("azure.json");
        let mut settings = Settings::default();
        if let Some(text) = text {
            std::fs::write(&file, text).unwrap();
            settings.azure.config_file = Some(file.clone());
        }
        settings.azure.config_secret = secret.then(|| "kube-system/azure".parse().unwrap());
        let strip = |file: &Path, mistake: &Violation| mistake.to_string().replace(&file.display().to_string(), "f");
        let mistakes = check_azure_settings(&settings, role)
            .err()
            .map(|mistakes| mistakes.0)
            .unwrap_or_default();
        mistakes.iter().map(|mistake| strip(&file, mistake)).collect()
    }

    const GOOD: &str = r#"{"subscriptionId": "s", "resourceGroup": "g", "useManagedIdentityExtension": true}"#;

    #[test]
    fn process_that_cannot_lead_needs_no_configuration() {
        for text in [None, Some("[broken"), Some(GOOD)] {
            assert!(checked(text, false, Role::Agent).is_empty(), "{text:?}");
        }
        assert!(checked(None, false, Role::All).is_empty());
        assert!(checked(None, true, Role::Controller).is_empty());
        assert_eq!(
            checked(None, false, Role::Controller),
            [
                "--role=controller: azure.configSecret: null leaves nothing to be done; allowed: the name of a Secret, or \
                 --azure-config-file"
            ]
        );
    }

    #[test]
    fn all_mistakes_are_reported_together() {
        assert!(checked(Some(GOOD), false, Role::All).is_empty());
        assert_eq!(checked(Some("{}"), false, Role::All).len(), 3);
        assert_eq!(
            checked(
                Some(
                    "resourceGroup: a/b\ntenantId: a/b\naadClientId: c\naadClientSecret: hunter2\nresourceManagerEndpoint: http://a.test"
                ),
                false,
                Role::Controller
            ),
            [
                "f: subscriptionId: is missing; allowed: the subscription of the load balancers",
                "f:1: resourceGroup: \"a/b\" is not allowed; allowed: the resource group of the nodes",
                "f:5: resourceManagerEndpoint: http://a.test is not https: headgate sends tokens over plain HTTP to its own machine only; allowed: \
                 an address without a path, such as https://management.azure.com",
                "f:2: tenantId: \"a/b\" is not a tenantId; allowed: the tenant's GUID or domain",
            ]
        );
        assert_eq!(
            checked(
                Some(
                    "subscriptionId: s\nresourceGroup: g\nloadBalancerResourceGroup: a/b\nuseManagedIdentityExtension: true"
                ),
                false,
                Role::All
            ),
            [
                "f:3: loadBalancerResourceGroup: \"a/b\" is not allowed; allowed: the resource group of the load balancers"
            ]
        );
        assert_eq!(
            checked(
                Some(
                    "subscriptionId: s\nnetworkResourceSubscriptionID: a/b\nresourceGroup: g\naadClientId: c\naadClientSecret: hunter2\n\
                     tenantId: t\nnetworkResourceTenantID: a/b"
                ),
                false,
                Role::All
            ),
            [
                "f:2: networkResourceSubscriptionID: \"a/b\" is not allowed; allowed: the subscription of the load balancers",
                "f:7: networkResourceTenantID: \"a/b\" is not a tenantId; allowed: the tenant's GUID or domain",
            ]
        );
        assert_eq!(
            checked(
                Some("useManagedIdentityExtension: perhaps\nexcludeMasterFromStandardLB: [x]"),
                false,
                Role::All
            )
            .len(),
            2
        );
    }

    #[tokio::test(start_paused = true)]
    async fn changed_configuration_counts_within_a_minute_and_an_invalid_one_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("azure.json");
        let service = tower::service_fn(async |_: hyper::Request<kube::client::Body>| {
            Err::<hyper::Response<kube::client::Body>, _>(std::io::Error::other("no API server"))
        });
        let access = AzureAccess {
            settings: AzureSettings {
                config_file: Some(file.clone()),
                ..Settings::default().azure
            },
            client: Client::new(service, "default"),
            metrics: Metrics::default(),
            clock: Clock::System,
            may_use_az: false,
        };
        std::fs::write(&file, GOOD).unwrap();
        let config = access.load_config().await.unwrap();
        let mut changed = std::pin::pin!(access.config_changed(&config));
        for unchanged in [
            GOOD.to_owned(),
            "[broken".to_owned(),
            "{}".to_owned(),
            format!(" {GOOD}\n"),
        ] {
            std::fs::write(&file, unchanged).unwrap();
            assert!(timeout(5 * CONFIG_RELOAD_INTERVAL, &mut changed).await.is_err());
        }
        std::fs::write(&file, GOOD.replace("\"g\"", "\"other\"")).unwrap();
        timeout(CONFIG_RELOAD_INTERVAL + READ_TIMEOUT, &mut changed)
            .await
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_takes_too_long_says_so() {
        type Answer = std::io::Result<hyper::Response<kube::client::Body>>;
        let service = tower::service_fn(|_: hyper::Request<kube::client::Body>| std::future::pending::<Answer>());
        let access = AzureAccess {
            settings: AzureSettings {
                config_secret: Some("kube-system/azure".parse().unwrap()),
                ..Settings::default().azure
            },
            client: Client::new(service, "default"),
            metrics: Metrics::default(),
            clock: Clock::System,
            may_use_az: false,
        };
        let error = access.connect_within(Duration::from_secs(3)).await.unwrap_err();
        assert_eq!(error.to_string(), "there was no connection to Azure within 3 s");
        let error = access.connect_within(READ_TIMEOUT * 2).await.unwrap_err();
        assert!(matches!(error, ArmConnectError::Secret { .. }), "{error}");
    }

    #[test]
    fn values_that_the_secret_may_have_are_not_missing() {
        assert!(checked(Some("{}"), true, Role::All).is_empty());
        assert_eq!(checked(Some("[a]"), true, Role::All).len(), 1);
    }
}
