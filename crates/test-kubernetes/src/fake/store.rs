//! All objects under one `resourceVersion`, what may become of them, and what became of them lately.

use std::collections::{BTreeMap, VecDeque};

use base64::Engine as _;
use serde_json::{Map, Value, json};

use super::kinds::At;
use super::rules::{Refusal, conflict, not_found, refusal, validate};

/// So many changes are remembered for watches.
const REMEMBERED: usize = 1000;

#[derive(Default)]
pub(super) struct Store {
    objects: BTreeMap<At, Value>,
    version: u64,
    changes: VecDeque<Change>,
    /// What happened up to this version is forgotten.
    forgotten: u64,
}

/// One change, as a watch tells it.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) at: At,
    pub(super) kind: &'static str,
    pub(super) object: Value,
}

/// How a PATCH says what is to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Json,
    Merge,
}

/// An answer: its status and body.
pub(super) type Outcome = Result<(u16, Value), Refusal>;

impl Store {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn get(&self, at: &At) -> Option<&Value> {
        self.objects.get(at)
    }

    pub(super) fn skip(&mut self, versions: u64) {
        self.version += versions;
    }

    pub(super) fn compact(&mut self) {
        self.forgotten = self.version;
        self.changes.clear();
    }

    /// Those objects, in their order.
    pub(super) fn objects(&self, those: &At) -> impl Iterator<Item = (&At, &Value)> {
        self.objects.iter().filter(move |(at, _)| at.is_among(those))
    }

    /// What became of those after `version`; `None` if that is forgotten.
    pub(super) fn since(&self, version: u64, those: &At) -> Option<Vec<Change>> {
        let of_those = |change: &&Change| change.version > version && change.at.is_among(those);
        (version >= self.forgotten).then(|| self.changes.iter().filter(of_those).cloned().collect())
    }

    fn remember(&mut self, at: &At, kind: &'static str, object: Value) {
        if self.changes.len() == REMEMBERED {
            self.forgotten = self.changes.pop_front().map_or(0, |change| change.version);
        }
        self.changes.push_back(Change {
            version: self.version,
            at: at.clone(),
            kind,
            object,
        });
    }

