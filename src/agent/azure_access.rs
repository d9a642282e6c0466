//! From `azure.json` to an ARM that can be asked.
//!
//! What is said is checked at the start of the process, and read anew at the start of each term and every minute of
//! it, with the Secret laid over it: whoever changes the file or the Secret waits for no restart. Nothing is retried
//! here, everything is bounded, and no secret stands in an error.

use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{
    Account, Arm, EndpointError, Endpoints, GroupId, Metrics, NoCredential, Options, Origin, TlsError, Tokens,
    Transport, Trust,
};
use headgate_azure::{AzureJson, Surroundings};
use headgate_clock::Clock;
use headgate_settings::{Mistake, Mistakes};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::time::{sleep, timeout};

use super::Role;
use crate::config::{AzureSettings, SecretName, Settings};

/// What the Secret's text is called, as with cloud-provider-azure.
const SECRET_KEY: &str = "cloud-config";
/// Time for reading the Secret, and for reading the file.
const READ: Duration = Duration::from_secs(10);
/// From one look for changes to the next.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// An ARM that can be asked.
#[derive(Clone, Debug)]
pub struct Connected {
    /// It.
    pub arm: Arm,
    /// What is known of the cluster in Azure.
    pub config: AzureJson,
}

/// Why ARM cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// What is said about Azure is wrong or not enough.
    #[error(transparent)]
    Said(#[from] Mistakes),
    /// The Secret cannot be used.
    #[error("the Secret {name} (azure.configSecret) {why}")]
    Secret {
        /// Which.
        name: SecretName,
        /// Why.
        why: String,
    },
    /// The file could not be read in time.
    #[error("azure.json was not read within {} s", READ.as_secs())]
    File,
    /// The ARM of one's own cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Whom to be to Azure is not said.
    #[error(transparent)]
    Credential(#[from] NoCredential),
    /// No TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There was no time to try.
    #[error("the term ended first")]
    TermEnded,
}

/// How ARM is come to.
#[derive(Clone)]
pub struct AzureAccess {
    /// Where the configuration is.
    pub settings: AzureSettings,
    /// Reads the Secret.
    pub client: Client,
    /// What requests to ARM are counted in.
    pub metrics: Metrics,
    /// Its time.
    pub clock: Clock,
}

impl AzureAccess {
    /// Reads what is said about Azure, and makes ready to ask ARM. A token is had with the first request.
    ///
    /// # Errors
    /// Where something is not there, wrong, or does not answer; the caller tries again.
    pub async fn connect(&self) -> Result<Connected, ConnectError> {
        let (config, imds) = (self.said().await?, imds(&self.settings));
        let transport = Transport::network(&Trust::System)?;
        let endpoints = match &config.resource_manager_endpoint {
            Some(own) => Endpoints::look_up(&transport, own, config.cloud_name.as_deref()).await?,
            None => Endpoints::of(config.cloud),
        };
        let account = Account::new(&config.credential, config.tenant_id.as_deref(), &endpoints, &imds)?;
        let tokens = Tokens::new(account, transport.clone(), self.clock.clone());
        let options = Options {
            endpoints,
            rate_limits: config.rate_limits,
            user_agent: config.user_agent.clone(),
        };
        let arm = Arm::new(options, transport, Arc::new(tokens), self.clock.clone());
        Ok(Connected {
            arm: arm.counted_in(self.metrics.clone()),
            config,
        })
    }

    /// Waits until what is said about Azure is no longer this. What is wrong, or cannot be read, changes nothing.
    pub async fn changed(&self, config: &AzureJson) {
        let mut told = String::new();
        loop {
            sleep(LOOK_AGAIN).await;
            match self.said().await {
                Ok(said) if said != *config => return,
                Ok(_) => told.clear(),
                Err(error) => {
                    let error = error.to_string();
                    if error != told {
                        tracing::warn!(
                            error,
                            "what is said about Azure cannot be read anew; what was read goes on"
                        );
                    }
                    told = error;
                }
            }
        }
    }

    /// Reads what is said about Azure.
    async fn said(&self) -> Result<AzureJson, ConnectError> {
        let secret = match &self.settings.config_secret {
            Some(name) => Some(self.secret(name).await?),
            None => None,
        };
        let file = self.settings.config_file.clone();
        let (said, at) = (origin(&self.settings), imds(&self.settings));
        let read = tokio::task::spawn_blocking(move || {
            let found = AzureJson::load(file.as_deref(), surroundings(secret.as_deref()))?;
            sufficient(&found, &said, &at).map(|()| found)
        });
        let read = timeout(READ, read).await.map_err(|_| ConnectError::File)?;
        read.map_err(|_| ConnectError::File)?.map_err(ConnectError::Said)
    }

    async fn secret(&self, name: &SecretName) -> Result<String, ConnectError> {
        let unusable = |why: String| ConnectError::Secret {
            name: name.clone(),
            why,
        };
        let secrets = Api::<Secret>::namespaced(self.client.clone(), &name.namespace);
        let found = timeout(READ, secrets.get_opt(&name.name)).await;
        let found = found
            .map_err(|_| unusable(format!("was not answered within {} s", READ.as_secs())))?
            .map_err(|error| unusable(format!("cannot be read: {}", headgate_telemetry::error_chain(&error))))?
            .ok_or_else(|| unusable("is not there".to_owned()))?;
        let text = found.data.and_then(|mut data| data.remove(SECRET_KEY));
        let text = text.ok_or_else(|| unusable(format!("has no key {SECRET_KEY}")))?;
        String::from_utf8(text.0).map_err(|_| unusable(format!("has no text in its key {SECRET_KEY}")))
    }
}

/// Where a machine's identity is asked for.
fn imds(settings: &AzureSettings) -> String {
    format!("http://{}", settings.imds_authority)
}

/// Where it is said what Azure is.
fn origin(settings: &AzureSettings) -> String {
    let file = settings.config_file.as_ref().map(|file| file.display().to_string());
    match (file, &settings.config_secret) {
        (Some(file), Some(secret)) => format!("{file} with the Secret {secret}"),
        (Some(file), None) => file,
        (None, Some(secret)) => format!("the Secret {secret}"),
        (None, None) => "azure.json".to_owned(),
    }
}

fn surroundings(secret: Option<&str>) -> Surroundings<'_> {
    Surroundings {
        secret,
        environment: Some(&|name| std::env::var(name).ok()),
    }
}

