//! One pool is written: the PUT, the operation it starts, and a read that shows it.
//!
//! A write is done when its operation has succeeded *and* a read shows it (DESIGN decision 9): Azure has reported
//! success and changed nothing. A PUT whose answer was lost is sent again with the same `If-Match`. Where the
//! first had its effect, ARM refuses the second with 412, and reading tells which of the two it is, so there is no
//! double effect and no doubt.

use std::time::Duration;

use hyper::header::{HeaderName, LOCATION};
use hyper::{Method, StatusCode, Uri};
use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::super::document::{Pool, ProvisioningState};
use super::super::error::{ArmError, ErrorBody, ErrorClass};
use super::super::id::PoolId;
use super::super::retry_after::retry_after;
use super::super::stack::Permit;
use super::super::transport::Answer;
use super::{ArmClient, Extra, json};

const ASYNC_OPERATION: HeaderName = HeaderName::from_static("azure-asyncoperation");
/// To the first look at an operation where ARM does not say when to come again, twice that to the next one, and so on.
const FIRST_LOOK: Duration = Duration::from_millis(100);
/// The longest between looks where nothing is said, as with cloud-provider-azure.
const LONGEST: Duration = Duration::from_secs(5);
/// Between looks at a resource that ARM is busy with.
const BUSY: Duration = Duration::from_secs(1);

/// A write that ARM has accepted.
#[derive(Clone, Debug)]
pub struct WriteOperation {
    pool: PoolId,
    follow: Follow,
    look_at: Instant,
}

/// How to learn of its end.
#[derive(Clone, Debug)]
enum Follow {
    /// It has come already.
    Done,
    /// The status of the operation.
    Operation(Uri),
    /// 202 until it is done.
    Location(Uri),
    /// The pool itself says so.
    Resource,
}

/// What a look says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Done,
    NotYet,
}

impl ArmClient {
    /// Writes the pool over the state it was read from, and waits for the end: the pool as it is then read, with
    /// the etag for the next write to its load balancer.
    ///
    /// # Errors
    /// By its class; whatever it is, nothing but what was asked has been written.
    pub async fn write_pool(&self, pool: &Pool, permit: Permit, deadline: Instant) -> Result<Pool, ArmError> {
        match self.put_pool(pool, permit, deadline).await {
            Ok(accepted) => self.poll_until_done(&accepted, deadline).await?,
            // Maybe it is our own write that is in the way.
            Err(
                error @ ArmError::ErrorResponse {
                    may_have_applied: true,
                    status: StatusCode::PRECONDITION_FAILED,
                    ..
                },
            ) => {
                let read = self.settled(&pool.id, deadline).await?;
                return if read.shows(pool) { Ok(read) } else { Err(error) };
            }
            Err(error) => return Err(error),
        }
        let read = self.waiting(&pool.id, deadline).await?;
        if read.shows(pool) {
            Ok(read)
        } else {
            Err(ArmError::ReadBackMismatch(pool.id.to_string()))
        }
    }

    /// Sends the write.
    ///
    /// # Errors
    /// Where ARM does not accept it, or the pool was read without an etag, or while ARM was busy with it.
    pub async fn put_pool(&self, pool: &Pool, permit: Permit, deadline: Instant) -> Result<WriteOperation, ArmError> {
        if pool.provisioning_state() == ProvisioningState::Busy {
            return Err(ArmError::Busy(pool.id.to_string()));
        }
        let etag = pool.etag.clone();
        let etag = etag.ok_or_else(|| ArmError::InvalidResponse(format!("{} was read without an etag", pool.id)))?;
        let body =
            serde_json::to_vec(&pool.put_body()).map_err(|error| ArmError::InvalidResponse(error.to_string()))?;
        let extra = Extra {
            if_match: Some(etag),
            body: body.into(),
            permit: Some(permit),
        };
        let what = ("update_backend_pool", pool.id.load_balancer().group());
        let uri = self.uri(&pool.id.path())?;
        let answer = self.send(Method::PUT, what, uri, deadline, extra).await?;
        self.accepted(pool.id.clone(), &answer)
    }

    fn accepted(&self, pool: PoolId, answer: &BufferedResponse) -> Result<WriteOperation, ArmError> {
        let url = |name: &HeaderName| {
            let value = answer.headers().get(name)?.to_str().unwrap_or_default();
            Some(self.followed(value))
        };
        let document: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        let state = document
            .pointer("/properties/provisioningState")
            .and_then(Value::as_str);
        let follow = if state.is_some_and(|state| state.eq_ignore_ascii_case("Succeeded")) {
            // As Microsoft's Go client: a write that changes nothing is done at once.
            Follow::Done
        } else if let Some(uri) = url(&ASYNC_OPERATION).transpose()? {
            Follow::Operation(uri)
        } else if let Some(uri) = url(&LOCATION).transpose()? {
            Follow::Location(uri)
        } else {
            Follow::Resource
        };
        Ok(WriteOperation {
            pool,
            follow,
            look_at: self.next_look(answer, FIRST_LOOK),
        })
    }

    /// When to look, as the answer says.
    fn next_look(&self, answer: &BufferedResponse, otherwise: Duration) -> Instant {
        let now = self.clock.now();
        let told = retry_after(answer.headers(), now.wall);
        now.mono + told.filter(|told| !told.is_zero()).unwrap_or(otherwise)
    }