    /// Keeps an object as its latest version, unless it is deleted and nothing holds it any more.
    pub(super) fn keep(&mut self, at: &At, mut object: Value) -> Value {
        let released = object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        if released && !object["metadata"]["deletionTimestamp"].is_null() {
            return self.remove(at).unwrap_or(object);
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let before = self.objects.insert(at.clone(), object.clone());
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        self.remember(at, kind, object.clone());
        object
    }

    pub(super) fn remove(&mut self, at: &At) -> Option<Value> {
        let mut object = self.objects.remove(at)?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.remember(at, "DELETED", object.clone());
        Some(object)
    }

    pub(super) fn read(&self, at: &At) -> Outcome {
        let object = self.objects.get(at).ok_or_else(|| not_found(at.kind, &at.name))?;
        Ok((200, object.clone()))
    }

    /// A page of a list; a page's token is the place that the last one ended at.
    pub(super) fn list(&self, those: &At, limit: usize, after: &str) -> Value {
        let place = |at: &At| format!("{}/{}", at.namespace, at.name);
        let rest: Vec<_> = self.objects(those).filter(|(at, _)| *place(at) > *after).collect();
        let limit = if limit == 0 { rest.len() } else { limit };
        let page = &rest[..limit.min(rest.len())];
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if let Some((last, _)) = page.last().filter(|_| rest.len() > limit) {
            metadata["continue"] = json!(place(last));
            metadata["remainingItemCount"] = json!(rest.len() - limit);
        }
        json!({"apiVersion": those.kind.api_version, "kind": format!("{}List", those.kind.name), "metadata": metadata,
            "items": page.iter().map(|(_, object)| *object).collect::<Vec<_>>()})
    }

    pub(super) fn create(&mut self, those: &At, mut object: Value) -> Outcome {
        let metadata = &mut object["metadata"];
        if metadata["name"].is_null() {
            let prefix = metadata["generateName"]
                .as_str()
                .ok_or_else(|| refusal(422, "Invalid", "metadata.name: Required value"))?;
            metadata["name"] = json!(format!("{prefix}{:05}", self.version));
        }
        if metadata["resourceVersion"].as_str().is_some_and(|it| !it.is_empty()) {
            let told = "resourceVersion should not be set on objects to be created";
            return Err(refusal(500, "InternalError", told));
        }
        let at = At {
            name: metadata["name"].as_str().unwrap_or_default().to_owned(),
            ..those.clone()
        };
        settle(&at, &mut object)?;
        validate(at.kind, &object)?;
        if self.objects.contains_key(&at) {
            return Err(refusal(409, "AlreadyExists", "already exists"));
        }
        let metadata = &mut object["metadata"];
        metadata["uid"] = json!(format!("00000000-0000-4000-8000-{:012}", self.version + 1));
        metadata["creationTimestamp"] = json!("2026-01-02T03:04:05Z");
        Ok((201, self.keep(&at, object)))
    }

    pub(super) fn replace(&mut self, at: &At, status: bool, mut object: Value) -> Outcome {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let version = text(&object["metadata"]["resourceVersion"]);
        let uid = text(&object["metadata"]["uid"]);
        let Some(present) = self.objects.get(at).cloned() else {
            return match (at.kind.made_by_put, version.is_empty() && uid.is_empty()) {
                (false, _) => Err(not_found(at.kind, &at.name)),
                (true, true) => self.create(at, object),
                // Not from another's remains.
                (true, false) => Err(conflict()),
            };
        };
        settle(at, &mut object)?;
        validate(at.kind, &object)?;
        if version.is_empty() && !at.kind.unconditional {
            let told = "metadata.resourceVersion: must be specified for an update";
            return Err(refusal(422, "Invalid", told));
        }
        let theirs = &present["metadata"];
        let other = |own: &str, field: &str| !own.is_empty() && *own != theirs[field];
        if other(&version, "resourceVersion") || other(&uid, "uid") {
            return Err(conflict());
        }
        // What the API server alone says.
        for field in ["uid", "creationTimestamp", "deletionTimestamp", "resourceVersion"] {
            object["metadata"][field] = theirs[field].clone();
        }
        if at.kind.has_status() {
            let (others, field) = if status {
                ("spec", &present["spec"])
            } else {
                ("status", &present["status"])
            };
            object[others] = field.clone();
        }
        prune(&mut object);
        if object == present {
            return Ok((200, object));
        }
        Ok((200, self.keep(at, object)))
    }

    pub(super) fn patch(&mut self, at: &At, status: bool, form: Form, patch: &Value) -> Outcome {
        let mut object = self
            .objects
            .get(at)
            .cloned()
            .ok_or_else(|| not_found(at.kind, &at.name))?;
        match form {
            Form::Merge => json_patch::merge(&mut object, patch),
            Form::Json => {
                let bad = |error: String| refusal(400, "BadRequest", &error);
                let patch: json_patch::Patch =
                    serde_json::from_value(patch.clone()).map_err(|error| bad(error.to_string()))?;
                let failed = |error: json_patch::PatchError| refusal(422, "Invalid", &error.to_string());
                json_patch::patch(&mut object, &patch).map_err(failed)?;
            }
        }
        self.replace(at, status, object)
    }

    pub(super) fn delete(&mut self, at: &At, options: &Value) -> Outcome {
        let present = self.objects.get(at).ok_or_else(|| not_found(at.kind, &at.name))?;
        for field in ["uid", "resourceVersion"] {
            let asked = &options["preconditions"][field];
            if !asked.is_null() && *asked != present["metadata"][field] {
                return Err(conflict());
            }
        }
        let held = present["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        if held {
            let mut object = present.clone();
            if object["metadata"]["deletionTimestamp"].is_null() {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
                object["metadata"]["deletionGracePeriodSeconds"] = json!(0);
                object = self.keep(at, object);
            }
            return Ok((200, object));
        }
        self.remove(at);
        Ok((200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})))
    }
}

/// Gives an object that was sent the form in which it is kept.
fn settle(at: &At, object: &mut Value) -> Result<(), Refusal> {
    let metadata = &mut object["metadata"];
    let is_named = |field: &Value, name: &str| field.is_null() || *field == name;
    if !is_named(&metadata["name"], &at.name) || !is_named(&metadata["namespace"], &at.namespace) {
        let told = "the name or namespace of the object does not match the one in the URL";
        return Err(refusal(400, "BadRequest", told));
    }
    if at.kind.namespaced {
        metadata["namespace"] = json!(at.namespace);
    }
    object["apiVersion"] = json!(at.kind.api_version);
    object["kind"] = json!(at.kind.name);
    if at.kind.name == "Secret"
        && let Some(texts) = object["stringData"].take().as_object()
    {
        for (key, text) in texts {
            let text = text.as_str().unwrap_or_default();
            object["data"][key] = json!(base64::engine::general_purpose::STANDARD.encode(text));
        }
    }
    prune(object);
    Ok(())
}

/// Nothing is kept of what is null.
fn prune(value: &mut Value) {
    if let Value::Object(fields) = value {
        *fields = std::mem::take(fields)
            .into_iter()
            .filter(|(_, field)| !field.is_null())
            .collect::<Map<_, _>>();
        fields.values_mut().for_each(prune);
    }
}
