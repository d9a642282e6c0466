//! Writing one pool: [`ArmClient::put_pool`] sends the PUT, [`ArmClient::poll_until_done`] waits for the operation that it
//! starts.
//!
//! A write is complete when a later read shows it, because Azure has reported success without a change. That read is the
//! caller's, who needs the whole load balancer for the next write (docs/dev/decisions.md 9). A PUT whose response is lost is
//! sent again with the same `If-Match`. If the first one had its effect, ARM rejects the second with 412, so a write has
//! its effect once at most.

use std::time::Duration;

use bytes::Bytes;
use hyper::header::{HeaderName, LOCATION};
use hyper::{StatusCode, Uri};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::{ArmClient, CallOptions, Put, parse_json};
use crate::body_stream::{BodyExtent, BodyReader};
use crate::document::{Pool, ProvisioningState, PutBody, read_provisioning_state};
use crate::error::{ArmError, ErrorBody, OperationFailure};
use crate::id::{Etag, PoolId};
use crate::request_path::WritePermit;
use crate::retry_after::parse_retry_after;
use crate::throttle::RequestKind;
use crate::transport::BufferedResponse;

const AZURE_ASYNC_OPERATION: HeaderName = HeaderName::from_static("azure-asyncoperation");
/// Time to the first poll of an operation without `Retry-After`; it doubles with each further poll, up to
/// [`FREQUENT_POLL_INTERVAL`].
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The longest time between polls without `Retry-After` in the first [`FREQUENT_POLLING`]. The caller holds a Lease that others
/// need, so the end of an operation of usual length is noticed within a second.
const FREQUENT_POLL_INTERVAL: Duration = Duration::from_secs(1);
const FREQUENT_POLLING: Duration = Duration::from_secs(15);
/// The longest time between polls after that, as in cloud-provider-azure.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Time between reads of a pool that ARM is busy with.
const BUSY_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A write that ARM has accepted.
#[derive(Clone, Debug)]
pub struct WriteOperation {
    pool: PoolId,
    completion: Completion,
    /// When to poll for the first time.
    poll_at: Instant,
}

/// Where the end of an operation shows.
#[derive(Clone, Debug)]
enum Completion {
    /// The response to the PUT is already final.
    Immediate,
    /// The URL from `Azure-AsyncOperation`, whose document has the status.
    StatusUrl(Uri),
    /// The URL from `Location`, which answers 202 until the end.
    Location(Uri),
    /// The pool's own `provisioningState`.
    Resource,
}

/// A pool as a PUT sends it. Its document takes many times as much memory, so it should not wait for an answer.
#[derive(Clone, Debug)]
pub struct EncodedPool {
    id: PoolId,
    if_match: Etag,
    body: Bytes,
}

impl EncodedPool {
    /// The version that the PUT replaces.
    pub fn replaced(&self) -> &Etag {
        &self.if_match
    }
}

impl Pool {
    /// Encodes the document for a PUT.
    ///
    /// # Errors
    /// When the pool was read without an etag or while ARM was busy with it.
    pub fn encode(&self) -> Result<EncodedPool, ArmError> {
        self.encode_body(self.put_body())
    }

    pub(crate) fn encode_body(&self, body: PutBody<'_>) -> Result<EncodedPool, ArmError> {
        if self.provisioning_state() == ProvisioningState::Busy {
            return Err(ArmError::Busy(self.id.to_string()));
        }
        let Some(if_match) = self.etag.clone() else {
            return Err(ArmError::InvalidResponse(format!(
                "{} was read without an etag",
                self.id
            )));
        };
        let body = serde_json::to_vec(&body);
        let mut body = body.map_err(|error| ArmError::InvalidResponse(error.to_string()))?;
        // It has grown by doubling, and waits for the ledger and for ARM.
        body.shrink_to_fit();
        Ok(EncodedPool {
            id: self.id.clone(),
            if_match,
            body: body.into(),
        })
    }
}

/// What one poll of an operation showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Running,
    Succeeded,
}

impl ArmClient {
    /// Sends a pool, on condition that it is unchanged since it was read.
    ///
    /// # Errors
    /// When ARM does not accept the write; when the permit is not valid.
    pub async fn put_pool(
        &self,
        pool: EncodedPool,
        permit: WritePermit,
        deadline: Instant,
    ) -> Result<WriteOperation, ArmError> {
        let EncodedPool { id, if_match, body } = pool;
        let put = Put { if_match, body, permit };
        let group = id.load_balancer().group();
        let options = CallOptions {
            put: Some(put),
            ..CallOptions::get("update_backend_pool", group, self.uri(&id.path())?, deadline)
        };
        // The response may repeat a pool of thousands of entries. ARM has accepted the write whatever it has.
        let parse = |body: BodyReader| Ok(read_provisioning_state(body));
        let (state, response) = self.send_parsed(options, BodyExtent::PARSED, parse).await?;
        Ok(self.write_operation(id, state, &response))
    }

