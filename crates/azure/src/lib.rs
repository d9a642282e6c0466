//! Client of Azure Resource Manager (ARM): identity, requests, throttling, operations, documents, errors.
//!
//! This crate does not know Kubernetes. [`ArmClient`] reads load balancers and writes pools; the `request_path` module is
//! the way of each request to the socket. [`TokenCache`] has the tokens of an [`Identity`]. Lists are
//! parsed while they arrive (`body_stream`). Documents that are written stay JSON, so fields that this crate does not know
//! survive a write ([`Pool::put_body`]). [`ArmError::class`] says what to do about a failure.
//! A write carries an etag and is sent only while its [`WritePermit`] is valid.

mod authorization;
mod azure_json;
mod body_stream;
mod call;
mod client;
mod document;
mod endpoints;
mod error;
mod id;
mod identity;
mod metrics;
mod request_path;
mod retry;
mod retry_after;
mod throttle;
mod token_cache;
mod transport;

pub use authorization::{Denial, DenyAssignment, Permission, TokenClaims};
pub use azure_json::{
    AzureCloud, AzureJson, BackendPoolType, ConfigSources, Credential, ManagedIdentity, RateLimit, RateLimits, Secret,
};
pub use client::{
    API_VERSION, ArmClient, ArmClientOptions, EncodedPool, LoadBalancerList, LoadBalancerRead, LoadBalancerText,
    WriteOperation,
};
pub use document::{
    AdminState, BackendAddress, LoadBalancerSummary, Pool, PoolDraft, PoolSummary, ProvisioningState, PutBody,
};
pub use endpoints::{EndpointError, Endpoints, Origin};
pub use error::{ArmError, ErrorBody, ErrorClass, OperationFailure, TokenError};
pub use id::{Etag, InvalidId, LoadBalancerId, NetworkInterfaceId, PoolId, ResourceGroupId};
pub use identity::{Identity, IdentityError};
pub use metrics::{Metrics, OperationTimer};
pub use request_path::WritePermit;
pub use token_cache::TokenCache;
pub use transport::{BufferedResponse, Transport, TransportError};
