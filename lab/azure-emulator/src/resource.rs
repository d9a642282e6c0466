//! A stored resource, and its JSON as a GET shows it.
//!
//! The store has what clients wrote. What Azure adds (ids, types, etags, provisioning states) is filled in when the
//! resource is shown, in the same way at every level, so that the two cannot disagree. Children that are part of their
//! parent's document (pools, rules, subnets) share its etag and state.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::etag::Etag;
use super::id::{ResourceId, same_name};

pub(super) type Object = Map<String, Value>;

/// The provisioning state, which the last write decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProvisioningState {
    Succeeded,
    Updating,
    Deleting,
    Failed,
    Canceled,
}

impl ProvisioningState {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Updating => "Updating",
            Self::Deleting => "Deleting",
            Self::Failed => "Failed",
            Self::Canceled => "Canceled",
        }
    }
}

/// A top-level resource: it is stored, written and versioned by itself.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    /// The id, as the first request spelled it.
    pub(super) id: ResourceId,
    /// The document as clients wrote it, normalized.
    pub(super) document: Object,
    pub(super) etag: Etag,
    pub(super) state: ProvisioningState,
    /// The operation in progress.
    pub(super) operation: Option<Uuid>,
}

/// The kinds of children that are part of the document of a resource of this type.
pub(super) fn embedded(kind: &str) -> &'static [&'static str] {
    const TABLE: [(&str, &[&str]); 6] = [
        (
            "Microsoft.Network/loadBalancers",
            &[
                "frontendIPConfigurations",
                "backendAddressPools",
                "loadBalancingRules",
                "probes",
                "inboundNatRules",
                "inboundNatPools",
                "outboundRules",
            ],
        ),
        (
            "Microsoft.Network/virtualNetworks",
            &["subnets", "virtualNetworkPeerings"],
        ),
        (
            "Microsoft.Network/networkSecurityGroups",
            &["securityRules", "defaultSecurityRules"],
        ),
        ("Microsoft.Network/routeTables", &["routes"]),
        ("Microsoft.Network/networkInterfaces", &["ipConfigurations"]),
        (
            "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/networkInterfaces",
            &["ipConfigurations"],
        ),
    ];
    let row = TABLE.iter().find(|(owner, _)| same_name(owner, kind));
    row.map_or(&[], |(_, kinds)| kinds)
}

/// The resource that has this one in its document, `None` for a top-level resource.
pub(super) fn owner(id: &ResourceId) -> Option<ResourceId> {
    let outer = id.segments.len().checked_sub(1).filter(|outer| *outer > 0)?;
    let owner = id.ancestor(outer);
    let kinds = embedded(&owner.kind());
    kinds.iter().any(|kind| id.is_a(kind)).then_some(owner)
}

/// A field of a document's properties.
pub(super) fn property<'a>(document: &'a Object, name: &str) -> Option<&'a Value> {
    document.get("properties")?.get(name)
}

/// The children of one kind in a document; empty if the document has no such list.
pub(super) fn children<'a>(document: &'a Object, kind: &str) -> &'a [Value] {
    let list = property(document, kind).and_then(Value::as_array);
    list.map_or(&[], Vec::as_slice)
}

/// The child of one kind with this name.
pub(super) fn child<'a>(document: &'a Object, kind: &str, name: &str) -> Option<&'a Value> {
    let list = children(document, kind);
    Some(&list[position(list, name)?])
}

/// Mutable access to the children of one kind; makes the list if there is none.
pub(super) fn children_mut<'a>(document: &'a mut Object, kind: &str) -> Option<&'a mut Vec<Value>> {
    let properties = properties_mut(document)?;
    properties.entry(kind).or_insert_with(|| json!([])).as_array_mut()
}

