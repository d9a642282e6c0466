//! The ledger's `ConfigMap`: read at the start of a term, written when the ledger has changed.
//!
//! Invariant: every write names the resourceVersion that was read last, so that a leader whose term is over cannot undo what a
//! later leader recorded. After a conflict, or a write without an answer, the `ConfigMap` is read again and the
//! changes of this term are made in what it contains.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headgate_leader::Term;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use serde::Deserialize as _;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::{Ledger, LedgerChange};

const CONFIG_MAP: &str = "headgate-admin-state";
/// The namespace of the leader's Lease, too.
const NAMESPACE: &str = "kube-system";
/// The only key that headgate writes.
const DATA_KEY: &str = "ledger.json";
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Reads and writes of one flush together.
const MAX_ATTEMPTS: u32 = 6;
/// The API server's limit is 1 MiB for all data of a `ConfigMap`.
const MAX_LEDGER_BYTES: usize = 1_000_000;

/// Why the ledger could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The API server rejected the read, or was not reached.
    #[error("the ConfigMap {NAMESPACE}/{CONFIG_MAP} could not be read: {0}")]
    Read(#[source] kube::Error),
    /// The API server rejected the write, or was not reached.
    #[error("the ConfigMap {NAMESPACE}/{CONFIG_MAP} could not be written: {0}")]
    Write(#[source] kube::Error),
    /// A request took longer than [`REQUEST_TIMEOUT`].
    #[error("the API server did not answer a request for the ConfigMap {NAMESPACE}/{CONFIG_MAP} within {} s", REQUEST_TIMEOUT.as_secs())]
    Timeout,
    /// Every attempt met a newer version.
    #[error("the ConfigMap {NAMESPACE}/{CONFIG_MAP} was changed by another writer {MAX_ATTEMPTS} times in a row")]
    Contended,
    /// The data is not a ledger.
    #[error(
        "the ConfigMap {NAMESPACE}/{CONFIG_MAP} is not a valid ledger: {0}; correct {DATA_KEY}, or delete the ConfigMap: then no Down counts as headgate's"
    )]
    Malformed(String),
    /// The ledger has this many bytes.
    #[error("the ledger has {0} bytes, and a ConfigMap holds at most {MAX_LEDGER_BYTES}")]
    TooLarge(usize),
    /// This instance is no longer the leader.
    #[error("the term has ended")]
    TermEnded,
}

/// The `ConfigMap` as the last answer of the API server showed it.
struct Stored {
    object: Option<ConfigMap>,
    ledger: Ledger,
    /// Whether nothing suggests that the API server has a newer version.
    is_current: bool,
}

/// The ledger of one term. Clones share it.
#[derive(Clone)]
pub(in super::super) struct LedgerStore {
    api: Api<ConfigMap>,
    term: Term,
    ledger: Arc<watch::Sender<Arc<Ledger>>>,
    /// Locked across requests, so that one flush runs at a time; each request is bounded.
    stored: Arc<Mutex<Stored>>,
}

impl std::fmt::Debug for LedgerStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LedgerStore").finish_non_exhaustive()
    }
}

impl LedgerStore {
    /// Reads the `ConfigMap`; a missing one is an empty ledger.
    ///
    /// # Errors
    /// If it cannot be read, or is not a ledger.
    pub(in super::super) async fn load(client: Client, term: Term) -> Result<Self, LedgerError> {
        let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let object = get(&api).await?;
        let ledger = parse(object.as_ref())?;
        let stored = Stored {
            object,
            ledger: ledger.clone(),
            is_current: true,
        };
        Ok(Self {
            api,
            term,
            ledger: Arc::new(watch::Sender::new(Arc::new(ledger))),
            stored: Arc::new(Mutex::new(stored)),
        })
    }

    /// The ledger of this term, including what is not written yet.
    #[must_use]
    pub(in super::super) fn ledger(&self) -> Arc<Ledger> {
        self.ledger.borrow().clone()
    }

    /// Changes whenever the ledger of this term does.
    #[must_use]
    pub(in super::super) fn subscribe(&self) -> watch::Receiver<Arc<Ledger>> {
        self.ledger.subscribe()
    }

    /// Makes changes in the ledger of this term; [`Self::flush`] writes them.
    pub(in super::super) fn apply(&self, changes: impl IntoIterator<Item = LedgerChange>) {
        let mut changes = changes.into_iter().peekable();
        if changes.peek().is_none() {
            return;
        }
        self.ledger.send_if_modified(|ledger| {
            let before = Arc::clone(ledger);
            let next = Arc::make_mut(ledger);
            for change in changes {
                next.apply(change);
            }
            **ledger != *before
        });
    }

