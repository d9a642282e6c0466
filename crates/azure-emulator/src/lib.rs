//! An emulator of Azure Resource Manager's load balancers, and of what stands around them: tokens,
//! IMDS, throttling, long-running operations, faults on demand.
//!
//! What it answers follows recorded traffic where there is some; docs/azure-emulator.md says for each
//! behaviour how sure it is. Time is a parameter everywhere; nothing here waits in the background:
//! an operation that is due is completed by the next request that looks. So it can be used without
//! sockets and in paused time ([`Emulator`]) as well as on listeners ([`run`]).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::{Request, Response};
use bytes::Bytes;
use headgate_clock::Clock;
use tokio::time::sleep;

use self::fault::{Action, When};
use self::world::{Received, World};

mod accept;
mod arm;
mod compute;
mod control;
mod error;
mod etag;
mod fault;
mod faults;
mod fields;
mod guids;
mod id;
mod identity;
mod imds;
mod injected;
mod journal;
mod listen;
mod lists;
mod load_balancer;
mod members;
mod merge;
mod network;
mod operations;
mod parts;
mod pattern;
mod pool;
mod query;
mod record;
mod request;
mod seed;
mod settings;
mod store;
#[cfg(test)]
mod stories;
mod throttle;
mod tls;
mod world;

pub use listen::{Addresses, ListenError, Options, run};
pub use seed::{Seed, SeedError};
pub use settings::{AdminStateNone, Settings};
pub use throttle::{RateLimit, ThrottleSettings};

/// An emulator; clones are the same one.
#[derive(Clone, Debug)]
pub struct Emulator(Arc<Mutex<World>>);

/// The connection is cut without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the emulator cut the connection")]
pub struct ConnectionCut;

impl Emulator {
    /// An emulator of what the seed says. `random` decides every id and etag it will give.
    ///
    /// # Errors
    /// When a document of the seed cannot be used.
    pub fn new(settings: Settings, seed: Seed, clock: Clock, random: u64) -> Result<Self, SeedError> {
        let world = World::new(settings, seed, clock, random)?;
        Ok(Self(Arc::new(Mutex::new(world))))
    }

    /// Answers a request to ARM, the token endpoints or IMDS, that came by way of `base`, such as
    /// `http://127.0.0.1:1234`.
    ///
    /// # Errors
    /// Where a fault cuts the connection.
    pub async fn call(&self, request: Request<Bytes>, base: &str) -> Result<Response<Bytes>, ConnectionCut> {
        let (parts, body) = request.into_parts();
        let received = Received {
            parts,
            body,
            base: base.to_owned(),
        };
        let opened = self.world().open(&received);
        let action = opened.hit.as_ref().map(|hit| hit.action.clone());
        match action.as_deref() {
            Some(Action::Cut(When::Before)) => {
                self.world().cut(&opened);
                return Err(ConnectionCut);
            }
            Some(Action::Stall {
                wait,
                when: When::Before,
            }) => sleep(*wait).await,
            _ => {}
        }
        self.world().write_first(&received, &opened);
        let mut answered = self.world().answer(&received, &opened);
        if !answered.delay.is_zero() {
            sleep(answered.delay).await;
            // As it is by then.
            answered = self.world().answer(&received, &opened);
        }
        match action.as_deref() {
            Some(Action::Cut(When::After)) => answered.cut = true,
            Some(Action::Stall {
                wait,
                when: When::After,
            }) => sleep(*wait).await,
            _ => {}
        }
        self.world().close(&opened, answered)
    }

    /// Answers a request to the control API.
    #[must_use]
    pub fn control(&self, request: &Request<Bytes>) -> Response<Bytes> {
        let mut world = self.world();
        let now = world.now();
        control::answer(&mut *world, request, now)
    }

    /// The state; nothing that holds it waits, and a request that panicked has not left it half changed
    /// in any way that matters more than the others' answers.
    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
