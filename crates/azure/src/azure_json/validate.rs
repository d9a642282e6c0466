//! From keys and values to [`AzureJson`]: defaults, and what contradicts itself.

use std::collections::BTreeSet;

use headgate_settings::Violation;

use super::fields::Fields;
use super::{AzureCloud, AzureJson, BackendPoolType, Credential, ManagedIdentity, RateLimit, RateLimits, Secret};

/// cloud-provider-azure's documented defaults, where a limit is on and a value is not given.
const DEFAULT_LIMIT: RateLimit = RateLimit { qps: 1.0, bucket: 5 };

/// Takes everything, noting every mistake.
pub(super) fn take(fields: &Fields, mistakes: &mut Vec<Violation>) -> AzureJson {
    let cloud = fields.text("cloud", mistakes);
    let pool_type = backend_pool_type(fields, mistakes);
    let network_tenant = fields.text("networkResourceTenantID", mistakes);
    let network_subscription = fields.text("networkResourceSubscriptionID", mistakes);
    let tenant = fields.text("tenantId", mistakes);
    let subscription = fields.text("subscriptionId", mistakes);
    AzureJson {
        cloud: cloud.as_deref().map(cloud_of).unwrap_or_default(),
        cloud_name: cloud,
        resource_manager_endpoint: fields.text("resourceManagerEndpoint", mistakes),
        user_agent: fields.text("userAgent", mistakes),
        tenant_id: network_tenant.or(tenant),
        compute_subscription_id: subscription.clone().filter(|_| network_subscription.is_some()),
        subscription_id: network_subscription.or(subscription),
        resource_group: fields.text("resourceGroup", mistakes),
        load_balancer_resource_group: fields.text("loadBalancerResourceGroup", mistakes),
        credential: credential(fields, mistakes),
        load_balancer_name: fields.text("loadBalancerName", mistakes),
        load_balancers: load_balancers(fields, pool_type, mistakes),
        backend_pool_type: pool_type,
        exclude_master_from_standard_lb: fields.boolean("excludeMasterFromStandardLB", mistakes).unwrap_or(true),
        rate_limits: rate_limits(fields, mistakes),
        enable_load_balancer_admin_state: fields.boolean("enableLoadBalancerAdminState", mistakes).unwrap_or(true),
    }
}

fn cloud_of(name: &str) -> AzureCloud {
    match name.to_uppercase().as_str() {
        "AZURECHINACLOUD" => AzureCloud::China,
        "AZUREUSGOVERNMENT" | "AZUREUSGOVERNMENTCLOUD" => AzureCloud::UsGovernment,
        // As upstream: what is not known is the public one.
        _ => AzureCloud::Public,
    }
}

fn backend_pool_type(fields: &Fields, mistakes: &mut Vec<Violation>) -> BackendPoolType {
    let key = "loadBalancerBackendPoolConfigurationType";
    let allowed = "nodeIPConfiguration, nodeIP or podIP";
    let read = fields.read(key, allowed, mistakes, |value| {
        match value.as_str()?.to_lowercase().as_str() {
            "" | "nodeipconfiguration" => Some(BackendPoolType::NodeIpConfiguration),
            "nodeip" => Some(BackendPoolType::NodeIp),
            "podip" => Some(BackendPoolType::PodIp),
            _ => None,
        }
    });
    read.unwrap_or_default()
}

