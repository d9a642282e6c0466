//! The resources there are at the start, from a file.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::accept;
use super::arm::group_key;
use super::id::ResourceId;
use super::identity::IdentitySettings;
use super::imds::ImdsSettings;
use super::members::Members;
use super::network;
use super::pool::WrittenBy;
use super::record::Object;
use super::store::{Group, Store};

/// A seed file may be this large.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// What a seed file says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Seed {
    /// ARM documents as a GET would show them, each with its `id`; read-only fields may be left out.
    #[serde(default)]
    pub resources: Vec<Object>,
    /// Who may call; everybody, unless accounts are listed.
    #[serde(default)]
    pub(super) identity: IdentitySettings,
    /// What IMDS tells.
    #[serde(default)]
    pub(super) imds: ImdsSettings,
}

/// A seed cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// The file cannot be read.
    #[error("cannot read the seed file {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is too large.
    #[error("the seed file {} has more than {MAX_BYTES} bytes", .0.display())]
    TooLarge(PathBuf),
    /// It is no seed.
    #[error("the seed file {} is not a seed: {source}; it needs {{\"resources\": [ARM documents, each with its id]}}, as JSON or YAML", file.display())]
    Parse {
        /// The file.
        file: PathBuf,
        /// Why.
        source: serde_yaml::Error,
    },
    /// One of its documents cannot be used.
    #[error("resource {number} of the seed, {id}, cannot be used: {why}")]
    Resource {
        /// Which, from 1.
        number: usize,
        /// Its id, as far as there is one.
        id: String,
        /// Why.
        why: String,
    },
}

impl Seed {
    /// Reads a seed file, JSON or YAML.
    ///
    /// # Errors
    /// When it cannot be read or is no seed.
    pub fn read(file: &Path) -> Result<Self, SeedError> {
        let read = |source| SeedError::Read {
            file: file.to_owned(),
            source,
        };
        if std::fs::metadata(file).map_err(read)?.len() > MAX_BYTES {
            return Err(SeedError::TooLarge(file.to_owned()));
        }
        let text = std::fs::read_to_string(file).map_err(read)?;
        // JSON is YAML.
        serde_yaml::from_str(&text).map_err(|source| SeedError::Parse {
            file: file.to_owned(),
            source,
        })
    }

    /// Puts what it says into a store.
    ///
    /// # Errors
    /// When one of its documents cannot be.
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
                super::record::strip(&mut document);
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
            if super::record::owner(&parsed).is_some() {
                return Err(failed(
                    "it lives in its parent's document, so it has to stand there".to_owned(),
                ));
            }
            if store.find(&parsed).is_some() {
                return Err(failed("it is there twice".to_owned()));
            }
            let group = Group {
                subscription: parsed.subscription.clone(),
                name: parsed.group.clone(),
                document: Object::new(),
            };
            let key = group_key(&group.subscription, &group.name);
            store.groups.entry(key).or_insert(group);
            let document = accept::document(document.clone(), &parsed, None, &Members::default(), WrittenBy::Seed);
            let mut document = document.map_err(|error| failed(error.told()))?;
            network::assign(store, &parsed, &mut document, true).map_err(|error| failed(error.message))?;
            store.seed(parsed, document);
        }
        Ok(())
    }
}

/// The subscription and name in a resource group's id.
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
