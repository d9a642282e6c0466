//! The ledger in the cluster: read at the start of a term, written when it has changed.
//!
//! Invariant: every write follows the version that was read last, so that a leader whose term is over takes nothing off
//! the record that a later one put there. After a conflict, or an answer that did not come, it is read again, and
//! this term's changes are made in what is found.

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

use super::{Book, Line};

/// The `ConfigMap`.
pub const LEDGER: &str = "headgate-admin-state";
/// Where it stands, beside the leader's Lease.
const NAMESPACE: &str = "kube-system";
/// Its one key.
const KEY: &str = "ledger.json";
const ONE_REQUEST: Duration = Duration::from_secs(5);
/// Attempts of one write.
const ATTEMPTS: u32 = 6;
/// etcd takes no object larger than 1.5 MiB, a `ConfigMap`'s data may be 1 MiB.
const MOST_BYTES: usize = 1_000_000;

/// Why the ledger could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The API server refused, or could not be reached.
    #[error("the ConfigMap {NAMESPACE}/{LEDGER} could not be {done}: {source}")]
    Api {
        /// `read` or `written`.
        done: &'static str,
        /// Why.
        #[source]
        source: kube::Error,
    },
    /// It took too long.
    #[error("the API server did not answer about the ConfigMap {NAMESPACE}/{LEDGER} in {} s", ONE_REQUEST.as_secs())]
    Timeout,
    /// Somebody else writes it all the time.
    #[error("the ConfigMap {NAMESPACE}/{LEDGER} was changed by somebody else {ATTEMPTS} times in a row")]
    Contended,
    /// What stands in it is no ledger.
    #[error(
        "the ConfigMap {NAMESPACE}/{LEDGER} cannot be understood: {0}; mend {KEY}, or delete the ConfigMap: then no Down counts as headgate's"
    )]
    Malformed(String),
    /// It does not fit.
    #[error("the ledger has {0} bytes, and a ConfigMap takes {MOST_BYTES}")]
    TooLarge(usize),
    /// Somebody else leads.
    #[error("the term has ended")]
    TermEnded,
}

/// What the server is known to have.
struct Kept {
    object: Option<ConfigMap>,
    book: Book,
    /// Whether that is the latest, as far as is known.
    sure: bool,
}

/// The ledger of one term; clones are the same.
#[derive(Clone)]
pub(in super::super) struct Ledger {
    api: Api<ConfigMap>,
    term: Term,
    book: Arc<watch::Sender<Arc<Book>>>,
    /// Held across requests, so that one is under way at a time; each is bounded.
    kept: Arc<Mutex<Kept>>,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

impl Ledger {
    /// Reads it.
    ///
    /// # Errors
    /// When it cannot be read, or is none.
    pub(in super::super) async fn load(client: Client, term: Term) -> Result<Self, LedgerError> {
        let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let object = get(&api).await?;
        let book = book(object.as_ref())?;
        let kept = Kept {
            object,
            book: book.clone(),
            sure: true,
        };
        Ok(Self {
            api,
            term,
            book: Arc::new(watch::Sender::new(Arc::new(book))),
            kept: Arc::new(Mutex::new(kept)),
        })
    }

    /// What this term has on record, written or about to be.
    #[must_use]
    pub(in super::super) fn book(&self) -> Arc<Book> {
        self.book.borrow().clone()
    }

    /// Its changes.
    #[must_use]
    pub(in super::super) fn changes(&self) -> watch::Receiver<Arc<Book>> {
        self.book.subscribe()
    }

    /// Makes these lines part of the record; [`Self::flush`] writes it.
    pub(in super::super) fn note(&self, lines: impl IntoIterator<Item = Line>) {
        let mut lines = lines.into_iter().peekable();
        if lines.peek().is_none() {
            return;
        }
        self.book.send_if_modified(|book| {
            let before = Arc::clone(book);
            let changed = Arc::make_mut(book);
            lines.for_each(|line| changed.write(line));
            **book != *before
        });
    }

