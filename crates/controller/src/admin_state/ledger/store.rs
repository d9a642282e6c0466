//! The ledger's `ConfigMap`: read at the start of a term, written when the ledger has changed, and verified while it has entries.
//!
//! Invariants (docs/dev/decisions.md 53): every write names the resourceVersion that was read last, so that a leader whose term is over
//! cannot undo what a later leader recorded. What a later leader only found counts as recorded once it has written it again
//! ([`LedgerStore::claim`]): until then a write of the former leader may still arrive. After a conflict, or a write without an answer, the
//! `ConfigMap` is read again and the changes of this term are made in what it contains. Each write has a higher generation than what was
//! read or written before: a `ConfigMap` that was deleted, is older than that, or is no ledger any more, is replaced by the ledger of this
//! term.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use headgate_kubernetes::Decoded;
use headgate_kubernetes::leader::{LEDGER_NAME, Term, new_ledger};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use super::format::{self, Contents, MAX_ENTRIES, MAX_LEDGER_BYTES, VERSION};
use super::{Ledger, LedgerChange};

const CONFIG_MAP: &str = LEDGER_NAME;
/// The namespace of the leader's Lease, too.
const NAMESPACE: &str = "kube-system";
/// The key of the leader's ledger.
const DATA_KEY: &str = "ledger.json";
/// The key of what `headgate verify` sets `Down` in load balancers that are not the cluster's. The leader does not read it.
const VERIFY_DATA_KEY: &str = "verify.json";
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Reads and writes of one flush together.
const MAX_ATTEMPTS: u32 = 6;

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
        "the ConfigMap {NAMESPACE}/{CONFIG_MAP} is not a valid ledger: {0}; correct {DATA_KEY}, for example from a backup. Without it no Down counts as headgate's, and each one stays until you set it back"
    )]
    Malformed(String),
    /// Another version of headgate wrote the ledger.
    #[error(
        "the ConfigMap {NAMESPACE}/{CONFIG_MAP} has a ledger of version {0}, and this headgate knows version {VERSION}; run the version of headgate that wrote it"
    )]
    UnknownVersion(String),
    /// The ledger does not fit into a `ConfigMap`, or its text would stand for more entries than are read.
    #[error(
        "the ledger has {bytes} bytes and {entries} entries; at most {MAX_LEDGER_BYTES} and {MAX_ENTRIES} are stored: give nodes back first"
    )]
    TooLarge {
        /// The length of its text.
        bytes: usize,
        /// Its entries in all pools.
        entries: usize,
    },
    /// This instance is no longer the leader.
    #[error("the term has ended")]
    TermEnded,
}

/// The `ConfigMap` as the last answer of the API server showed it.
struct Stored {
    object: Option<ConfigMap>,
    ledger: Ledger,
    /// The highest generation that was read or written in this term.
    generation: u64,
    /// Whether nothing suggests that the API server has a newer version.
    is_current: bool,
    /// Whether this term wrote this version, or nothing is in it.
    is_claimed: bool,
}