/// Whether what is said about Azure suffices for what this process is to do, as far as that can be known without
/// asking anybody.
///
/// # Errors
/// Every mistake, each with its place, key, value and what is allowed; never a secret's value.
pub fn check_azure(settings: &Settings, role: Role) -> Result<(), Mistakes> {
    let azure = &settings.azure;
    match (&azure.config_file, &azure.config_secret) {
        _ if !role.may_lead() => Ok(()),
        (None, None) if role.answers_probes() => Ok(()),
        (None, None) => Err(Mistakes(vec![Mistake {
            origin: format!("--role={}", role.as_str()),
            key: Some("azure.configFile".to_owned()),
            message: "\"none\" leaves nothing to be done; allowed: the path of an azure.json, or azure.configSecret"
                .to_owned(),
        }])),
        (Some(file), Some(_)) => AzureJson::check_readable(file),
        // The Secret is in the cluster.
        (None, Some(_)) => Ok(()),
        (Some(file), None) => {
            let found = AzureJson::load(Some(file), surroundings(None))?;
            sufficient(&found, &origin(azure), &imds(azure))
        }
    }
}

/// Whether it suffices for a leader.
fn sufficient(config: &AzureJson, origin: &str, imds: &str) -> Result<(), Mistakes> {
    let mut mistakes = Vec::new();
    let mut wrong = |key: &str, message: String| {
        mistakes.push(Mistake {
            origin: origin.to_owned(),
            key: Some(key.to_owned()),
            message,
        });
    };
    let (subscription, group) = (config.subscription_id.as_deref(), config.load_balancers_group());
    for (key, value, allowed) in [
        ("subscriptionId", subscription, "the subscription of the load balancers"),
        ("resourceGroup", group, "the resource group of the nodes"),
    ] {
        match value {
            None => wrong(key, format!("is not there; allowed: {allowed}")),
            Some(name) if GroupId::new(name, "group").is_err() => {
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
    // Which endpoints does not matter here.
    let endpoints = Endpoints::of(config.cloud);
    match Account::new(&config.credential, config.tenant_id.as_deref(), &endpoints, imds) {
        Ok(_) => {}
        Err(error @ NoCredential::None) => {
            let key = "useFederatedWorkloadIdentityExtension, useManagedIdentityExtension, aadClientId";
            wrong(key, format!("{error}; allowed: one of these three"));
        }
        Err(error @ (NoCredential::Tenant | NoCredential::BadTenant(_))) => {
            wrong("tenantId", format!("{error}; allowed: the tenant's GUID or domain"));
        }
        Err(error @ NoCredential::Imds(_)) => wrong("azure.imdsEndpoint", error.to_string()),
    }
    if mistakes.is_empty() {
        Ok(())
    } else {
        Err(Mistakes(mistakes))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
        let strip = |file: &Path, mistake: &Mistake| mistake.to_string().replace(&file.display().to_string(), "f");
        let mistakes = check_azure(&settings, role)
            .err()
            .map(|mistakes| mistakes.0)
            .unwrap_or_default();
        mistakes.iter().map(|mistake| strip(&file, mistake)).collect()
    }

    const GOOD: &str = r#"{"subscriptionId": "s", "resourceGroup": "g", "useManagedIdentityExtension": true}"#;

    #[test]
    fn who_does_not_lead_needs_nothing() {
        for text in [None, Some("[broken"), Some(GOOD)] {
            assert!(checked(text, false, Role::Agent).is_empty(), "{text:?}");
        }
        assert!(checked(None, false, Role::All).is_empty());
        assert!(checked(None, true, Role::Controller).is_empty());
        assert_eq!(
            checked(None, false, Role::Controller),
            [
                "--role=controller: azure.configFile: \"none\" leaves nothing to be done; allowed: the path of an azure.json, or \
              azure.configSecret"
            ]
        );
    }

    #[test]
    fn every_mistake_at_once() {
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
                "f: subscriptionId: is not there; allowed: the subscription of the load balancers",
                "f: resourceGroup: \"a/b\" is not allowed; allowed: the resource group of the nodes",
                "f: resourceManagerEndpoint: http://a.test is not https: tokens go over plain HTTP to this machine only; allowed: \
                 an address without a path, such as https://management.azure.com",
                "f: tenantId: \"a/b\" is no tenantId; allowed: the tenant's GUID or domain",
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
    async fn a_change_is_seen_within_a_minute_and_a_mistake_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("azure.json");
        let service = tower::service_fn(async |_: hyper::Request<kube::client::Body>| {
            Err::<hyper::Response<kube::client::Body>, _>(std::io::Error::other("nobody is asked"))
        });
        let access = AzureAccess {
            settings: AzureSettings {
                config_file: Some(file.clone()),
                ..Settings::default().azure
            },
            client: Client::new(service, "default"),
            metrics: Metrics::default(),
            clock: Clock::System,
        };
        std::fs::write(&file, GOOD).unwrap();
        let said = access.said().await.unwrap();
        let mut changed = std::pin::pin!(access.changed(&said));
        for same in [
            GOOD.to_owned(),
            "[broken".to_owned(),
            "{}".to_owned(),
            format!(" {GOOD}\n"),
        ] {
            std::fs::write(&file, same).unwrap();
            assert!(timeout(5 * LOOK_AGAIN, &mut changed).await.is_err());
        }
        std::fs::write(&file, GOOD.replace("\"g\"", "\"other\"")).unwrap();
        timeout(LOOK_AGAIN + READ, &mut changed).await.unwrap();
    }

    #[test]
    fn what_a_secret_may_yet_say_is_not_missed() {
        assert!(checked(Some("{}"), true, Role::All).is_empty());
        assert_eq!(checked(Some("[a]"), true, Role::All).len(), 1);
    }
}
