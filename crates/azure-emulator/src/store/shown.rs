//! Resources as a GET shows them: what was written, with what Azure fills in and derives.

use serde_json::{Value, json};

use super::Store;
use crate::id::is;
use crate::load_balancer::{self, References};
use crate::network;
use crate::operations::Removal;
use crate::pool::View;
use crate::record::{self, ProvisioningState, Record, embedded};

impl Store {
    /// A resource as a GET shows it.
    pub(in super::super) fn shown(&self, record: &Record, show_none: bool) -> Value {
        let kind = record.id.kind();
        let mut object = record.itself();
        let lists: Vec<(&str, Value)> = embedded(&kind)
            .iter()
            .filter(|kind| {
                let given = record
                    .document
                    .get("properties")
                    .and_then(|properties| properties.get(**kind));
                // Azure shows a load balancer's empty lists.
                given.is_some() || is(&record.id.kind(), load_balancer::KIND)
            })
            .map(|kind| (*kind, self.shown_children(record, kind, show_none).into()))
            .collect();
        if let Some(properties) = record::properties_mut(&mut object) {
            for (kind, list) in lists {
                properties.insert(kind.to_owned(), list);
            }
            network::show(self, record, properties);
        }
        object.into()
    }

    /// The children of one kind as a GET shows them.
    pub(in super::super) fn shown_children(&self, record: &Record, kind: &'static str, show_none: bool) -> Vec<Value> {
        let list = record::children(&record.document, kind);
        self.shown_some(record, kind, list, show_none)
    }

    /// One child as a GET shows it.
    pub(in super::super) fn shown_child(
        &self,
        record: &Record,
        kind: &'static str,
        child: &Value,
        show_none: bool,
    ) -> Value {
        let mut shown = self.shown_some(record, kind, std::slice::from_ref(child), show_none);
        shown.pop().unwrap_or_else(|| json!({}))
    }

    fn shown_some(&self, record: &Record, kind: &'static str, list: &[Value], show_none: bool) -> Vec<Value> {
        let mut shown = self.shown_as_kept(record, kind, list, show_none);
        let operation = record.operation.and_then(|id| self.operations.in_progress(id));
        if let Some(Removal::Child(of, name)) = operation.and_then(|operation| operation.removal.as_ref())
            && *of == kind
            && let Some(place) = record::position(list, name)
        {
            shown[place]["properties"]["provisioningState"] = ProvisioningState::Deleting.as_str().into();
        }
        shown
    }

    fn shown_as_kept(&self, record: &Record, kind: &'static str, list: &[Value], show_none: bool) -> Vec<Value> {
        if !is(&record.id.kind(), load_balancer::KIND) {
            return list.iter().map(|child| record.child(kind, child).into()).collect();
        }
        let references = References::of(record);
        let view = View {
            members: &self.members,
            show_none,
        };
        list.iter()
            .map(|child| load_balancer::child(record, kind, child, &references, &view))
            .collect()
    }
}