/// A copy of a document without its children of these kinds, which can be most of it.
fn without(document: &Object, kinds: &[&str]) -> Object {
    let copied = document.iter().map(|(name, value)| {
        let properties = value.as_object().filter(|_| name == "properties");
        let value = properties.map_or_else(
            || value.clone(),
            |properties| {
                let others = properties.iter().filter(|(name, _)| !kinds.contains(&name.as_str()));
                others.map(|(name, value)| (name.clone(), value.clone())).collect()
            },
        );
        (name.clone(), value)
    });
    copied.collect()
}

/// A copy of a document with `child` at an index of the list, or at its end.
pub(super) fn with_child(document: &Object, kind: &str, index: Option<usize>, child: Value) -> Object {
    let mut copy = without(document, &[kind]);
    let others = children(document, kind).iter().enumerate();
    let others = others.filter(|(number, _)| Some(*number) != index);
    let mut list: Vec<Value> = others.map(|(_, other)| other.clone()).collect();
    list.insert(index.unwrap_or(list.len()), child);
    if let Some(properties) = properties_mut(&mut copy) {
        properties.insert(kind.to_owned(), list.into());
    }
    copy
}

/// Mutable access to `properties`; makes the object if there is none.
pub(super) fn properties_mut(object: &mut Object) -> Option<&mut Object> {
    let properties = object.entry("properties").or_insert_with(|| json!({}));
    if properties.is_null() {
        *properties = json!({});
    }
    properties.as_object_mut()
}

/// The index of the child with this name.
pub(super) fn position(list: &[Value], name: &str) -> Option<usize> {
    list.iter()
        .position(|child| name_of(child).is_some_and(|found| same_name(found, name)))
}

pub(super) fn name_of(child: &Value) -> Option<&str> {
    child.get("name").and_then(Value::as_str)
}

/// The location in a document, as URLs spell it.
pub(super) fn location_of(document: &Object) -> Option<String> {
    let location = document.get("location")?.as_str()?.replace(' ', "");
    Some(location.to_lowercase()).filter(|location| !location.is_empty())
}

/// Removes the fields that Azure fills in: clients may send them, and they are ignored.
pub(super) fn strip_read_only(object: &mut Object) {
    for field in ["id", "etag", "type"] {
        object.remove(field);
    }
    if let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) {
        properties.remove("provisioningState");
        properties.remove("resourceGuid");
    }
}

impl Resource {
    /// The id of a child, as a string.
    pub(super) fn child_id(&self, kind: &str, name: &str) -> String {
        format!("{}/{kind}/{name}", self.id)
    }

    /// Adds to an object of this resource the fields that Azure fills in.
    pub(super) fn with_read_only_fields(&self, mut object: Object, id: String, kind: String) -> Object {
        object.insert("id".into(), id.into());
        object.insert("type".into(), kind.into());
        object.insert("etag".into(), self.etag.to_string().into());
        if let Some(properties) = properties_mut(&mut object) {
            properties.insert("provisioningState".into(), self.state.as_str().into());
        }
        object
    }

    /// A child as a GET shows it, without the fields that are derived for its kind.
    pub(super) fn show_child(&self, kind: &str, child: &Value) -> Object {
        let object = child.as_object().cloned().unwrap_or_default();
        let id = self.child_id(kind, name_of(child).unwrap_or_default());
        self.with_read_only_fields(object, id, format!("{}/{kind}", self.id.kind()))
    }

    /// The resource as a GET shows it, without the children in its document.
    pub(super) fn show_without_children(&self) -> Object {
        let kind = self.id.kind();
        let mut object =
            self.with_read_only_fields(without(&self.document, embedded(&kind)), self.id.to_string(), kind);
        object.insert("name".into(), self.id.name().into());
        if let Some(properties) = properties_mut(&mut object)
            && same_name(&self.id.namespace, "Microsoft.Network")
        {
            let guid = super::guids::guid_for_name(&self.id.key());
            properties.insert("resourceGuid".into(), guid.to_string().into());
        }
        object
    }
}
