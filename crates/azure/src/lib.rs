//! How Azure Resource Manager (ARM) is spoken: identity, requests, throttling, operations, documents, errors.
//!
//! Knows nothing of Kubernetes. [`Arm`] reads load balancers and writes pools; [`Tokens`] is who it is to Azure.
//! Documents stay JSON in which unknown fields survive ([`Pool::for_write`]). What a failure means is one pure
//! function ([`class`]). Nothing is written without an etag, nor after a [`Permit`] has ended.

mod azure_json;
mod client;
mod document;
mod endpoints;
mod error;
mod gate;
mod id;
mod identity;
mod metrics;
mod observe;
mod retry;
mod retry_after;
mod stack;
mod transport;

pub use azure_json::{
    AzureJson, BackendPoolType, Cloud, Credential, ManagedIdentity, RateLimit, RateLimits, Secret, Surroundings,
};
pub use client::{API_VERSION, Accepted, Arm, Options};
pub use document::{Address, AdminState, ForWrite, LoadBalancer, Pool, ProvisioningState};
pub use endpoints::{EndpointError, Endpoints, Origin};
pub use error::{ArmError, Class, ErrorBody, class, throttles};
pub use id::{BadId, Etag, GroupId, InterfaceId, LoadBalancerId, PoolId};
pub use identity::{Account, IMDS, NoCredential, TokenError, TokenSource, Tokens};
pub use metrics::{Metrics, Operation};
pub use observe::SPANS;
pub use retry_after::retry_after;
pub use stack::Permit;
pub use transport::{Answer, MOST_BYTES, TlsError, Transport, TransportError, Trust};
