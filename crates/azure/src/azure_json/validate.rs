//! From keys and values to [`AzureJson`]: types, defaults, and keys that exclude each other.

use std::collections::BTreeSet;

use headgate_core::settings::Violation;

use super::fields::Fields;
use super::{AzureCloud, AzureJson, BackendPoolType, Credential, ManagedIdentity, RateLimit, RateLimits, Secret};

/// cloud-provider-azure's documented defaults of an enabled limit.
const DEFAULT_RATE_LIMIT: RateLimit = RateLimit { qps: 1.0, bucket: 5 };

/// Converts all keys. Adds a violation for each invalid one.
pub(super) fn validate(fields: &Fields, violations: &mut Vec<Violation>) -> AzureJson {
    let cloud = fields.text("cloud", violations);
    let pool_type = backend_pool_type(fields, violations);
    let network_tenant = fields.text("networkResourceTenantID", violations);
    let network_subscription = fields.text("networkResourceSubscriptionID", violations);
    let tenant = fields.text("tenantId", violations);
    let subscription = fields.text("subscriptionId", violations);
    AzureJson {
        cloud: cloud.as_deref().map(parse_cloud).unwrap_or_default(),
        cloud_name: cloud,
        resource_manager_endpoint: fields.text("resourceManagerEndpoint", violations),
        user_agent: fields.text("userAgent", violations),
        tenant_id: network_tenant.or(tenant),
        compute_subscription_id: subscription.clone().filter(|_| network_subscription.is_some()),
        subscription_id: network_subscription.or(subscription),
        resource_group: fields.text("resourceGroup", violations),
        load_balancer_resource_group: fields.text("loadBalancerResourceGroup", violations),
        credential: credential(fields, violations),
        load_balancer_name: fields.text("loadBalancerName", violations),
        load_balancers: load_balancers(fields, pool_type, violations),
        load_balancer_sku: load_balancer_sku(fields, violations),
        backend_pool_update_interval_seconds: fields
            .integer("loadBalancerBackendPoolUpdateIntervalInSeconds", violations),
        backend_pool_update_max_retries: fields.integer("loadBalancerBackendPoolUpdateMaxRetries", violations),
        pre_configured_load_balancer_types: pre_configured_types(fields, violations),
        virtual_network: fields.text("vnetName", violations),
        virtual_network_resource_group: fields.text("vnetResourceGroup", violations),
        backend_pool_type: pool_type,
        exclude_master_from_standard_lb: fields
            .boolean("excludeMasterFromStandardLB", violations)
            .unwrap_or(true),
        rate_limits: rate_limits(fields, violations),
        enable_load_balancer_admin_state: fields
            .boolean("enableLoadBalancerAdminState", violations)
            .unwrap_or(true),
    }
}

fn parse_cloud(name: &str) -> AzureCloud {
    match name.to_uppercase().as_str() {
        "AZURECHINACLOUD" => AzureCloud::China,
        "AZUREUSGOVERNMENT" | "AZUREUSGOVERNMENTCLOUD" => AzureCloud::UsGovernment,
        // As upstream: an unknown name is the public cloud.
        _ => AzureCloud::Public,
    }
}

fn backend_pool_type(fields: &Fields, violations: &mut Vec<Violation>) -> BackendPoolType {
    let key = "loadBalancerBackendPoolConfigurationType";
    // An entry of a pool of podIP is a Pod, which no Node's admin state covers.
    let allowed = "nodeIPConfiguration or nodeIP";
    let read = fields.read(key, allowed, violations, |value| {
        match value.as_str()?.to_lowercase().as_str() {
            "" | "nodeipconfiguration" => Some(BackendPoolType::NodeIpConfiguration),
            "nodeip" => Some(BackendPoolType::NodeIp),
            _ => None,
        }
    });
    read.unwrap_or_default()
}

/// A Basic load balancer has no admin states.
fn load_balancer_sku(fields: &Fields, violations: &mut Vec<Violation>) -> Option<String> {
    let read = fields.read("loadBalancerSku", "standard", violations, |value| {
        let text = value.as_str()?;
        (!text.eq_ignore_ascii_case("basic")).then(|| text.to_owned())
    });
    read.filter(|text| !text.is_empty())
}

