//! How Azure Resource Manager (ARM) is spoken: identity, requests, throttling, operations, documents, errors.
//!
//! Knows nothing of Kubernetes. [`ArmClient`] reads load balancers and writes pools; [`TokenCache`] is who it is to Azure.
//! Documents stay JSON in which unknown fields survive ([`Pool::put_body`]). What a failure means is one pure
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
    AzureCloud, AzureJson, BackendPoolType, ConfigSources, Credential, ManagedIdentity, RateLimit, RateLimits, Secret,
};
pub use client::{API_VERSION, ArmClient, ArmClientOptions, WriteOperation};
pub use document::{AdminState, BackendAddress, LoadBalancer, Pool, ProvisioningState, PutBody};
pub use endpoints::{EndpointError, Endpoints, Origin};
pub use error::{ArmError, ErrorBody, ErrorClass, class, is_rate_limited};
pub use id::{Etag, InvalidId, LoadBalancerId, NetworkInterfaceId, PoolId, ResourceGroupId};
pub use identity::{IMDS_ENDPOINT, Identity, IdentityError, TokenCache, TokenError, TokenSource};
pub use metrics::{Metrics, Operation};
pub use observe::SPAN_TARGET;
pub use retry_after::retry_after;
pub use stack::Permit;
pub use transport::{BufferedResponse, MAX_RESPONSE_BYTES, TlsError, Transport, TransportError, TrustedRoots};
