//! Requests for one Lease and the ledger beside it: one at a time, each with a deadline, none repeated.
//!
//! Invariant: what a response leaves open counts as open. Therefore the client of the API server must not retry by itself.
//! A failure is logged once until its text changes or a request succeeds.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{Instant, timeout_at};

use super::lease_state::LeaseName;
use super::ledger::new_ledger;
use crate::Decoded;

/// Why a request has no usable response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseError {
    /// The Lease has changed since the version that the write followed, or does not exist any more.
    Conflict,
    /// The API server refused the request, and would refuse it again.
    Refused(String),
    /// The request may have taken effect, or may take effect later.
    NoResponse(String),
}

/// A client for one Lease.
#[derive(Debug)]
pub(super) struct LeaseClient {
    api: Api<Decoded<Lease>>,
    ledgers: Api<Decoded<ConfigMap>>,
    name: String,
    /// The error that was logged last.
    last_error: Option<String>,
}

impl LeaseClient {
    pub(super) fn new(client: Client, lease: &LeaseName) -> Self {
        Self {
            api: Api::namespaced(client.clone(), &lease.namespace),
            ledgers: Api::namespaced(client, &lease.namespace),
            name: lease.name.clone(),
            last_error: None,
        }
    }

    /// Reads the Lease; `None` if it does not exist.
    pub(super) async fn read(&mut self, deadline: Instant) -> Result<Option<Lease>, LeaseError> {
        let read = async {
            self.api
                .get_opt(&self.name)
                .await?
                .map(Decoded::into_object)
                .transpose()
        };
        let response = within(deadline, read).await;
        self.log("read", response)
    }

    /// Replaces the Lease in the version that `lease` names, or creates it if that names none. Returns it as stored.
    pub(super) async fn write(&mut self, lease: &Lease, deadline: Instant) -> Result<Lease, LeaseError> {
        let is_new = lease.metadata.resource_version.is_none();
        let (params, lease) = (PostParams::default(), Decoded::Object(lease.clone()));
        let written = async {
            if is_new {
                self.api.create(&params, &lease).await?.into_object()
            } else {
                self.api.replace(&self.name, &params, &lease).await?.into_object()
            }
        };
        let response = within(deadline, written).await;
        self.log(if is_new { "create" } else { "update" }, response)
    }

    /// Creates the ledger. A conflict means that it exists.
    pub(super) async fn create_ledger(&mut self, deadline: Instant) -> Result<(), LeaseError> {
        let (params, ledger) = (PostParams::default(), Decoded::Object(new_ledger()));
        let response = within(deadline, self.ledgers.create(&params, &ledger)).await;
        self.log("create ledger", response.map(drop))
    }

    fn log<T>(&mut self, verb: &'static str, response: Result<T, LeaseError>) -> Result<T, LeaseError> {
        let lease = &self.name;
        match &response {
            Ok(_) => self.last_error = None,
            Err(LeaseError::Refused(error)) if self.last_error.as_ref() != Some(error) => {
                tracing::warn!(lease, verb, error, "Lease not read or written: refused");
                self.last_error = Some(error.clone());
            }
            Err(LeaseError::NoResponse(error)) if self.last_error.as_ref() != Some(error) => {
                tracing::info!(lease, verb, error, "Lease not read or written; retrying");
                self.last_error = Some(error.clone());
            }
            // A conflict is usual among candidates, and a repeated error is logged already.
            Err(_) => {}
        }
        response
    }
}

async fn within<T>(deadline: Instant, request: impl Future<Output = kube::Result<T>>) -> Result<T, LeaseError> {
    let too_late = |_| LeaseError::NoResponse("the API server did not respond in time".to_owned());
    let response = timeout_at(deadline, request).await.map_err(too_late)?;
    response.map_err(classify)
}

fn classify(error: kube::Error) -> LeaseError {
    let text = headgate_core::telemetry::error_chain(&error);
    match error {
        kube::Error::Api(status) => match status.code {
            // 404: a write of a Lease that was deleted.
            404 | 409 => LeaseError::Conflict,
            408 | 429 => LeaseError::NoResponse(text),
            400..=499 => LeaseError::Refused(text),
            _ => LeaseError::NoResponse(text),
        },
        _ => LeaseError::NoResponse(text),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn only_a_refusal_or_a_conflict_is_certain() {
        type Class = fn(String) -> LeaseError;
        let conflict: Class = |_| LeaseError::Conflict;
        for (code, class) in [
            (400, LeaseError::Refused as Class),
            (401, LeaseError::Refused),
            (403, LeaseError::Refused),
            (404, conflict),
            (408, LeaseError::NoResponse),
            (409, conflict),
            (422, LeaseError::Refused),
            (429, LeaseError::NoResponse),
            (500, LeaseError::NoResponse),
            (503, LeaseError::NoResponse),
        ] {
            let status = Status::failure("", "").with_code(code);
            let error = kube::Error::Api(status.boxed());
            let text = headgate_core::telemetry::error_chain(&error);
            assert_eq!(classify(error), class(text), "{code}");
        }
        let cut_off = kube::Error::Service("connection closed".into());
        assert!(matches!(classify(cut_off), LeaseError::NoResponse(_)));
    }
}
