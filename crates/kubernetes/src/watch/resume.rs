//! What is verified before a watch resumes, because the API server's `resourceVersion` may have gone backwards, as after a
//! restore of etcd: a watch from a version in the future gets no events until the versions have caught up, and no error either.
//!
//! A stream of one object lists it again, whatever its version: where the API server has streaming lists, that is no request more, since the list is
//! the beginning of the next watch (`streaming_list`). Another stream requests the current version with a list of one object, and lists everything
//! again only if that version is older than the watch's, or than the one that it was shown before. No outdated cache answers these requests, because
//! they name no version. A list or check is enough for all attempts to start a watch until one is accepted or the API server cannot be reached.
//!
//! To have a list, the watch is answered as the API server answers one whose version it no longer has.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::header::ACCEPT;
use hyper::{Method, Request, Response, Uri};
use kube::Client;
use kube::client::Body;
use serde::Deserialize;
use tokio::time::timeout;

use super::error::WatchErrorReason;

/// For the check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(30);
/// The objects of the check are not needed.
const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// The only event of a watch whose version the API server no longer has.
const EXPIRED_EVENT: &str = concat!(
    r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","#,
    r#""message":"the resourceVersion has gone backwards","reason":"Expired","code":410}}"#,
    "\n"
);

/// How a stream verifies its version before a watch resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verification {
    /// With a list of everything.
    List,
    /// With a list of at most one object.
    Version,
}

/// The requests of one stream, which come one after another.
#[derive(Clone, Debug)]
pub(super) struct Resumption {
    verification: Verification,
    verified: Arc<Mutex<Verified>>,
    /// Whether the error that the stream gets next means only that it lists again.
    is_listing_again: Arc<AtomicBool>,
}

/// What lists and checks have shown.
#[derive(Debug, Default)]
struct Verified {
    /// Whether the next watch may start without another one.
    is_recent: bool,
    /// The version that the last check showed.
    version: u64,
}

/// The parameters of a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parameters {
    is_watch: bool,
    version: Option<u64>,
}

impl Parameters {
    fn new(uri: &Uri) -> Self {
        let mut parameters = Self::default();
        for pair in uri.query().unwrap_or_default().split('&') {
            match pair.split_once('=') {
                Some(("watch", value)) => parameters.is_watch = value == "true",
                Some(("resourceVersion", value)) => parameters.version = value.parse().ok(),
                _ => {}
            }
        }
        parameters
    }
}

/// A list, as far as its version.
#[derive(Debug, Deserialize)]
struct ListVersion {
    metadata: ListMetadata,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: Option<String>,
}

/// Whether a request starts a watch.
pub(super) fn is_watch(request: &Request<Body>) -> bool {
    Parameters::new(request.uri()).is_watch
}

impl Resumption {
    pub(super) fn new(verification: Verification) -> Self {
        Self {
            verification,
            verified: Arc::default(),
            is_listing_again: Arc::default(),
        }
    }

    fn verified(&self) -> MutexGuard<'_, Verified> {
        // No section that holds the mutex can panic halfway.
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a list succeeded, or that a watch was accepted.
    pub(super) fn succeeded(&self, is_watch: bool) {
        self.verified().is_recent = !is_watch;
    }

    /// Records an error of the stream. etcd may be restored while the API server cannot be reached, or cannot answer.
    pub(super) fn failed(&self, reason: WatchErrorReason) {
        if reason.is_outage() {
            self.verified().is_recent = false;
        }
    }

    /// Whether the error of the stream means only that it lists again. The next call returns `false`.
    pub(super) fn take_listing_again(&self) -> bool {
        self.is_listing_again.swap(false, Ordering::Relaxed)
    }

    /// Verifies the version of a watch, before the request for `uri` is sent. Returns the answer to it if the stream has to list again;
    /// `None` if the request may be sent, as any request that resumes no watch.
    pub(super) async fn verify(&self, client: &Client, uri: &Uri) -> Result<Option<Response<Body>>, kube::Error> {
        let parameters = Parameters::new(uri);
        let Some(version) = parameters.version.filter(|version| parameters.is_watch && *version > 0) else {
            return Ok(None);
        };
        let known = {
            let verified = self.verified();
            if verified.is_recent {
                return Ok(None);
            }
            version.max(verified.version)
        };
        let expired = || Some(Response::new(Body::from(EXPIRED_EVENT.as_bytes().to_vec())));
        if self.verification == Verification::List {
            self.is_listing_again.store(true, Ordering::Relaxed);
            return Ok(expired());
        }
        let path = uri.path();
        let current = current_version(client, path).await?;
        // Versions of another form cannot be compared.
        let is_backwards = current.is_some_and(|current| current < known);
        *self.verified() = Verified {
            is_recent: true,
            version: current.unwrap_or_default(),
        };
        if is_backwards {
            tracing::warn!(
                path,
                known,
                current,
                "resourceVersion went backwards, as after a restore of etcd; listing again"
            );
        }
        Ok(expired().filter(|_| is_backwards))
    }
}

/// The current version of the collection at `path`.
async fn current_version(client: &Client, path: &str) -> Result<Option<u64>, kube::Error> {
    let request = Request::builder()
        .method(Method::GET)
        .uri(format!("{path}?limit=1"))
        .header(ACCEPT, METADATA_ONLY)
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    let answer = timeout(CHECK_TIMEOUT, client.request::<ListVersion>(request)).await;
    let list = answer.map_err(|_| kube::Error::Service("the API server did not answer in time".into()))??;
    let version = list.metadata.resource_version;
    Ok(version.and_then(|version| version.parse().ok()))
}

#[cfg(test)]
mod tests;
