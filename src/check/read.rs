//! Reads the world, each part by itself and within a time limit.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::anyhow;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use headgate_azure::{BackendPoolType, TokenClaims};
use headgate_controller::admin_state::{ClusterTarget, Ledger};
use headgate_core::service::ServiceObject;
use headgate_core::telemetry::error_chain;
use headgate_kubernetes::load_balancer_services;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use super::azure::{AzureWorld, Configuration, LoadBalancers, Permissions, Seen};
use super::cluster::KINDS;
use super::rights::{Account, AccountRights, Right, accounts, needed};
use super::workloads::Workload;
use super::{Read, Server, World};
use crate::agent::{ArmConnection, AzureAccess};
use crate::api_error::within;
use crate::config::Settings;
use crate::failure::Failure;
use crate::status::{list, list_nodes, read_load_balancers};

/// Time for one small request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for each part of what Azure shows.
const AZURE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pools that are read to find the virtual network.
const MAX_POOLS: usize = 5;
/// Reviews of access that are sent at the same time.
const MAX_CONCURRENT_REVIEWS: usize = 8;

/// Reads the world.
///
/// # Errors
/// When the API server cannot be reached. An answer that refuses a request is a part of the world.
pub(crate) async fn read_world(client: &Client, settings: &Settings) -> Result<World, Failure> {
    let server = read_version(client).await?;
    let (selecting, load_balancers) = load_balancer_services(client);
    let (nodes, services, kinds, (workloads, accounts), azure) = futures::join!(
        list_nodes(client),
        list::<ServiceObject>(&selecting, load_balancers),
        read_kinds(client),
        read_workloads_and_rights(client, settings),
        read_azure(client, settings)
    );
    Ok(World {
        settings: settings.clone(),
        server,
        served: kinds,
        accounts,
        nodes: nodes.map_err(|error| error.to_string()),
        services,
        workloads,
        azure,
    })
}

async fn bounded<T>(request: impl Future<Output = kube::Result<T>>) -> Read<T> {
    within(REQUEST_TIMEOUT, request)
        .await
        .map_err(|error| error.to_string())
}

async fn read_version(client: &Client) -> Result<Read<Server>, Failure> {
    let info = match within(REQUEST_TIMEOUT, client.apiserver_version()).await {
        Ok(info) => info,
        Err(error) if error.code() > 0 => return Ok(Err(error.to_string())),
        Err(error) => return Err(Failure::environment(anyhow!("the API server does not answer: {error}"))),
    };
    // Some providers append a plus sign.
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
    let server = number(&info.major)
        .zip(number(&info.minor))
        .map(|(major, minor)| Server {
            version: info.git_version.clone(),
            major,
            minor,
        });
    Ok(server.ok_or_else(|| format!("{}.{} is no version", info.major, info.minor)))
}