    /// Writes what is not written yet.
    ///
    /// # Errors
    /// When that cannot be done; it may have been done nevertheless.
    pub(in super::super) async fn flush(&self) -> Result<(), LedgerError> {
        let mut kept = self.kept.lock().await;
        for _ in 0..ATTEMPTS {
            let wanted = self.book();
            if kept.sure && *wanted == kept.book {
                return Ok(());
            }
            if !kept.sure {
                let object = get(&self.api).await?;
                let found = book(object.as_ref())?;
                // What others put there meanwhile stays; what this term wants is wanted still.
                self.book.send_if_modified(|book| {
                    let mut merged = found.clone();
                    book.since(&kept.book).into_iter().for_each(|line| merged.write(line));
                    let changed = **book != merged;
                    *book = Arc::new(merged);
                    changed
                });
                *kept = Kept {
                    object,
                    book: found,
                    sure: true,
                };
                continue;
            }
            if self.term.permit().is_err() {
                return Err(LedgerError::TermEnded);
            }
            match put(&self.api, kept.object.as_ref(), &wanted).await {
                Ok(object) => {
                    kept.object = Some(object);
                    kept.book = Book::clone(&wanted);
                    return Ok(());
                }
                Err(LedgerError::Api {
                    source: kube::Error::Api(status),
                    ..
                }) if matches!(status.code, 404 | 409) => kept.sure = false,
                // It was not sent.
                Err(error @ LedgerError::TooLarge(_)) => return Err(error),
                Err(error) => {
                    kept.sure = false;
                    return Err(error);
                }
            }
        }
        Err(LedgerError::Contended)
    }
}

/// The ledger as anybody may read it.
///
/// # Errors
/// When it cannot be read, or is none.
pub async fn read(client: Client) -> Result<Book, LedgerError> {
    let object = get(&Api::namespaced(client, NAMESPACE)).await?;
    book(object.as_ref())
}

async fn get(api: &Api<ConfigMap>) -> Result<Option<ConfigMap>, LedgerError> {
    let answer = timeout(ONE_REQUEST, api.get_opt(LEDGER)).await;
    answer
        .map_err(|_| LedgerError::Timeout)?
        .map_err(|source| LedgerError::Api { done: "read", source })
}

fn book(object: Option<&ConfigMap>) -> Result<Book, LedgerError> {
    let text = object.and_then(|object| object.data.as_ref()?.get(KEY));
    text.map_or_else(
        || Ok(Book::default()),
        |text| {
            // Derived code would take an array for an object.
            let read = serde_json::from_str(text).and_then(|object: serde_json::Map<_, _>| Book::deserialize(object));
            read.map_err(|error| LedgerError::Malformed(error.to_string()))
        },
    )
}

async fn put(api: &Api<ConfigMap>, last: Option<&ConfigMap>, book: &Book) -> Result<ConfigMap, LedgerError> {
    let text = serde_json::to_string(book).map_err(|error| LedgerError::Malformed(error.to_string()))?;
    if text.len() > MOST_BYTES {
        return Err(LedgerError::TooLarge(text.len()));
    }
    let mut object = last.cloned().unwrap_or_else(|| ConfigMap {
        metadata: ObjectMeta {
            name: Some(LEDGER.to_owned()),
            labels: Some(BTreeMap::from([(
                "app.kubernetes.io/name".to_owned(),
                "headgate".to_owned(),
            )])),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    });
    object.data.get_or_insert_default().insert(KEY.to_owned(), text);
    let params = PostParams::default();
    let write = async {
        if last.is_some() {
            api.replace(LEDGER, &params, &object).await
        } else {
            api.create(&params, &object).await
        }
    };
    let answer = timeout(ONE_REQUEST, write).await;
    answer.map_err(|_| LedgerError::Timeout)?.map_err(|source| {
        if let kube::Error::Api(status) = &source {
            tracing::debug!(code = status.code, "the ledger was not written");
        } else {
            tracing::debug!(
                error = headgate_telemetry::error_chain(&source),
                "the ledger was not written"
            );
        }
        LedgerError::Api {
            done: "written",
            source,
        }
    })
}