    /// `state` is the `provisioningState` that the response to the PUT shows.
    fn write_operation(&self, pool: PoolId, state: Option<String>, response: &BufferedResponse) -> WriteOperation {
        // Without a link that can be followed, the pool shows the end: ARM has accepted the write in any case.
        let url = |name: &HeaderName| {
            let link = self.check_link(response.headers().get(name)?.to_str().unwrap_or_default());
            let log = |error: &ArmError| tracing::info!(%error, %pool, header = %name, "link to the operation ignored; the write is followed by reads");
            link.inspect_err(log).ok()
        };
        let completion = if state.is_some_and(|state| state.eq_ignore_ascii_case("Succeeded")) {
            // As in azcore: a write that changes nothing is complete at once.
            Completion::Immediate
        } else if let Some(uri) = url(&AZURE_ASYNC_OPERATION) {
            Completion::StatusUrl(uri)
        } else if let Some(uri) = url(&LOCATION) {
            Completion::Location(uri)
        } else {
            Completion::Resource
        };
        // Microsoft's Python client does not wait at all for the `Retry-After` of a PUT. Each further pool of the load balancer would wait
        // for all of it, however short the operation is.
        let latest = self.clock.now().mono + FREQUENT_POLL_INTERVAL;
        WriteOperation {
            pool,
            completion,
            poll_at: self.next_poll(response, MIN_POLL_INTERVAL).min(latest),
        }
    }

    /// When to poll after this response: after its `Retry-After`, or after `interval`.
    fn next_poll(&self, response: &BufferedResponse, interval: Duration) -> Instant {
        let now = self.clock.now();
        let requested = parse_retry_after(response.headers(), now.wall);
        now.mono + requested.filter(|requested| !requested.is_zero()).unwrap_or(interval)
    }

    /// Waits for the end of the operation. Only ARM's word or the deadline ends the wait: a status that cannot be read says nothing
    /// about the operation.
    ///
    /// # Errors
    /// When the operation failed or was canceled, when the pool does not exist, or when the end is unknown at the deadline.
    pub async fn poll_until_done(&self, operation: &WriteOperation, deadline: Instant) -> Result<(), ArmError> {
        let pool = &operation.pool;
        let uri = match &operation.completion {
            Completion::Immediate => return Ok(()),
            Completion::Resource => return self.poll_until_settled(pool, deadline).await,
            Completion::StatusUrl(uri) | Completion::Location(uri) => uri,
        };
        let group = pool.load_balancer().group();
        let (mut poll_at, mut polls, began) = (operation.poll_at, 0, Instant::now());
        loop {
            // A poll waits for the throttle gate instead of being refused.
            let closed_until = self.gates.closed_until(group.subscription(), RequestKind::Read);
            poll_at = poll_at.max(closed_until.unwrap_or(poll_at));
            if poll_at >= deadline {
                // The status comes too late, so the pool has to show the end.
                let settled = self.poll_until_settled(pool, deadline).await;
                return settled.map_err(|error| {
                    if error.is_about_missing_resource() {
                        error
                    } else {
                        ArmError::DeadlineExceeded
                    }
                });
            }
            sleep_until(poll_at).await;
            polls += 1;
            let interval = poll_interval(polls, began.elapsed());
            let response = self.get("get_operation", group, uri.clone(), deadline).await;
            let progress = response.and_then(|response| {
                let progress = operation.completion.progress(&response)?;
                Ok((progress, self.next_poll(&response, interval)))
            });
            match progress {
                Ok((Progress::Succeeded, _)) => return Ok(()),
                Ok((Progress::Running, next)) => poll_at = next,
                Err(error @ ArmError::OperationFailed { .. }) => return Err(error),
                // The status belongs to the subscription, so an identity that may write the pool may be unable to read it; and ARM
                // forgets it some time after the end.
                Err(error) if error.is_final_status() => {
                    tracing::debug!(%error, %pool, "operation status not readable; polling the pool instead");
                    return self.poll_until_settled(pool, deadline).await;
                }
                Err(error) => {
                    let now = Instant::now();
                    let wait = error.retry_after(now).unwrap_or(interval).max(MIN_POLL_INTERVAL);
                    tracing::debug!(%error, %pool, retry_in = ?wait, "operation status not read");
                    poll_at = now + wait;
                }
            }
        }
    }

