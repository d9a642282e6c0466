//! Resources as a GET shows them: the stored document, and what Azure fills in and derives.

use serde_json::{Value, json};

use super::Store;
use crate::id::same_name;
use crate::load_balancer::{self, References};
use crate::network;
use crate::operations::Removal;
use crate::pool::View;
use crate::resource::{self, ProvisioningState, Resource, embedded};

impl Store {
    /// A resource as a GET shows it.
    pub(crate) fn show(&self, resource: &Resource, show_none: bool) -> Value {
        let kind = resource.id.kind();
        let mut object = resource.show_without_children();
        let lists: Vec<(&str, Value)> = embedded(&kind)
            .iter()
            .filter(|kind| {
                // Azure shows the empty lists of a load balancer.
                let is_given = resource::property(&resource.document, kind).is_some();
                is_given || same_name(&resource.id.kind(), load_balancer::KIND)
            })
            .map(|kind| (*kind, self.show_children(resource, kind, show_none).into()))
            .collect();
        if let Some(properties) = resource::properties_mut(&mut object) {
            for (kind, list) in lists {
                properties.insert(kind.to_owned(), list);
            }
            network::show(self, resource, properties);
        }
        object.into()
    }

    /// The children of one kind as a GET shows them.
    pub(crate) fn show_children(&self, resource: &Resource, kind: &'static str, show_none: bool) -> Vec<Value> {
        let list = resource::children(&resource.document, kind);
        self.show_list(resource, kind, list, show_none)
    }

    /// One child as a GET shows it.
    pub(crate) fn show_child(&self, resource: &Resource, kind: &'static str, child: &Value, show_none: bool) -> Value {
        let mut shown = self.show_list(resource, kind, std::slice::from_ref(child), show_none);
        shown.pop().unwrap_or_else(|| json!({}))
    }

    fn show_list(&self, resource: &Resource, kind: &'static str, list: &[Value], show_none: bool) -> Vec<Value> {
        let mut shown = self.show_stored(resource, kind, list, show_none);
        let operation = resource.operation.and_then(|id| self.operations.in_progress(id));
        if let Some(Removal::Child(removed, name)) = operation.and_then(|operation| operation.removal.as_ref())
            && *removed == kind
            && let Some(index) = resource::position(list, name)
        {
            shown[index]["properties"]["provisioningState"] = ProvisioningState::Deleting.as_str().into();
        }
        shown
    }

    fn show_stored(&self, resource: &Resource, kind: &'static str, list: &[Value], show_none: bool) -> Vec<Value> {
        if !same_name(&resource.id.kind(), load_balancer::KIND) {
            return list
                .iter()
                .map(|child| resource.show_child(kind, child).into())
                .collect();
        }
        let references = References::from_resource(resource);
        let view = View {
            members: &self.members,
            show_none,
        };
        list.iter()
            .map(|child| load_balancer::show_child(resource, kind, child, &references, &view))
            .collect()
    }
}
