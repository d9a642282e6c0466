//! Writing one pool: [`ArmClient::put_pool`] sends the PUT, [`ArmClient::poll_until_done`] waits for the operation that it
//! starts.
//!
//! A write is complete when a later read shows it, because Azure has reported success without a change. That read is the
//! caller's, who needs the whole load balancer for the next write (docs/decisions.md 9). A PUT whose response is lost is
//! sent again with the same `If-Match`. If the first one had its effect, ARM rejects the second with 412, so a write has
//! its effect once at most.

use std::time::Duration;

use hyper::header::{HeaderName, LOCATION};
use hyper::{StatusCode, Uri};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::{ArmClient, CallOptions, Put, parse_json};
use crate::document::{Pool, ProvisioningState};
use crate::error::{ArmError, ErrorBody, ErrorClass, OperationFailure};
use crate::id::PoolId;
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

/// The part of the response to a PUT that says whether the write is complete.
#[derive(Default, Deserialize)]
struct WrittenResource {
    properties: Option<WrittenProperties>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenProperties {
    provisioning_state: Option<String>,
}

/// What one poll of an operation showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Running,
    Succeeded,
}

impl ArmClient {
    /// Sends the document of a pool, on condition that the pool is unchanged since it was read.
    ///
    /// # Errors
    /// When ARM does not accept the write; when the pool was read without an etag or while ARM was busy with it; when the
    /// permit is not valid.
    pub async fn put_pool(
        &self,
        pool: &Pool,
        permit: WritePermit,
        deadline: Instant,
    ) -> Result<WriteOperation, ArmError> {
        if pool.provisioning_state() == ProvisioningState::Busy {
            return Err(ArmError::Busy(pool.id.to_string()));
        }
        let Some(if_match) = pool.etag.clone() else {
            return Err(ArmError::InvalidResponse(format!(
                "{} was read without an etag",
                pool.id
            )));
        };
        let body =
            serde_json::to_vec(&pool.put_body()).map_err(|error| ArmError::InvalidResponse(error.to_string()))?;
        let options = CallOptions {
            name: "update_backend_pool",
            group: pool.id.load_balancer().group(),
            uri: self.uri(&pool.id.path())?,
            deadline,
            parser: None,
            put: Some(Put {
                if_match,
                body: body.into(),
                permit,
            }),
        };
        let response = self.send(options).await?;
        self.write_operation(pool.id.clone(), &response)
    }

    fn write_operation(&self, pool: PoolId, response: &BufferedResponse) -> Result<WriteOperation, ArmError> {
        let url = |name: &HeaderName| {
            let value = response.headers().get(name)?.to_str().unwrap_or_default();
            Some(self.check_link(value))
        };
        // The response may repeat a pool of thousands of entries, which is not kept.
        let written: WrittenResource = serde_json::from_slice(response.body()).unwrap_or_default();
        let state = written.properties.and_then(|properties| properties.provisioning_state);
        let completion = if state.is_some_and(|state| state.eq_ignore_ascii_case("Succeeded")) {
            // As in azcore: a write that changes nothing is complete at once.
            Completion::Immediate
        } else if let Some(uri) = url(&AZURE_ASYNC_OPERATION).transpose()? {
            Completion::StatusUrl(uri)
        } else if let Some(uri) = url(&LOCATION).transpose()? {
            Completion::Location(uri)
        } else {
            Completion::Resource
        };
        Ok(WriteOperation {
            pool,
            completion,
            poll_at: self.next_poll(response, MIN_POLL_INTERVAL),
        })
    }

    /// When to poll after this response: after its `Retry-After`, or after `interval`.
    fn next_poll(&self, response: &BufferedResponse, interval: Duration) -> Instant {
        let now = self.clock.now();
        let requested = parse_retry_after(response.headers(), now.wall);
        now.mono + requested.filter(|requested| !requested.is_zero()).unwrap_or(interval)
    }

    /// Waits for the end of the operation.
    ///
    /// # Errors
    /// When the operation failed or was canceled, or its end is unknown at the deadline.
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
                return Err(ArmError::DeadlineExceeded);
            }
            sleep_until(poll_at).await;
            polls += 1;
            let interval = poll_interval(polls, began.elapsed());
            match self.get("get_operation", group, uri.clone(), deadline).await {
                Ok(response) => {
                    let progress = match operation.completion {
                        Completion::StatusUrl(_) => operation_progress(&parse_json(&response)?)?,
                        _ if response.status() == StatusCode::ACCEPTED => Progress::Running,
                        _ => Progress::Succeeded,
                    };
                    if progress == Progress::Succeeded {
                        return Ok(());
                    }
                    poll_at = self.next_poll(&response, interval);
                }
                // The status belongs to the subscription, so an identity that may write the pool may be unable to read it.
                Err(error) if matches!(error.status(), Some(StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)) => {
                    tracing::debug!(%error, %pool, "operation status not readable; polling the pool instead");
                    return self.poll_until_settled(pool, deadline).await;
                }
                // A failure to read the status says nothing about the operation.
                Err(
                    error @ (ArmError::ErrorResponse { .. } | ArmError::Connection(_) | ArmError::Throttled { .. }),
                ) if error.class() == ErrorClass::Retriable => {
                    let now = Instant::now();
                    let wait = error.retry_after(now).unwrap_or(interval).max(MIN_POLL_INTERVAL);
                    tracing::debug!(%error, %pool, retry_in = ?wait, "operation status not read");
                    poll_at = now + wait;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the pool until ARM is not busy with it.
    async fn poll_until_settled(&self, pool: &PoolId, deadline: Instant) -> Result<(), ArmError> {
        loop {
            let read = self.get_pool(pool, deadline).await;
            let now = Instant::now();
            let (wait, error) = match read {
                Ok(pool) if pool.provisioning_state() == ProvisioningState::Settled => return Ok(()),
                Ok(_) => (BUSY_POLL_INTERVAL, ArmError::DeadlineExceeded),
                Err(error) => {
                    let throttled = error.status() == Some(StatusCode::TOO_MANY_REQUESTS)
                        || matches!(error, ArmError::Throttled { .. });
                    match error.retry_after(now).filter(|_| throttled) {
                        Some(wait) => (wait.max(MIN_POLL_INTERVAL), error),
                        None => return Err(error),
                    }
                }
            };
            if now + wait >= deadline {
                return Err(error);
            }
            sleep_until(now + wait).await;
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
    let failure = [OperationFailure::Failed, OperationFailure::Canceled]
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