async fn read_kinds(client: &Client) -> Read<BTreeSet<String>> {
    let versions: BTreeSet<&str> = KINDS.iter().map(|kind| kind.version).collect();
    let mut served = BTreeSet::new();
    for version in versions {
        match within(REQUEST_TIMEOUT, client.list_api_group_resources(version)).await {
            Ok(list) => served.extend(
                list.resources
                    .into_iter()
                    .map(|kind| format!("{version}/{}", kind.name)),
            ),
            Err(error) if error.code() == 404 => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(served)
}

async fn read_workloads_and_rights(
    client: &Client,
    settings: &Settings,
) -> (Read<Vec<Workload>>, Read<Vec<AccountRights>>) {
    let workloads = read_workloads(client).await;
    let accounts = read_rights(client, settings, workloads.as_deref().unwrap_or_default()).await;
    (workloads, accounts)
}

async fn read_workloads(client: &Client) -> Read<Vec<Workload>> {
    let (deployments, daemon_sets, stateful_sets) = futures::join!(
        list::<Deployment>(client, ListParams::default()),
        list::<DaemonSet>(client, ListParams::default()),
        list::<StatefulSet>(client, ListParams::default())
    );
    let deployments = deployments?.into_iter().map(Workload::from);
    let daemon_sets = daemon_sets?.into_iter().map(Workload::from);
    let stateful_sets = stateful_sets?.into_iter().map(Workload::from);
    Ok(deployments.chain(daemon_sets).chain(stateful_sets).collect())
}

async fn read_rights(client: &Client, settings: &Settings, workloads: &[Workload]) -> Read<Vec<AccountRights>> {
    let reviews = Api::<SelfSubjectReview>::all(client.clone());
    let (params, review) = (PostParams::default(), SelfSubjectReview::default());
    let review = bounded(reviews.create(&params, &review)).await?;
    let own = review
        .status
        .and_then(|status| status.user_info?.username)
        .unwrap_or_default();
    let mut found = Vec::new();
    for account in accounts(&own, workloads, settings) {
        let rights = needed(settings, &account);
        let is_own = account.user() == own;
        let missing = stream::iter(rights)
            .map(|right| review_right(client, &account, is_own, right))
            .buffered(MAX_CONCURRENT_REVIEWS)
            .try_filter_map(|missing| std::future::ready(Ok(missing)))
            .try_collect()
            .await;
        found.push(AccountRights { account, missing });
    }
    Ok(found)
}

/// The right, if the account does not have it.
async fn review_right(client: &Client, account: &Account, is_own: bool, right: Right) -> Read<Option<Right>> {
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((right.resource, ""));
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let attributes = ResourceAttributes {
        verb: text(right.verb),
        group: text(right.group),
        resource: text(resource),
        subresource: text(subresource),
        namespace: text(&right.namespace),
        name: text(&right.name),
        ..ResourceAttributes::default()
    };
    let params = PostParams::default();
    let status = if is_own {
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        let reviews = Api::<SelfSubjectAccessReview>::all(client.clone());
        bounded(reviews.create(&params, &review)).await?.status
    } else {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                resource_attributes: Some(attributes),
                user: Some(account.user()),
                groups: Some(account.groups()),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews = Api::<SubjectAccessReview>::all(client.clone());
        bounded(reviews.create(&params, &review)).await?.status
    };
    Ok((!status.is_some_and(|status| status.allowed)).then_some(right))
}

async fn read_azure(client: &Client, settings: &Settings) -> Option<Read<AzureWorld>> {
    if settings.azure.is_configured() {
        Some(read_configured_azure(client, settings).await)
    } else {
        None
    }
}

async fn read_configured_azure(client: &Client, settings: &Settings) -> Read<AzureWorld> {
    let access = AzureAccess::of_command(settings.azure.clone(), client.clone());
    let connected = access.connect_within(AZURE_TIMEOUT).await;
    let connected = connected.map_err(|error| error_chain(&error))?;
    let target = ClusterTarget::new(connected.arm.clone(), &connected.config, &settings.azure.cluster_name);
    let target = target.map_err(|error| error.to_string())?;
    let mut configuration = Configuration {
        group: target.scope.group.path(),
        network: connected.config.virtual_network_id(),
        cluster_name: settings.azure.cluster_name.clone(),
        pool_type: connected.config.backend_pool_type,
    };
    let seen = read_seen(&connected, &target, &mut configuration).await;
    Ok(AzureWorld { configuration, seen })
}

/// What the identity sees, beside it the virtual network, where the pools alone name it.
async fn read_seen(connected: &ArmConnection, target: &ClusterTarget, configuration: &mut Configuration) -> Read<Seen> {
    let token = timeout(AZURE_TIMEOUT, connected.tokens.token()).await;
    let token = token.map_err(|_| format!("no answer within {} s", AZURE_TIMEOUT.as_secs()))?;
    let token = token.map_err(|error| error.to_string())?;
    let load_balancers = read_cluster_load_balancers(target.clone()).await;
    if configuration.network.is_none() && configuration.pool_type == BackendPoolType::NodeIp {
        configuration.network = network_of_pools(target, &load_balancers).await;
    }
    let (permissions, deny_assignments) = futures::join!(
        read_permissions(connected, target, configuration),
        read_deny_assignments(target, configuration),
    );
    Ok(Seen {
        token: TokenClaims::read(&token),
        permissions,
        deny_assignments,
        load_balancers,
    })
}

/// The id of the virtual network that pools of addresses name, themselves or in their entries.
async fn network_of_pools(target: &ClusterTarget, load_balancers: &Read<LoadBalancers>) -> Option<String> {
    let deadline = Instant::now() + AZURE_TIMEOUT;
    let found = load_balancers.as_ref().ok()?.found.iter();
    let pools = found.flat_map(|found| &found.pools);
    for pool in pools.filter(|pool| !pool.entries.is_empty()).take(MAX_POOLS) {
        let document = target.arm.get_pool(&pool.id, deadline).await.ok()?.document;
        let named = |path: &str| document.pointer(path).and_then(Value::as_str);
        let network = named("/properties/virtualNetwork/id")
            .or_else(|| named("/properties/loadBalancerBackendAddresses/0/properties/virtualNetwork/id"));
        if let Some(network) = network {
            return Some(network.to_owned());
        }
    }
    None
}

async fn read_permissions(
    connected: &ArmConnection,
    target: &ClusterTarget,
    configuration: &Configuration,
) -> Read<Permissions> {
    let deadline = Instant::now() + AZURE_TIMEOUT;
    let group = &target.scope.group;
    let at = async |scope: &str| {
        let listed = target.arm.list_permissions(group, scope, deadline).await;
        listed.map_err(|error| error.to_string())
    };
    let of_group = at(&configuration.group).await?;
    let network = match &configuration.network {
        Some(network) if connected.config.backend_pool_type == BackendPoolType::NodeIp => at(network).await?,
        _ => of_group.clone(),
    };
    Ok(Permissions {
        group: of_group,
        network,
    })
}

async fn read_deny_assignments(
    target: &ClusterTarget,
    configuration: &Configuration,
) -> Read<Vec<headgate_azure::DenyAssignment>> {
    let deadline = Instant::now() + AZURE_TIMEOUT;
    let listed = target
        .arm
        .list_deny_assignments(&target.scope.group, &configuration.group, deadline);
    listed.await.map_err(|error| error.to_string())
}

async fn read_cluster_load_balancers(target: ClusterTarget) -> Read<LoadBalancers> {
    let read = read_load_balancers(Ok(target.clone()), &Ledger::default()).await?;
    let found: Vec<_> = read.listing.load_balancers.values().cloned().collect();
    let mut others = Vec::new();
    if found.is_empty() {
        let deadline = Instant::now() + AZURE_TIMEOUT;
        let listed = target
            .arm
            .list_load_balancers(&target.scope.group, |_| false, |_| (), deadline)
            .await;
        let listed = listed.map_err(|error| error.to_string())?;
        others = listed.others.iter().map(|id| id.name().to_owned()).collect();
    }
    Ok(LoadBalancers { found, others })
}
