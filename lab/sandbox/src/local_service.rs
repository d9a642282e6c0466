//! A Service with `externalTrafficPolicy: Local` in the sandbox's own control plane. The emulated Azure has the pool that
//! cloud-controller-manager would have made for it; the leader keeps the pool's members at the nodes of its endpoints.
//!
//! It begins without endpoints and with an empty pool: the printed commands give it some.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::json;
use tokio::time::sleep;

/// The name of the Service, in the namespace `default`.
pub(super) const NAME: &str = "web";
/// The name of its EndpointSlice.
pub(super) const SLICE: &str = "web-1";
/// The name of its backend pool: namespace and name of the Service.
pub(super) const POOL: &str = "default-web";
/// The time between two ticks of the leader's updater, in `azure.json`.
pub(super) const INTERVAL_SECONDS: u64 = 5;
/// A new API server makes the namespace `default` a moment after it is ready.
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// The Service cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("cannot create the Service default/{NAME} or its EndpointSlice: {0}")]
pub struct LocalServiceError(#[source] Box<kube::Error>);

/// Creates the Service and its EndpointSlice. Waits for the namespace `default`; the caller bounds that time.
pub(super) async fn create(client: &Client) -> Result<(), LocalServiceError> {
    let failed = |error| LocalServiceError(Box::new(error));
    let parsed = |error| failed(kube::Error::SerdeError(error));
    let service = json!({"metadata": {"name": NAME}, "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local",
        "ipFamilies": ["IPv4"], "ports": [{"port": 80}]}});
    let service: Service = serde_json::from_value(service).map_err(parsed)?;
    let slice = json!({"metadata": {"name": SLICE, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": "IPv4", "endpoints": [], "ports": [{"port": 80}]});
    let slice: EndpointSlice = serde_json::from_value(slice).map_err(parsed)?;
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), "default");
    loop {
        match slices.create(&PostParams::default(), &slice).await {
            Ok(_) => break,
            Err(kube::Error::Api(status)) if status.code == 404 => sleep(RETRY_DELAY).await,
            Err(error) => return Err(failed(error)),
        }
    }
    let services = Api::<Service>::namespaced(client.clone(), "default");
    services
        .create(&PostParams::default(), &service)
        .await
        .map_err(failed)?;
    Ok(())
}