    /// Reads once whether the operation still runs; `None` if nothing but the pool shows it.
    ///
    /// # Errors
    /// When the operation failed or was canceled, or its status is not received before the deadline.
    pub async fn read_operation(
        &self,
        operation: &WriteOperation,
        deadline: Instant,
    ) -> Result<Option<bool>, ArmError> {
        let (Completion::StatusUrl(uri) | Completion::Location(uri)) = &operation.completion else {
            return Ok(None);
        };
        let group = operation.pool.load_balancer().group();
        let response = self.get("get_operation", group, uri.clone(), deadline).await?;
        let progress = operation.completion.progress(&response)?;
        Ok(Some(progress == Progress::Running))
    }

    /// Reads the pool until ARM is not busy with it. A pool that cannot be read may be busy.
    ///
    /// # Errors
    /// When the pool does not exist, or is not known to be settled at the deadline.
    pub async fn poll_until_settled(&self, pool: &PoolId, deadline: Instant) -> Result<(), ArmError> {
        let began = Instant::now();
        loop {
            let read = self.get_pool(pool, deadline).await;
            let now = Instant::now();
            let (wait, error) = match read {
                // Without properties it is not ARM's document.
                Ok(pool)
                    if pool.provisioning_state() == ProvisioningState::Settled
                        && pool.document.get("properties").is_some() =>
                {
                    return Ok(());
                }
                Ok(_) => (BUSY_POLL_INTERVAL, ArmError::DeadlineExceeded),
                Err(error) if error.is_about_missing_resource() => return Err(error),
                Err(error) => {
                    let interval = poll_interval(u32::MAX, began.elapsed());
                    let wait = error.retry_after(now).unwrap_or(interval).max(MIN_POLL_INTERVAL);
                    tracing::debug!(%error, %pool, retry_in = ?wait, "pool not read");
                    (wait, error)
                }
            };
            sleep_until(deadline.min(now + wait)).await;
            if now + wait >= deadline {
                return Err(error);
            }
        }
    }
}

impl Completion {
    /// What the answer to a poll says.
    fn progress(&self, response: &BufferedResponse) -> Result<Progress, ArmError> {
        match self {
            Self::StatusUrl(_) => operation_progress(&parse_json(response)?),
            _ if response.status() == StatusCode::ACCEPTED => Ok(Progress::Running),
            _ => Ok(Progress::Succeeded),
        }
    }
}

/// The time to the next poll without `Retry-After`, after so many polls, when the operation has taken so long.
fn poll_interval(polls: u32, elapsed: Duration) -> Duration {
    if elapsed >= FREQUENT_POLLING {
        return MAX_POLL_INTERVAL;
    }
    let doubled = MIN_POLL_INTERVAL.saturating_mul(2_u32.saturating_pow(polls));
    doubled.min(FREQUENT_POLL_INTERVAL)
}

/// Reads the status document of an operation.
fn operation_progress(document: &Value) -> Result<Progress, ArmError> {
    let status = document.get("status").and_then(Value::as_str);
    let status = status.ok_or_else(|| ArmError::InvalidResponse("an operation without status".to_owned()))?;
    let failure = OperationFailure::ALL
        .into_iter()
        .find(|failure| status.eq_ignore_ascii_case(failure.as_str()));
    match failure {
        Some(failure) => Err(ArmError::OperationFailed {
            status: failure,
            error: ErrorBody::from_json(document.get("error").unwrap_or(&Value::Null)),
        }),
        None if status.eq_ignore_ascii_case("Succeeded") => Ok(Progress::Succeeded),
        None => Ok(Progress::Running),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn operation_statuses() {
        for (document, expected) in [
            (json!({"status": "Succeeded"}), Some(Ok(Progress::Succeeded))),
            (json!({"status": "succeeded"}), Some(Ok(Progress::Succeeded))),
            (json!({"status": "InProgress"}), Some(Ok(Progress::Running))),
            (json!({"status": "Anything"}), Some(Ok(Progress::Running))),
            (json!({"status": "Failed", "error": {"code": "x"}}), Some(Err("x"))),
            (json!({"status": "Canceled"}), Some(Err("Canceled"))),
            (json!({"status": 1}), None),
            (json!([]), None),
        ] {
            match (operation_progress(&document), expected) {
                (Ok(progress), Some(Ok(expected))) => assert_eq!(progress, expected, "{document}"),
                (Err(error @ ArmError::OperationFailed { .. }), Some(Err(code))) => assert_eq!(error.code(), code),
                (Err(ArmError::InvalidResponse(_)), None) => {}
                (found, expected) => panic!("{document}: {found:?}, expected {expected:?}"),
            }
        }
    }
}