    /// Writes the ledger of this term, unless the API server has it already.
    ///
    /// # Errors
    /// If the write failed. It may have had its effect nevertheless.
    pub(in super::super) async fn flush(&self) -> Result<(), LedgerError> {
        let mut stored = self.stored.lock().await;
        for _ in 0..MAX_ATTEMPTS {
            let ledger = self.ledger();
            if stored.is_current && *ledger == stored.ledger {
                return Ok(());
            }
            if !stored.is_current {
                let object = get(&self.api).await?;
                let found = parse(object.as_ref())?;
                // Another writer's entries stay; this term's changes are made again.
                self.ledger.send_if_modified(|ledger| {
                    let mut merged = found.clone();
                    let changes = ledger.changes_since(&stored.ledger);
                    for change in changes {
                        merged.apply(change);
                    }
                    let is_changed = **ledger != merged;
                    *ledger = Arc::new(merged);
                    is_changed
                });
                *stored = Stored {
                    object,
                    ledger: found,
                    is_current: true,
                };
                continue;
            }
            self.term.clocks_agree().await;
            if self.term.permit().is_err() {
                return Err(LedgerError::TermEnded);
            }
            match put(&self.api, stored.object.as_ref(), &ledger).await {
                Ok(object) => {
                    stored.object = Some(object);
                    stored.ledger = Ledger::clone(&ledger);
                    return Ok(());
                }
                Err(LedgerError::Write(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                    stored.is_current = false;
                }
                // No request was sent.
                Err(error @ LedgerError::TooLarge(_)) => return Err(error),
                Err(error) => {
                    stored.is_current = false;
                    return Err(error);
                }
            }
        }
        Err(LedgerError::Contended)
    }
}

/// Reads the ledger without a term, for a report.
///
/// # Errors
/// If the `ConfigMap` cannot be read, or is not a ledger.
pub async fn read(client: Client) -> Result<Ledger, LedgerError> {
    let object = get(&Api::namespaced(client, NAMESPACE)).await?;
    parse(object.as_ref())
}

async fn get(api: &Api<ConfigMap>) -> Result<Option<ConfigMap>, LedgerError> {
    let answer = timeout(REQUEST_TIMEOUT, api.get_opt(CONFIG_MAP)).await;
    answer.map_err(|_| LedgerError::Timeout)?.map_err(LedgerError::Read)
}

fn parse(object: Option<&ConfigMap>) -> Result<Ledger, LedgerError> {
    let text = object.and_then(|object| object.data.as_ref()?.get(DATA_KEY));
    text.map_or_else(
        || Ok(Ledger::default()),
        |text| {
            // Derived code alone would accept an array for an object.
            let parsed =
                serde_json::from_str(text).and_then(|object: serde_json::Map<_, _>| Ledger::deserialize(object));
            parsed.map_err(|error| LedgerError::Malformed(error.to_string()))
        },
    )
}

async fn put(api: &Api<ConfigMap>, last: Option<&ConfigMap>, ledger: &Ledger) -> Result<ConfigMap, LedgerError> {
    let text = serde_json::to_string(ledger).map_err(|error| LedgerError::Malformed(error.to_string()))?;
    if text.len() > MAX_LEDGER_BYTES {
        return Err(LedgerError::TooLarge(text.len()));
    }
    let mut object = last.cloned().unwrap_or_else(|| ConfigMap {
        metadata: ObjectMeta {
            name: Some(CONFIG_MAP.to_owned()),
            labels: Some(BTreeMap::from([(
                "app.kubernetes.io/name".to_owned(),
                "headgate".to_owned(),
            )])),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    });
    object.data.get_or_insert_default().insert(DATA_KEY.to_owned(), text);
    let params = PostParams::default();
    let write = async {
        if last.is_some() {
            api.replace(CONFIG_MAP, &params, &object).await
        } else {
            api.create(&params, &object).await
        }
    };
    let answer = timeout(REQUEST_TIMEOUT, write).await;
    answer.map_err(|_| LedgerError::Timeout)?.map_err(|error| {
        if let kube::Error::Api(status) = &error {
            tracing::debug!(code = status.code, "ledger write rejected");
        } else {
            tracing::debug!(error = headgate_telemetry::error_chain(&error), "ledger write failed");
        }
        LedgerError::Write(error)
    })
}
