//! The seed: the resources and accounts that the emulator starts with.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use super::arm::group_key;
use super::authorization::Authorization;
use super::id::ResourceId;
use super::identity::IdentitySettings;
use super::network;
use super::nic_members::NicMembers;
use super::normalize;
use super::pool::PoolSource;
use super::resource::Object;
use super::store::{Group, Store};

/// Size of a seed file.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// The content of a seed file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Seed {
    /// ARM documents as a GET shows them, each with its `id`. Read-only fields may be left out.
    #[serde(default)]
    pub resources: Vec<Object>,
    /// The accounts that get tokens; without a list every account does.
    #[serde(default)]
    pub(super) identity: IdentitySettings,
    /// What callers may do, and what is denied to them.
    #[serde(default)]
    pub(super) authorization: Authorization,
}

/// A seed that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// The file cannot be read.
    #[error("cannot read the seed file {}: {source}", file.display())]
    Read {
        /// The path of the seed file.
        file: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file is too large.
    #[error("the seed file {} has more than {MAX_BYTES} bytes", .0.display())]
    TooLarge(PathBuf),
    /// The file is not a seed.
    #[error("the seed file {} is not a seed: {source}; it needs {{\"resources\": [ARM documents, each with its id]}}, as JSON or YAML", file.display())]
    Parse {
        /// The path of the seed file.
        file: PathBuf,
        /// The error of the parser.
        source: serde_yaml::Error,
    },
    /// A document cannot be used.
    #[error("resource {number} of the seed, {id}, cannot be used: {why}")]
    Resource {
        /// The position of the document, counted from 1.
        number: usize,
        /// Its id, or `(no id)`.
        id: String,
        /// What is wrong with the document.
        why: String,
    },
}

impl Seed {
    /// Reads a seed file, which is JSON or YAML.
    ///
    /// # Errors
    /// The file cannot be read or is not a seed.
    pub fn read(file: &Path) -> Result<Self, SeedError> {
        let read = |source| SeedError::Read {
            file: file.to_owned(),
            source,
        };
        if std::fs::metadata(file).map_err(read)?.len() > MAX_BYTES {
            return Err(SeedError::TooLarge(file.to_owned()));
        }
        let text = std::fs::read_to_string(file).map_err(read)?;
        // JSON is a subset of YAML.
        serde_yaml::from_str(&text).map_err(|source| SeedError::Parse {
            file: file.to_owned(),
            source,
        })
    }

    /// Adds the resources to a store.
    ///
    /// # Errors
    /// A document cannot be used.
    pub(super) fn apply(&self, store: &mut Store) -> Result<(), SeedError> {
        for (number, document) in (1..).zip(&self.resources) {
            let id = document.get("id").and_then(Value::as_str).unwrap_or("(no id)");
            let failed = |why: String| SeedError::Resource {
                number,
                id: id.to_owned(),
                why,
            };
            if let Some((subscription, group)) = group_id(id) {
                let mut document = document.clone();
                super::resource::strip_read_only(&mut document);
                let group = Group {
                    subscription: subscription.to_owned(),
                    name: group.to_owned(),
                    document,
                };
                store.groups.insert(group_key(subscription, &group.name), group);
                continue;
            }
            let Some(parsed) = ResourceId::parse(id) else {
                return Err(failed(
                    "its id must be like /subscriptions/SUBSCRIPTION/resourceGroups/GROUP, for a resource with \
                     /providers/Microsoft.Network/loadBalancers/NAME or the like behind it"
                        .to_owned(),
                ));
            };
            if super::resource::owner(&parsed).is_some() {
                return Err(failed(
                    "it is a child in its parent's document; write it there".to_owned(),
                ));
            }
            if store.find(&parsed).is_some() {
                return Err(failed("another resource of the seed has the same id".to_owned()));
            }
            let group = Group {
                subscription: parsed.subscription.clone(),
                name: parsed.group.clone(),
                document: Object::new(),
            };
            let key = group_key(&group.subscription, &group.name);
            store.groups.entry(key).or_insert(group);
            let document = normalize::normalize_document(
                document.clone(),
                &parsed,
                None,
                &NicMembers::default(),
                PoolSource::Seed,
            );
            let mut document = document.map_err(|error| failed(error.summary()))?;
            network::assign(store, &parsed, &mut document, true).map_err(|error| failed(error.message))?;
            store.seed(parsed, document);
        }
        Ok(())
    }
}

/// The document of a load balancer in a resource group with these pools and their addresses, each with a rule that is probed.
pub fn probed_load_balancer(group: &str, name: &str, pools: &[(&str, Value)]) -> Value {
    let id = format!("{group}/providers/Microsoft.Network/loadBalancers/{name}");
    let inside = |kind: &str, name: &str| json!({"id": format!("{id}/{kind}/{name}")});
    let network = format!("{group}/providers/Microsoft.Network/virtualNetworks/nodes");
    let pool = |(name, addresses): &(&str, Value)| {
        json!({"name": name, "properties": {
            "drainPeriodInSeconds": 30, "virtualNetwork": {"id": network}, "loadBalancerBackendAddresses": addresses}})
    };
    // Rules of one load balancer need ports of their own.
    let rules = (80..).zip(pools).map(|(port, (pool, _))| {
        json!({"name": format!("{pool}-rule"), "properties": {
            "frontendIPConfiguration": inside("frontendIPConfigurations", "front"),
            "backendAddressPool": inside("backendAddressPools", pool), "probe": inside("probes", "probe"),
            "protocol": "Tcp", "frontendPort": port, "backendPort": port}})
    });
    json!({"id": id, "location": "eastus", "sku": {"name": "Standard"}, "properties": {
        "frontendIPConfigurations": [{"name": "front", "properties": {"privateIPAddress": "10.9.9.9"}}],
        "backendAddressPools": pools.iter().map(pool).collect::<Vec<_>>(),
        "loadBalancingRules": rules.collect::<Vec<_>>(),
        "probes": [{"name": "probe", "properties": {"protocol": "Http", "port": 10456, "requestPath": "/healthz", "intervalInSeconds": 5}}]}})
}

/// The subscription and the name in the id of a resource group.
fn group_id(id: &str) -> Option<(&str, &str)> {
    let words: Vec<&str> = id.trim_matches('/').split('/').collect();
    match words.as_slice() {
        [first, subscription, groups, group]
            if first.eq_ignore_ascii_case("subscriptions") && groups.eq_ignore_ascii_case("resourceGroups") =>
        {
            Some((subscription, group))
        }
        _ => None,
    }
}