/// The ledger of one term. Clones share it.
#[derive(Clone)]
pub(in super::super) struct LedgerStore {
    api: Api<Decoded<ConfigMap>>,
    /// Where it is.
    data_key: &'static str,
    /// `None` for what needs no leader.
    term: Option<Term>,
    ledger: Arc<watch::Sender<Arc<Ledger>>>,
    /// Whether a `ConfigMap` that was deleted or rolled back is accepted.
    accepts_loss: Arc<AtomicBool>,
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
        Self::load_key(client, DATA_KEY, Some(term)).await
    }

    /// Reads what `headgate verify` has recorded about load balancers that are not the cluster's.
    ///
    /// # Errors
    /// As for [`Self::load`].
    pub(in super::super) async fn load_of_verify(client: Client) -> Result<Self, LedgerError> {
        Self::load_key(client, VERIFY_DATA_KEY, None).await
    }

    async fn load_key(client: Client, data_key: &'static str, term: Option<Term>) -> Result<Self, LedgerError> {
        let api: Api<Decoded<ConfigMap>> = Api::namespaced(client, NAMESPACE);
        let object = get(&api).await?;
        let Contents { generation, ledger } = parse(object.as_ref(), data_key)?;
        let stored = Stored {
            object,
            is_claimed: ledger.is_empty(),
            ledger: ledger.clone(),
            generation,
            is_current: true,
        };
        Ok(Self {
            api,
            data_key,
            term,
            ledger: Arc::new(watch::Sender::new(Arc::new(ledger))),
            accepts_loss: Arc::default(),
            stored: Arc::new(Mutex::new(stored)),
        })
    }

    /// Sets whether a `ConfigMap` that was deleted or rolled back is accepted, so that its entries are forgotten. Otherwise the ledger
    /// of this term replaces it, which is the case at first.
    pub(in super::super) fn set_accepts_loss(&self, accepts_loss: bool) {
        self.accepts_loss.store(accepts_loss, Ordering::Relaxed);
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

    /// Reads the `ConfigMap` while the ledger has entries, and writes the ledger of this term if it is lost there.
    ///
    /// # Errors
    /// If the read or the write failed.
    pub(in super::super) async fn verify(&self) -> Result<(), LedgerError> {
        if self.ledger.borrow().is_empty() {
            return Ok(());
        }
        let version = |object: Option<&ConfigMap>| object.and_then(|object| object.metadata.resource_version.clone());
        let mut stored = self.stored.lock().await;
        if stored.is_current {
            let object = get(&self.api).await?;
            stored.is_current = version(object.as_ref()) == version(stored.object.as_ref());
        }
        drop(stored);
        self.flush().await
    }

    /// Writes the ledger of this term, unless it has written what the API server has already: no write of a former leader that is still
    /// on its way takes effect from then on. Otherwise one that takes an intent back could arrive after this term has taken that intent
    /// for recorded.
    ///
    /// # Errors
    /// As for [`Self::flush`].
    pub(in super::super) async fn claim(&self) -> Result<(), LedgerError> {
        self.write(true).await
    }

    /// Writes the ledger of this term, unless the API server has it already.
    ///
    /// # Errors
    /// If the write failed. It may have had its effect nevertheless.
    pub(in super::super) async fn flush(&self) -> Result<(), LedgerError> {
        self.write(false).await
    }

    async fn write(&self, is_claim: bool) -> Result<(), LedgerError> {
        let mut stored = self.stored.lock().await;
        for _ in 0..MAX_ATTEMPTS {
            if !stored.is_current {
                let object = get(&self.api).await?;
                self.adopt(&mut stored, object)?;
            }
            let ledger = self.ledger();
            if *ledger == stored.ledger && (stored.is_claimed || !is_claim) {
                return Ok(());
            }
            if let Some(term) = &self.term {
                term.clocks_agree().await;
                if term.permit().is_err() {
                    return Err(LedgerError::TermEnded);
                }
            }
            let generation = stored.generation + 1;
            match put(&self.api, self.data_key, stored.object.as_ref(), generation, &ledger).await {
                Ok(object) => {
                    *stored = Stored {
                        object: Some(object),
                        ledger: Ledger::clone(&ledger),
                        generation,
                        is_current: true,
                        is_claimed: true,
                    };
                    return Ok(());
                }
                Err(LedgerError::Write(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                    stored.is_current = false;
                }
                // No request was sent.
                Err(error @ LedgerError::TooLarge { .. }) => return Err(error),
                Err(error) => {
                    stored.is_current = false;
                    return Err(error);
                }
            }
        }
        Err(LedgerError::Contended)
    }

    /// Takes over what the API server has now. If the ledger of this term is lost there, it stays as it is, to be written again;
    /// otherwise another writer's entries stay, and this term's changes are made again.
    fn adopt(&self, stored: &mut Stored, object: Option<ConfigMap>) -> Result<(), LedgerError> {
        let accepts_loss = self.accepts_loss.load(Ordering::Relaxed);
        let (found, loss) = match parse(object.as_ref(), self.data_key) {
            Err(error @ LedgerError::Malformed(_)) if !accepts_loss => (Contents::default(), Some(error.to_string())),
            Err(error) => return Err(error),
            Ok(found) => {
                let loss = if object.is_none() && stored.object.is_some() {
                    Some("it was deleted".to_owned())
                } else if found.generation < stored.generation {
                    Some(format!(
                        "its generation is {}, and was {}",
                        found.generation, stored.generation
                    ))
                } else if found.generation == stored.generation && found.ledger != stored.ledger {
                    Some(format!("it was edited: its generation is still {}", found.generation))
                } else {
                    None
                };
                (found, loss)
            }
        };
        if let Some(reason) = loss.filter(|_| !accepts_loss) {
            tracing::warn!(
                reason,
                "ledger deleted or replaced by another writer; the leader writes what it knows"
            );
        } else {
            self.ledger.send_if_modified(|ledger| {
                let merged = found.ledger.with_changes(ledger, &stored.ledger);
                let is_changed = **ledger != merged;
                *ledger = Arc::new(merged);
                is_changed
            });
        }
        *stored = Stored {
            object,
            is_claimed: found.ledger.is_empty(),
            ledger: found.ledger,
            generation: found.generation.max(stored.generation),
            is_current: true,
        };
        Ok(())
    }
}

/// Reads the ledger without a term, for a report.
///
/// # Errors
/// If the `ConfigMap` cannot be read, or is not a ledger.
pub async fn read(client: Client) -> Result<Ledger, LedgerError> {
    read_key(client, DATA_KEY).await
}

/// Reads what `headgate verify` has recorded about load balancers that are not the cluster's, for a report.
///
/// # Errors
/// As for [`read`].
pub async fn read_of_verify(client: Client) -> Result<Ledger, LedgerError> {
    read_key(client, VERIFY_DATA_KEY).await
}

async fn read_key(client: Client, data_key: &str) -> Result<Ledger, LedgerError> {
    let object = get(&Api::namespaced(client, NAMESPACE)).await?;
    parse(object.as_ref(), data_key).map(|contents| contents.ledger)
}

async fn get(api: &Api<Decoded<ConfigMap>>) -> Result<Option<ConfigMap>, LedgerError> {
    let answer = timeout(REQUEST_TIMEOUT, api.get_opt(CONFIG_MAP)).await;
    let object = answer.map_err(|_| LedgerError::Timeout)?;
    let object = object.and_then(|object| object.map(Decoded::into_object).transpose());
    object.map_err(LedgerError::Read)
}

fn parse(object: Option<&ConfigMap>, data_key: &str) -> Result<Contents, LedgerError> {
    let text = object.and_then(|object| object.data.as_ref()?.get(data_key));
    text.map_or_else(|| Ok(Contents::default()), |text| Contents::parse(text))
}

async fn put(
    api: &Api<Decoded<ConfigMap>>,
    data_key: &str,
    last: Option<&ConfigMap>,
    generation: u64,
    ledger: &Ledger,
) -> Result<ConfigMap, LedgerError> {
    let text = format::encode(generation, ledger)?;
    let mut object = last.cloned().unwrap_or_else(new_ledger);
    object.data.get_or_insert_default().insert(data_key.to_owned(), text);
    let object = Decoded::Object(object);
    let params = PostParams::default();
    let write = async {
        if last.is_some() {
            api.replace(CONFIG_MAP, &params, &object).await
        } else {
            api.create(&params, &object).await
        }
    };
    let answer = timeout(REQUEST_TIMEOUT, write).await;
    let written = answer.map_err(|_| LedgerError::Timeout)?.and_then(Decoded::into_object);
    written.map_err(|error| {
        if let kube::Error::Api(status) = &error {
            tracing::debug!(code = status.code, "ledger write rejected");
        } else {
            tracing::debug!(
                error = headgate_core::telemetry::error_chain(&error),
                "ledger write failed"
            );
        }
        LedgerError::Write(error)
    })
}
