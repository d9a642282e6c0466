//! An emulator of the part of Azure Resource Manager that load balancers need: tokens, IMDS, throttling, long-running
//! operations, and faults on demand.
//!
//! Answers follow recorded traffic where there is some; lab/azure-emulator/README.md says for each behaviour how sure it is.
//! Time is a parameter and nothing runs in the background: the next request ends the operations that are due. So the
//! emulator works without sockets and in paused time ([`Emulator`]) as well as on listeners ([`run`]).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::{Request, Response};
use bytes::Bytes;
use headgate_core::clock::Clock;
use serde_json::Value;
use tokio::time::sleep;

use self::faults::action::{Action, When};
use self::state::{ReceivedRequest, State};

mod arm;
mod authorization;
mod chunked_body;
mod compute;
mod control;
mod deviations;
mod error;
mod etag;
mod faults;
mod field_order;
mod guids;
mod id;
mod identity;
mod imds;
mod journal;
mod listen;
mod lists;
mod load_balancer;
mod network;
mod nic_members;
mod normalize;
mod operations;
mod pattern;
mod pool;
mod query;
mod request;
mod resource;
mod seed;
mod settings;
mod state;
mod state_document;
mod store;
#[cfg(test)]
mod tests;
mod throttle;
mod tls;

pub use deviations::{Deviation, Deviations};
pub use listen::{Addresses, ListenError, Options, run};
pub use seed::{Seed, SeedError, probed_load_balancer};
pub use settings::{AdminStateNone, Settings};
pub use state_document::{entries_of, pools_in};
pub use throttle::{RateLimit, ThrottleSettings};

/// An emulator. Clones share its state.
#[derive(Clone, Debug)]
pub struct Emulator(Arc<Mutex<State>>);

/// A fault closed the connection without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a fault closed the connection without a response")]
pub struct ConnectionCut;

impl Emulator {
    /// An emulator with the resources of a seed. `random_seed` determines all ids and etags that it makes.
    ///
    /// # Errors
    /// A document of the seed cannot be used.
    pub fn new(settings: Settings, seed: Seed, clock: Clock, random_seed: u64) -> Result<Self, SeedError> {
        let state = State::new(settings, seed, clock, random_seed)?;
        Ok(Self(Arc::new(Mutex::new(state))))
    }

    /// Answers a request to ARM, a token endpoint or IMDS. `base` is the URL that the client used, such as
    /// `http://127.0.0.1:1234`; URLs in the answer begin with it.
    ///
    /// # Errors
    /// A fault closes the connection.
    pub async fn call(&self, request: Request<Bytes>, base: &str) -> Result<Response<Bytes>, ConnectionCut> {
        let (parts, body) = request.into_parts();
        let received = ReceivedRequest {
            parts,
            body,
            base: base.to_owned(),
        };
        let pending = self.state().begin(&received);
        let action = pending.hit.as_ref().map(|hit| hit.action.clone());
        match action.as_deref() {
            Some(Action::Cut(When::Before)) => {
                self.state().abort(&pending);
                return Err(ConnectionCut);
            }
            Some(Action::Stall {
                wait,
                when: When::Before,
            }) => sleep(*wait).await,
            _ => {}
        }
        self.state().apply_concurrent_write(&received, &pending);
        let mut response = self.state().respond(&received, &pending);
        match action.as_deref() {
            Some(Action::Cut(When::After)) => response.is_cut = true,
            Some(Action::Stall {
                wait,
                when: When::After,
            }) => sleep(*wait).await,
            _ => {}
        }
        self.state().finish(&pending, response)
    }

    /// Answers a request to the control API.
    pub fn control(&self, request: &Request<Bytes>) -> Response<Bytes> {
        let mut state = self.state();
        let now = state.now();
        control::respond(&mut state, request, now)
    }

    /// The same for a program that has the emulator in process: the body of the answer to a request to this path of the control API.
    ///
    /// # Errors
    /// The answer is no success.
    pub fn send_control(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let content = if body.is_null() {
            Bytes::new()
        } else {
            body.to_string().into()
        };
        let request = Request::builder().method(method).uri(format!("/emulator/v1/{path}"));
        let request = request.body(content).map_err(|error| error.to_string())?;
        let answer = self.control(&request);
        if !answer.status().is_success() {
            return Err(format!("{method} {path}: {:?}", answer.body()));
        }
        Ok(serde_json::from_slice(answer.body()).unwrap_or_default())
    }

    /// The state. The lock is never held across an await. A panic while it is held fails one request; the others go on
    /// with the state as it is.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
