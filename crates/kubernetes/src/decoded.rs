//! Objects of a list, a watch or an answer, each decoded for itself.
//!
//! A kube-apiserver stores more than Rust's types represent: a `metav1.Time` reaches to the year 9999 and beyond what
//! `jiff::Timestamp` holds, `managedFields` of an object have any depth, and a stored custom resource is not validated again when
//! its schema changes. [`Decoded`] keeps the error of such an object with the object, so that it does not make the others unreadable.
//!
//! Invariants: an object that the type can decode is decoded as it is. Where it cannot, `managedFields` are left out, and times that
//! no `Timestamp` represents become the nearest one: in the metadata first, in all fields where that is not enough. Labels and annotations
//! are never changed. An object that still cannot be decoded is [`Undecodable`]. What is skipped is the reader's decision.

mod repair;

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::ObjectList;
use serde::de::DeserializeOwned;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use repair::{Repair, identity, repaired};

/// The text of an error is cut there: it may cite a value of the object.
const MAX_ERROR_BYTES: usize = 256;

/// An object, or what is known of one that cannot be decoded. Decodes from JSON text or a JSON value; in an event of a watch, the
/// type has to be before the object, as the API server writes it.
#[derive(Clone, Debug)]
pub enum Decoded<K> {
    /// The object.
    Object(K),
    /// It cannot be decoded.
    Undecodable(Box<Undecodable>),
}

/// What is known of an object that cannot be decoded.
#[derive(Clone, Debug, Default, thiserror::Error)]
#[error("{} cannot be decoded: {error}", self.name())]
pub struct Undecodable {
    /// Name, namespace, UID and resourceVersion, as far as they are readable.
    pub metadata: ObjectMeta,
    /// Why it cannot be decoded.
    pub error: String,
}

impl Undecodable {
    /// The name, with the namespace of an object that has one.
    pub fn name(&self) -> String {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        match &self.metadata.namespace {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_owned(),
        }
    }
}

impl<K> Decoded<K> {
    /// The object.
    ///
    /// # Errors
    ///
    /// If it cannot be decoded, as an error of the request.
    pub fn into_object(self) -> kube::Result<K> {
        match self {
            Self::Object(object) => Ok(object),
            Self::Undecodable(undecodable) => Err(kube::Error::Service(undecodable)),
        }
    }
}

/// The objects of a list that can be decoded, and the others.
pub fn split_list<K: Clone>(list: ObjectList<Decoded<K>>) -> (Vec<K>, Vec<Undecodable>) {
    let (mut objects, mut undecodable) = (Vec::with_capacity(list.items.len()), Vec::new());
    for item in list.items {
        match item {
            Decoded::Object(object) => objects.push(object),
            Decoded::Undecodable(item) => undecodable.push(*item),
        }
    }
    (objects, undecodable)
}

/// What is wrong, without its place in a text that nobody sees: another annotation would be another reason.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

impl<'de, K> Deserialize<'de> for Decoded<K>
where
    K: DeserializeOwned,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let mut error = match serde_json::from_str(text.get()) {
            Ok(object) => return Ok(Self::Object(object)),
            Err(error) => reason(&error),
        };
        for repair in [Repair::Metadata, Repair::All] {
            // Where nothing can be repaired, the first error says why.
            let Ok(repaired) = repaired(text.get(), repair) else {
                break;
            };
            match serde_json::from_str(&repaired) {
                Ok(object) => return Ok(Self::Object(object)),
                Err(remaining) => error = reason(&remaining),
            }
        }
        error.truncate(error.floor_char_boundary(MAX_ERROR_BYTES));
        Ok(Self::Undecodable(Box::new(Undecodable {
            metadata: identity(text.get()),
            error,
        })))
    }
}

impl<K: Serialize> Serialize for Decoded<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Object(object) => object.serialize(serializer),
            Self::Undecodable(undecodable) => Err(S::Error::custom(undecodable)),
        }
    }
}

impl<K: Resource> Resource for Decoded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Object(object) => object.meta(),
            Self::Undecodable(undecodable) => &undecodable.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Object(object) => object.meta_mut(),
            Self::Undecodable(undecodable) => &mut undecodable.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::api::coordination::v1::Lease;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::{Value, json};

    use super::*;

    fn list<K>(items: &Value) -> (Vec<K>, Vec<Undecodable>)
    where
        K: Clone + DeserializeOwned,
    {
        let text = json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}).to_string();
        split_list(serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn odd_times_and_managed_fields_hide_no_object() {
        let mut deep = json!({});
        for _ in 0..200 {
            deep = json!({"f:a": deep});
        }
        let text = format!(
            r#"{{"metadata":{{"name":"deep","labels":{{"l":"9999-12-31T23:59:59Z"}},"managedFields":[{{"fieldsV1":{deep}}}]}}}}"#
        );
        let Decoded::Object(node) = serde_json::from_str::<Decoded<Node>>(&text).unwrap() else {
            panic!("skipped")
        };
        assert_eq!(node.metadata.labels.unwrap()["l"], "9999-12-31T23:59:59Z");
        for time in [
            "9999-12-31T23:59:59Z",
            "10000-01-01T00:00:00Z",
            "-001-01-01T00:00:00Z",
            "0000-01-01T00:00:00Z",
        ] {
            let (nodes, undecodable) = list::<Node>(&json!([
                {"metadata": {"name": "odd", "deletionTimestamp": time, "managedFields": [{"manager": "x", "time": time}]},
                    "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": time}]}},
                {"metadata": {"name": "good"}},
            ]));
            assert_eq!((nodes.len(), undecodable.len()), (2, 0), "{time}");
            assert!(nodes[0].metadata.deletion_timestamp.is_some(), "{time}");
        }
        let (leases, _) =
            list::<Lease>(&json!([{"metadata": {"name": "l"}, "spec": {"renewTime": "9999-12-31T23:59:59.999999Z"}}]));
        let renewed = leases[0].spec.as_ref().unwrap().renew_time.as_ref().unwrap();
        assert_eq!(renewed.0, Timestamp::MAX);
    }

    #[test]
    fn undecodable_object_is_named_and_hides_no_other() {
        let (nodes, undecodable) = list::<Node>(&json!([
            {"metadata": {"name": "one", "uid": "u", "resourceVersion": "7"}, "spec": {"unschedulable": "x".repeat(999)}},
            {"metadata": 7},
            {"metadata": {"name": "two"}},
        ]));
        assert_eq!((nodes.len(), nodes[0].metadata.name.as_deref()), (1, Some("two")));
        assert_eq!(undecodable[0].name(), "one");
        assert_eq!(undecodable[0].metadata.uid.as_deref(), Some("u"));
        assert!(undecodable[0].error.len() <= MAX_ERROR_BYTES, "{}", undecodable[0]);
        assert_eq!(undecodable[1].name(), "");
    }
}