/// The load balancers with pool members that others manage.
fn pre_configured_types(fields: &Fields, violations: &mut Vec<Violation>) -> Option<String> {
    let key = "preConfiguredBackendPoolLoadBalancerTypes";
    let read = fields.read(key, "internal, external or all", violations, |value| {
        let text = value.as_str()?.to_lowercase();
        matches!(text.as_str(), "" | "internal" | "external" | "all").then_some(text)
    });
    read.filter(|text| !text.is_empty())
}

/// The credential, in upstream's order: workload identity, managed identity, client secret. A client certificate is a
/// violation.
fn credential(fields: &Fields, violations: &mut Vec<Violation>) -> Credential {
    let client = fields.text("aadClientId", violations).unwrap_or_default();
    let secret = fields.text("aadClientSecret", violations);
    let token_file = fields.text("aadFederatedTokenFile", violations);
    let managed = fields
        .boolean("useManagedIdentityExtension", violations)
        .unwrap_or(false);
    let identity = fields.text("userAssignedIdentityID", violations);
    let federated = fields
        .boolean("useFederatedWorkloadIdentityExtension", violations)
        .unwrap_or(false);
    let certificate = fields.text("aadClientCertPath", violations);
    if federated {
        let Some(token_file) = token_file else {
            let message = "workload identity needs it; allowed: the path of a projected service account token";
            let at = "useFederatedWorkloadIdentityExtension";
            fields.reject(at, "aadFederatedTokenFile", message.to_owned(), violations);
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
    // Files of AKS have "msi" in place of absent values.
    let is_set = |text: &str| !text.is_empty() && !text.eq_ignore_ascii_case("msi");
    match secret.filter(|secret| is_set(secret)) {
        Some(secret) if is_set(&client) => Credential::ClientSecret {
            client_id: client,
            secret: Secret(secret),
        },
        _ => {
            if certificate.is_some() {
                let (key, message) = (
                    "aadClientCertPath",
                    "client certificates are not supported; allowed: useFederatedWorkloadIdentityExtension with \
                     aadFederatedTokenFile, useManagedIdentityExtension, or aadClientSecret",
                );
                fields.reject(key, key, message.to_owned(), violations);
            }
            Credential::None
        }
    }
}

/// The names of multiple standard load balancers, with upstream's checks and messages.
fn load_balancers(fields: &Fields, pool_type: BackendPoolType, violations: &mut Vec<Violation>) -> Vec<String> {
    let key = "multipleStandardLoadBalancerConfigurations";
    let (mut names, mut sets, mut list) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    let mut found = Vec::new();
    for section in fields.sections(key, violations) {
        let name = section.text("name", violations).unwrap_or_default();
        if !names.insert(name.to_lowercase()) {
            found.push(format!(
                "duplicated multiple standard load balancer configuration name {name}"
            ));
        }
        match section.text("primaryVMSet", violations) {
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
    for message in found {
        fields.reject(key, key, message, violations);
    }
    list
}

/// The limits of load balancer requests: those of `loadBalancerRateLimit` win over the global keys.
fn rate_limits(fields: &Fields, violations: &mut Vec<Violation>) -> Option<RateLimits> {
    let stanza = fields.section("loadBalancerRateLimit", violations).unwrap_or_default();
    let mut is_enabled = |fields: &Fields| fields.boolean("cloudProviderRateLimit", violations);
    let global = is_enabled(fields);
    if !is_enabled(&stanza).or(global).unwrap_or(false) {
        return None;
    }
    let mut limit = |suffix: &str| {
        let mut number = |name: &str| {
            let key = format!("cloudProviderRateLimit{name}{suffix}");
            let own = stanza.number(&key, violations);
            own.or_else(|| fields.number(&key, violations))
                .filter(|number| *number > 0.0)
        };
        let (qps, bucket) = (number("QPS"), number("Bucket"));
        RateLimit {
            qps: qps.unwrap_or(DEFAULT_RATE_LIMIT.qps),
            // A larger bucket is no limit.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is between 1 and a million"
            )]
            bucket: bucket.map_or(DEFAULT_RATE_LIMIT.bucket, |bucket| {
                bucket.clamp(1.0, 1_000_000.0) as u32
            }),
        }
    };
    Some(RateLimits {
        read: limit(""),
        write: limit("Write"),
    })
}