/// Upstream's order: workload identity, managed identity, secret; a certificate is refused.
fn credential(fields: &Fields, mistakes: &mut Vec<Violation>) -> Credential {
    let client = fields.text("aadClientId", mistakes).unwrap_or_default();
    let secret = fields.text("aadClientSecret", mistakes);
    let token_file = fields.text("aadFederatedTokenFile", mistakes);
    let managed = fields.boolean("useManagedIdentityExtension", mistakes).unwrap_or(false);
    let identity = fields.text("userAssignedIdentityID", mistakes);
    let federated = fields
        .boolean("useFederatedWorkloadIdentityExtension", mistakes)
        .unwrap_or(false);
    let certificate = fields.text("aadClientCertPath", mistakes);
    if federated {
        let Some(token_file) = token_file else {
            mistakes.push(Violation {
                origin: fields.origin("useFederatedWorkloadIdentityExtension"),
                key: Some("aadFederatedTokenFile".to_owned()),
                message: "workload identity needs it; allowed: the path of a projected service account token"
                    .to_owned(),
            });
            return Credential::None;
        };
        return Credential::WorkloadIdentity {
            client_id: client,
            token_file,
        };
    }
    if managed {
        let named = identity.map(|id| {
            if id.to_lowercase().contains("/subscriptions/") {
                ManagedIdentity::ResourceId(id)
            } else {
                ManagedIdentity::ClientId(id)
            }
        });
        return Credential::ManagedIdentity(named);
    }
    // Files of AKS say "msi" where nothing is meant.
    let said = |text: &str| !text.is_empty() && !text.eq_ignore_ascii_case("msi");
    match secret.filter(|secret| said(secret)) {
        Some(secret) if said(&client) => Credential::ClientSecret {
            client_id: client,
            secret: Secret(secret),
        },
        _ => {
            if certificate.is_some() {
                mistakes.push(Violation {
                    origin: fields.origin("aadClientCertPath"),
                    key: Some("aadClientCertPath".to_owned()),
                    message: "client certificates are not taken; allowed: useFederatedWorkloadIdentityExtension with \
                              aadFederatedTokenFile, useManagedIdentityExtension, or aadClientSecret"
                        .to_owned(),
                });
            }
            Credential::None
        }
    }
}

/// The names of several standard load balancers, with upstream's checks.
fn load_balancers(fields: &Fields, pool_type: BackendPoolType, mistakes: &mut Vec<Violation>) -> Vec<String> {
    let key = "multipleStandardLoadBalancerConfigurations";
    let (mut names, mut sets, mut list) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    let mut found = Vec::new();
    for section in fields.sections(key, mistakes) {
        let name = section.text("name", mistakes).unwrap_or_default();
        if !names.insert(name.to_lowercase()) {
            found.push(format!(
                "duplicated multiple standard load balancer configuration name {name}"
            ));
        }
        match section.text("primaryVMSet", mistakes) {
            None => found.push(format!(
                "multiple standard load balancer configuration {name} must have primary VMSet"
            )),
            Some(set) if !sets.insert(set.to_lowercase()) => found.push(format!(
                "duplicated primary VMSet {set} in multiple standard load balancer configurations {name}"
            )),
            Some(_) => {}
        }
        list.push(name);
    }
    if !list.is_empty() && pool_type == BackendPoolType::NodeIpConfiguration {
        found.push(
            "multiple standard load balancers cannot be used with backend pool type nodeIPConfiguration".to_owned(),
        );
    }
    mistakes.extend(found.into_iter().map(|message| Violation {
        origin: fields.origin(key),
        key: Some(key.to_owned()),
        message,
    }));
    list
}

/// The limits of load balancer requests: their own stanza over the global keys.
fn rate_limits(fields: &Fields, mistakes: &mut Vec<Violation>) -> Option<RateLimits> {
    let stanza = fields.section("loadBalancerRateLimit", mistakes).unwrap_or_default();
    let mut on = |fields: &Fields| fields.boolean("cloudProviderRateLimit", mistakes);
    let global = on(fields);
    if !on(&stanza).or(global).unwrap_or(false) {
        return None;
    }
    let mut limit = |suffix: &str| {
        let mut number = |name: &str| {
            let key = format!("cloudProviderRateLimit{name}{suffix}");
            let own = stanza.number(&key, mistakes);
            own.or_else(|| fields.number(&key, mistakes))
                .filter(|number| *number > 0.0)
        };
        let (qps, bucket) = (number("QPS"), number("Bucket"));
        RateLimit {
            qps: qps.unwrap_or(DEFAULT_LIMIT.qps),
            // Larger is no limit.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is between 1 and a million"
            )]
            bucket: bucket.map_or(DEFAULT_LIMIT.bucket, |bucket| bucket.clamp(1.0, 1_000_000.0) as u32),
        }
    };
    Some(RateLimits {
        read: limit(""),
        write: limit("Write"),
    })
}