    /// Waits for the end of a write.
    ///
    /// # Errors
    /// Where it ended badly, or nobody can say how.
    pub async fn poll_until_done(&self, accepted: &WriteOperation, deadline: Instant) -> Result<(), ArmError> {
        let (group, uri) = match &accepted.follow {
            Follow::Done => return Ok(()),
            Follow::Resource => return self.settled(&accepted.pool, deadline).await.map(drop),
            Follow::Operation(uri) | Follow::Location(uri) => (accepted.pool.load_balancer().group(), uri),
        };
        let mut look_at = accepted.look_at;
        let mut untold = FIRST_LOOK;
        loop {
            // Nobody is refused here who can wait.
            look_at = look_at.max(self.gates.closed_until(group.subscription(), false).unwrap_or(look_at));
            if look_at >= deadline {
                return Err(ArmError::DeadlineExceeded);
            }
            sleep_until(look_at).await;
            untold = LONGEST.min(2 * untold);
            match self.get("get_operation", group, uri.clone(), deadline).await {
                Ok(answer) => {
                    let look = match accepted.follow {
                        Follow::Operation(_) => ended(&json(&answer)?)?,
                        _ if answer.status() == StatusCode::ACCEPTED => Look::NotYet,
                        _ => Look::Done,
                    };
                    if look == Look::Done {
                        return Ok(());
                    }
                    look_at = self.next_look(&answer, untold);
                }
                // Whoever may write a pool may not be allowed to ask how the operation goes, which is the
                // subscription's: the pool says so too.
                Err(error) if matches!(error.status(), Some(StatusCode::FORBIDDEN | StatusCode::NOT_FOUND)) => {
                    tracing::debug!(%error, pool = %accepted.pool, "the end of a write is read from the pool");
                    return self.settled(&accepted.pool, deadline).await.map(drop);
                }
                // The status could not be read, which says nothing about the operation.
                Err(
                    error @ (ArmError::ErrorResponse { .. } | ArmError::Connection(_) | ArmError::Throttled { .. }),
                ) if error.class() == ErrorClass::Retriable => {
                    tracing::debug!(%error, pool = %accepted.pool, "the end of a write is not known yet");
                    let now = Instant::now();
                    look_at = now + error.retry_after(now).unwrap_or(untold).max(FIRST_LOOK);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The pool, once ARM is not busy with it.
    async fn settled(&self, id: &PoolId, deadline: Instant) -> Result<Pool, ArmError> {
        loop {
            let pool = self.waiting(id, deadline).await?;
            if pool.provisioning_state() == ProvisioningState::Settled {
                return Ok(pool);
            }
            let look_at = Instant::now() + BUSY;
            if look_at >= deadline {
                return Err(ArmError::DeadlineExceeded);
            }
            sleep_until(look_at).await;
        }
    }

    /// The pool; where reads are throttled, once they are not.
    async fn waiting(&self, id: &PoolId, deadline: Instant) -> Result<Pool, ArmError> {
        loop {
            let error = match self.get_pool(id, deadline).await {
                Ok(pool) => return Ok(pool),
                Err(error) => error,
            };
            let throttled = error.status() == Some(StatusCode::TOO_MANY_REQUESTS);
            let now = Instant::now();
            let wait = error.retry_after(now);
            match wait.filter(|_| throttled || matches!(error, ArmError::Throttled { .. })) {
                Some(wait) if now + wait < deadline => sleep_until(now + wait.max(FIRST_LOOK)).await,
                _ => return Err(error),
            }
        }
    }
}

/// Reads the status of an operation.
fn ended(document: &Value) -> Result<Look, ArmError> {
    let status = document.get("status").and_then(Value::as_str);
    let status = status.ok_or_else(|| ArmError::InvalidResponse("an operation without status".to_owned()))?;
    let is = |word: &str| status.eq_ignore_ascii_case(word);
    if is("Succeeded") {
        Ok(Look::Done)
    } else if is("Failed") || is("Canceled") {
        Err(ArmError::OperationFailed {
            status: status.to_owned(),
            error: ErrorBody::of_error(document.get("error").unwrap_or(&Value::Null)),
        })
    } else {
        Ok(Look::NotYet)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_status_says() {
        for (document, expected) in [
            (json!({"status": "Succeeded"}), Some(Ok(Look::Done))),
            (json!({"status": "succeeded"}), Some(Ok(Look::Done))),
            (json!({"status": "InProgress"}), Some(Ok(Look::NotYet))),
            (json!({"status": "Anything"}), Some(Ok(Look::NotYet))),
            (json!({"status": "Failed", "error": {"code": "x"}}), Some(Err("x"))),
            (json!({"status": "Canceled"}), Some(Err("Canceled"))),
            (json!({"status": 1}), None),
            (json!([]), None),
        ] {
            match (ended(&document), expected) {
                (Ok(look), Some(Ok(expected))) => assert_eq!(look, expected, "{document}"),
                (Err(error @ ArmError::OperationFailed { .. }), Some(Err(code))) => assert_eq!(error.code(), code),
                (Err(ArmError::InvalidResponse(_)), None) => {}
                (found, expected) => panic!("{document}: {found:?}, expected {expected:?}"),
            }
        }
    }
}
