//! Follows a collection through its watch: each state of each object, in order.

use futures::StreamExt as _;
use kube::api::ApiResource;
use kube::core::{DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::Value;

/// Calls `seen` with each state of the objects of a kind, in all namespaces, until it is dropped.
pub(crate) async fn follow(client: Client, group: &str, version: &str, kind: &str, mut seen: impl FnMut(Value)) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    let api = Api::<DynamicObject>::all_with(client, &resource);
    let mut events = watcher(api, watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        if let Ok(Event::Apply(object) | Event::InitApply(object)) = event {
            seen(serde_json::to_value(object).unwrap());
        }
    }
}
