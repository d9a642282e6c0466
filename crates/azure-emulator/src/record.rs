//! One resource as it is kept, and as a GET shows it.
//!
//! Kept is what its writers wrote; what Azure adds (ids, types, etags, provisioning states) is filled in
//! when it is shown, at every level alike, so that the two cannot disagree. Children that live in
//! their parent's document (pools, rules, subnets) share its etag and state.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::etag::Etag;
use super::id::{ResourceId, is};

/// A JSON object.
pub(super) type Object = Map<String, Value>;

/// How far the last write of a resource is.
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

/// A top-level resource: one that is stored, locked and written by itself.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Spelled as it was first seen.
    pub(super) id: ResourceId,
    /// What its writers wrote.
    pub(super) document: Object,
    pub(super) etag: Etag,
    pub(super) state: ProvisioningState,
    /// The write that is under way.
    pub(super) operation: Option<Uuid>,
}

/// Kinds of children that live in the document of a resource of this type.
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
    let row = TABLE.iter().find(|(owner, _)| is(owner, kind));
    row.map_or(&[], |(_, kinds)| kinds)
}

/// The resource in whose document this one lives, if it lives in one.
pub(super) fn owner(id: &ResourceId) -> Option<ResourceId> {
    let outer = id.segments.len().checked_sub(1).filter(|outer| *outer > 0)?;
    let owner = id.ancestor(outer);
    let (kind, _) = id.segments.last()?;
    embedded(&owner.kind())
        .iter()
        .any(|known| is(known, kind))
        .then_some(owner)
}

/// The children of one kind in a document.
pub(super) fn children<'a>(document: &'a Object, kind: &str) -> &'a [Value] {
    let list = document.get("properties").and_then(|properties| properties.get(kind));
    list.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The children of one kind in a document, to be changed; the list is made where there is none.
pub(super) fn children_mut<'a>(document: &'a mut Object, kind: &str) -> Option<&'a mut Vec<Value>> {
    let properties = properties_mut(document)?;
    properties.entry(kind).or_insert_with(|| json!([])).as_array_mut()
}

/// A copy of a document without its children of these kinds: they can be most of it.
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

/// A copy of a document with a child in the place of the one that is there, or behind all others.
pub(super) fn with_child(document: &Object, kind: &str, place: Option<usize>, child: Value) -> Object {
    let mut copy = without(document, &[kind]);
    let others = children(document, kind).iter().enumerate();
    let others = others.filter(|(number, _)| Some(*number) != place);
    let mut list: Vec<Value> = others.map(|(_, other)| other.clone()).collect();
    list.insert(place.unwrap_or(list.len()), child);
    if let Some(properties) = properties_mut(&mut copy) {
        properties.insert(kind.to_owned(), list.into());
    }
    copy
}

/// The `properties` of an object, made where there are none.
pub(super) fn properties_mut(object: &mut Object) -> Option<&mut Object> {
    let properties = object.entry("properties").or_insert_with(|| json!({}));
    if properties.is_null() {
        *properties = json!({});
    }
    properties.as_object_mut()
}

/// Where the child of this name is in a list.
pub(super) fn position(list: &[Value], name: &str) -> Option<usize> {
    list.iter()
        .position(|child| name_of(child).is_some_and(|found| is(found, name)))
}

/// The name of a child.
pub(super) fn name_of(child: &Value) -> Option<&str> {
    child.get("name").and_then(Value::as_str)
}

/// The location a document names, as URLs have it.
pub(super) fn located(document: &Object) -> Option<String> {
    let location = document.get("location")?.as_str()?.replace(' ', "");
    Some(location.to_lowercase()).filter(|location| !location.is_empty())
}

/// Takes away what Azure fills in: a writer may send it, and is not heard.
pub(super) fn strip(object: &mut Object) {
    for field in ["id", "etag", "type"] {
        object.remove(field);
    }
    if let Some(properties) = object.get_mut("properties").and_then(Value::as_object_mut) {
        properties.remove("provisioningState");
        properties.remove("resourceGuid");
    }
}

impl Record {
    /// The id of a child.
    pub(super) fn child_id(&self, kind: &str, name: &str) -> String {
        format!("{}/{kind}/{name}", self.id)
    }

    /// An object that belongs to the resource, with what Azure fills in.
    pub(super) fn filled(&self, mut object: Object, id: String, kind: String) -> Object {
        object.insert("id".into(), id.into());
        object.insert("type".into(), kind.into());
        object.insert("etag".into(), self.etag.to_string().into());
        if let Some(properties) = properties_mut(&mut object) {
            properties.insert("provisioningState".into(), self.state.as_str().into());
        }
        object
    }

    /// A child as a GET shows it, without what is derived for its kind.
    pub(super) fn child(&self, kind: &str, child: &Value) -> Object {
        let object = child.as_object().cloned().unwrap_or_default();
        let id = self.child_id(kind, name_of(child).unwrap_or_default());
        self.filled(object, id, format!("{}/{kind}", self.id.kind()))
    }

    /// The resource itself as a GET shows it, without the children that live in its document.
    pub(super) fn itself(&self) -> Object {
        let kind = self.id.kind();
        let mut object = self.filled(without(&self.document, embedded(&kind)), self.id.to_string(), kind);
        object.insert("name".into(), self.id.name().into());
        if let Some(properties) = properties_mut(&mut object)
            && is(&self.id.namespace, "Microsoft.Network")
        {
            let guid = super::guids::named(&self.id.key());
            properties.insert("resourceGuid".into(), guid.to_string().into());
        }
        object
    }
}
