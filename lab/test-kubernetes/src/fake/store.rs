//! All objects under one `resourceVersion`, what may become of them, and what became of them lately.

use std::collections::{BTreeMap, VecDeque};

use base64::Engine as _;
use headgate_core::clock::{Clock, whole_seconds};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};

use super::resources::{ObjectKey, Selector};
use super::validation::{ApiError, api_error, conflict, not_found, validate};

/// 2026-01-02T03:04:05Z, the time of a new server.
const START: Timestamp = Timestamp::constant(1_767_323_045, 0);
/// Changes that are kept for watches.
const MAX_CHANGES: usize = 1000;
/// Lists of several pages that may be under way.
const MAX_LISTS: usize = 10;

/// The clock of a server, from its start on.
#[derive(Clone)]
pub(super) struct ServerClock(pub(super) Clock);

impl Default for ServerClock {
    fn default() -> Self {
        Self(Clock::anchored(START))
    }
}

#[derive(Clone, Default)]
pub(super) struct Store {
    pub(super) clock: ServerClock,
    objects: BTreeMap<ObjectKey, Value>,
    version: u64,
    changes: VecDeque<Change>,
    /// Changes up to this version are no longer available to watches.
    compacted_version: u64,
    /// The objects that lists of several pages show, by the version of the first page.
    lists: BTreeMap<u64, BTreeMap<ObjectKey, Value>>,
}

/// A change, as a watch event reports it.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) key: ObjectKey,
    pub(super) kind: &'static str,
    pub(super) object: Value,
    /// What the change replaced.
    before: Option<Value>,
}

impl Change {
    /// The change as a watch with this selector reports it: an object that comes to be selected is added, and one that is no
    /// longer selected is deleted.
    fn select(&self, selector: &Selector) -> Option<Self> {
        let was_selected = self
            .before
            .as_ref()
            .is_some_and(|before| selector.matches(&self.key, before));
        let is_selected = self.kind != "DELETED" && selector.matches(&self.key, &self.object);
        let kind = match (was_selected, is_selected) {
            (false, false) => return None,
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        Some(Self { kind, ..self.clone() })
    }
}

/// The format of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchType {
    Json,
    Merge,
    /// Merges conditions by their type, and everything else as [`PatchType::Merge`] does.
    Strategic,
}

/// The status and body of a response.
pub(super) type ApiResult = Result<(u16, Value), ApiError>;

impl Store {
    /// The time in so many seconds, as objects show it.
    fn time_in(&self, seconds: i64) -> Value {
        let time = self.clock.0.now().wall + SignedDuration::from_secs(seconds);
        json!(whole_seconds(time).to_string())
    }

    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Value> {
        self.objects.get(key)
    }

    pub(super) fn skip(&mut self, versions: u64) {
        self.version += versions;
    }

    pub(super) fn compact(&mut self) {
        self.compacted_version = self.version;
        self.changes.clear();
    }

    /// The selected objects, ordered by key.
    pub(super) fn objects(&self, selector: &Selector) -> impl Iterator<Item = (&ObjectKey, &Value)> {
        let objects = self.objects.iter();
        objects.filter(move |(key, object)| selector.matches(key, object))
    }

    /// Changes of the selected objects after `version`; `None` if these were compacted.
    pub(super) fn changes_since(&self, version: u64, selector: &Selector) -> Option<Vec<Change>> {
        let newer = self.changes.iter().filter(|change| change.version > version);
        (version >= self.compacted_version).then(|| newer.filter_map(|change| change.select(selector)).collect())
    }

    fn record_change(&mut self, key: &ObjectKey, kind: &'static str, object: Value, before: Option<Value>) {
        if self.changes.len() == MAX_CHANGES {
            self.compacted_version = self.changes.pop_front().map_or(0, |change| change.version);
        }
        self.changes.push_back(Change {
            version: self.version,
            key: key.clone(),
            kind,
            object,
            before,
        });
    }

    /// Stores an object as a new version. An object that is being deleted is removed when it has no finalizer and no grace period left.
    pub(super) fn put(&mut self, key: &ObjectKey, mut object: Value) -> Value {
        let metadata = &object["metadata"];
        let is_ending = !metadata["deletionTimestamp"].is_null() && grace_seconds(metadata).unwrap_or(0) == 0;
        if is_ending && metadata["finalizers"].as_array().is_none_or(Vec::is_empty) {
            return self.remove(key).unwrap_or(object);
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let before = self.objects.get(key).unwrap_or(&Value::Null);
        if let Some(generation) = key.kind.next_generation(before, &object) {
            object["metadata"]["generation"] = json!(generation);
        }
        let before = self.objects.insert(key.clone(), object.clone());
        let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
        self.record_change(key, kind, object.clone(), before);
        object
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Value> {
        let mut object = self.objects.remove(key)?;
        let before = object.clone();
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.record_change(key, "DELETED", object.clone(), Some(before));
        Some(object)
    }

    /// Whether a pod has no kubelet to end it: its Node is missing or of unknown state.
    pub(super) fn lacks_kubelet(&self, pod: &ObjectKey) -> bool {
        let Some(name) = self.get(pod).and_then(|pod| pod["spec"]["nodeName"].as_str()) else {
            return false;
        };
        let is_unknown = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "Unknown";
        self.get(&ObjectKey::new("v1", "nodes", "", name)).is_none_or(|node| {
            let conditions = node["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(is_unknown))
        })
    }

    /// Whether a pod's Node is unschedulable; `None` if this is no pod of a Node.
    pub(super) fn is_node_cordoned(&self, pod: &ObjectKey) -> Option<bool> {
        let pod = self.get(pod).filter(|_| pod.kind.name == "Pod")?;
        let node = self.get(&ObjectKey::new("v1", "nodes", "", pod["spec"]["nodeName"].as_str()?))?;
        Some(node["spec"]["unschedulable"] == true)
    }

    pub(super) fn read(&self, key: &ObjectKey) -> ApiResult {
        let object = self.objects.get(key).ok_or_else(|| not_found(key.kind, &key.name))?;
        Ok((200, object.clone()))
    }

    /// A page of a list, whose pages all show the state of the first one. The `continue` token is the version of that state, and the
    /// position of the last object of the page.
    pub(super) fn list(&mut self, selector: &Selector, limit: usize, token: &str) -> Value {
        let position = |key: &ObjectKey| format!("{}/{}", key.namespace, key.name);
        let begun = token.split_once(' ');
        let begun = begun.and_then(|(version, after)| Some((version.parse().ok()?, after)));
        let (version, after) = begun.unwrap_or((self.version, ""));
        let objects = self.lists.get(&version).unwrap_or(&self.objects).iter();
        let rest: Vec<_> = objects
            .filter(|(key, object)| selector.matches(key, object) && *position(key) > *after)
            .collect();
        let limit = if limit == 0 { rest.len() } else { limit };
        let page = &rest[..limit.min(rest.len())];
        let mut metadata = json!({"resourceVersion": version.to_string()});
        let is_last = rest.len() <= limit;
        if let Some((last, _)) = page.last().filter(|_| !is_last) {
            metadata["continue"] = json!(format!("{version} {}", position(last)));
            metadata["remainingItemCount"] = json!(rest.len() - limit);
        }
        let list = json!({"apiVersion": selector.key.kind.api_version, "kind": format!("{}List", selector.key.kind.name), "metadata": metadata,
            "items": page.iter().map(|(_, object)| *object).collect::<Vec<_>>()});
        if !is_last && begun.is_none() {
            self.lists.insert(version, self.objects.clone());
            if self.lists.len() > MAX_LISTS {
                self.lists.pop_first();
            }
        }
        list
    }

    pub(super) fn create(&mut self, selector: &ObjectKey, mut object: Value) -> ApiResult {
        let metadata = &mut object["metadata"];
        if metadata["name"].is_null() {
            let prefix = metadata["generateName"]
                .as_str()
                .ok_or_else(|| api_error(422, "Invalid", "metadata.name: Required value"))?;
            metadata["name"] = json!(format!("{prefix}{:05}", self.version));
        }
        if metadata["resourceVersion"].as_str().is_some_and(|it| !it.is_empty()) {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(api_error(500, "InternalError", message));
        }
        let key = ObjectKey {
            name: metadata["name"].as_str().unwrap_or_default().to_owned(),
            ..selector.clone()
        };
        normalize(&key, &mut object)?;
        validate(key.kind, &object)?;
        if self.objects.contains_key(&key) {
            return Err(api_error(409, "AlreadyExists", "already exists"));
        }
        let metadata = &mut object["metadata"];
        metadata["uid"] = json!(format!("00000000-0000-4000-8000-{:012}", self.version + 1));
        metadata["creationTimestamp"] = self.time_in(0);
        Ok((201, self.put(&key, object)))
    }

    pub(super) fn replace(&mut self, key: &ObjectKey, is_status: bool, mut object: Value) -> ApiResult {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let version = text(&object["metadata"]["resourceVersion"]);
        let uid = text(&object["metadata"]["uid"]);
        let Some(present) = self.objects.get(key).cloned() else {
            return match (key.kind.allows_create_on_update, version.is_empty() && uid.is_empty()) {
                (false, _) => Err(not_found(key.kind, &key.name)),
                (true, true) => self.create(key, object),
                // An update of an object that was deleted.
                (true, false) => Err(conflict()),
            };
        };
        normalize(key, &mut object)?;
        validate(key.kind, &object)?;
        if version.is_empty() && !key.kind.allows_unconditional_update {
            let message = "metadata.resourceVersion: must be specified for an update";
            return Err(api_error(422, "Invalid", message));
        }
        let stored = &present["metadata"];
        let differs = |own: &str, field: &str| !own.is_empty() && *own != stored[field];
        if differs(&version, "resourceVersion") || differs(&uid, "uid") {
            return Err(conflict());
        }
        // Fields that only the API server sets.
        for field in [
            "uid",
            "generation",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "resourceVersion",
        ] {
            object["metadata"][field] = stored[field].clone();
        }
        if key.kind.has_status() {
            let (unchanged, field) = if is_status {
                ("spec", &present["spec"])
            } else {
                ("status", &present["status"])
            };
            object[unchanged] = field.clone();
        }
        remove_nulls(&mut object);
        if object == present {
            return Ok((200, object));
        }
        Ok((200, self.put(key, object)))
    }

    pub(super) fn patch(
        &mut self,
        key: &ObjectKey,
        is_status: bool,
        patch_type: PatchType,
        patch: &Value,
    ) -> ApiResult {
        let mut object = self
            .objects
            .get(key)
            .cloned()
            .ok_or_else(|| not_found(key.kind, &key.name))?;
        match patch_type {
            PatchType::Merge => json_patch::merge(&mut object, patch),
            PatchType::Strategic => {
                let mut patch = patch.clone();
                let mut conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
                for changed in patch["status"]["conditions"].as_array().cloned().unwrap_or_default() {
                    match conditions.iter_mut().find(|known| known["type"] == changed["type"]) {
                        Some(known) => json_patch::merge(known, &changed),
                        None => conditions.push(changed),
                    }
                }
                patch["status"]["conditions"] = conditions.into();
                json_patch::merge(&mut object, &patch);
            }
            PatchType::Json => {
                let bad = |error: String| api_error(400, "BadRequest", &error);
                let patch: json_patch::Patch =
                    serde_json::from_value(patch.clone()).map_err(|error| bad(error.to_string()))?;
                let failed = |error: json_patch::PatchError| api_error(422, "Invalid", &error.to_string());
                json_patch::patch(&mut object, &patch).map_err(failed)?;
            }
        }
        self.replace(key, is_status, object)
    }

    /// Evicts a pod, as the budgets allow that select it by `matchLabels`.
    pub(super) fn evict(&mut self, key: &ObjectKey, eviction: &Value) -> ApiResult {
        let pod = self
            .objects
            .get(key)
            .ok_or_else(|| not_found(key.kind, &key.name))?
            .clone();
        // No budget keeps a pod that terminates already.
        let is_running = pod["metadata"]["deletionTimestamp"].is_null();
        let selects = |budget: &Value| {
            let labels = budget["spec"]["selector"]["matchLabels"].as_object();
            labels.filter(|_| is_running).is_some_and(|labels| {
                labels
                    .iter()
                    .all(|(name, value)| pod["metadata"]["labels"][name] == *value)
            })
        };
        let is_about = |budget: &(&ObjectKey, &Value)| {
            budget.0.kind.name == "PodDisruptionBudget" && budget.0.namespace == key.namespace && selects(budget.1)
        };
        let mut budgets = self.objects.iter().filter(is_about);
        let budget = match (budgets.next(), budgets.next()) {
            (_, Some(_)) => {
                let message =
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
                return Err(api_error(500, "", message));
            }
            (budget, None) => budget.map(|(key, budget)| (key.clone(), budget.clone())),
        };
        if let Some((budget_key, mut budget)) = budget {
            let allowed = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or_default();
            if allowed <= 0 {
                let message = "Cannot evict pod as it would violate the pod's disruption budget.";
                let (code, mut status) = api_error(429, "TooManyRequests", message);
                status["details"] = json!({"causes": [{"reason": "DisruptionBudget", "message": message}]});
                return Err((code, status));
            }
            budget["status"]["disruptionsAllowed"] = json!(allowed - 1);
            self.put(&budget_key, budget);
        }
        // The preconditions are those of the deletion, after the budget has given its room.
        self.delete(key, &eviction["deleteOptions"])?;
        Ok((201, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})))
    }

    pub(super) fn delete(&mut self, key: &ObjectKey, options: &Value) -> ApiResult {
        let present = self.objects.get(key).ok_or_else(|| not_found(key.kind, &key.name))?;
        for field in ["uid", "resourceVersion"] {
            let expected = &options["preconditions"][field];
            if !expected.is_null() && *expected != present["metadata"][field] {
                return Err(conflict());
            }
        }
        let has_finalizers = present["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        let seconds = grace_period(key, present, options);
        if has_finalizers || seconds > 0 {
            let mut object = present.clone();
            let metadata = &mut object["metadata"];
            // A later deletion can only be earlier.
            if grace_seconds(metadata).is_none_or(|before| seconds < before) {
                metadata["deletionTimestamp"] = self.time_in(seconds);
                metadata["deletionGracePeriodSeconds"] = json!(seconds);
                object = self.put(key, object);
            }
            return Ok((200, object));
        }
        self.remove(key);
        Ok((200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})))
    }
}

/// The grace period of a deletion that has begun.
fn grace_seconds(metadata: &Value) -> Option<i64> {
    metadata["deletionGracePeriodSeconds"].as_i64()
}

/// How many seconds an object has to terminate: only pods that run on a node have any.
fn grace_period(key: &ObjectKey, object: &Value, options: &Value) -> i64 {
    let is_finished = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    if key.kind.name != "Pod" || object["spec"]["nodeName"].is_null() || is_finished {
        return 0;
    }
    let own = &object["spec"]["terminationGracePeriodSeconds"];
    let mut stated = [&options["gracePeriodSeconds"], own]
        .into_iter()
        .filter_map(Value::as_i64);
    stated.next().unwrap_or(30)
}

/// Sets the fields that follow from the path, encodes `stringData` and removes nulls.
fn normalize(key: &ObjectKey, object: &mut Value) -> Result<(), ApiError> {
    let metadata = &mut object["metadata"];
    let is_named = |field: &Value, name: &str| field.is_null() || *field == name;
    if !is_named(&metadata["name"], &key.name) || !is_named(&metadata["namespace"], &key.namespace) {
        let message = "the name or namespace of the object does not match the one in the URL";
        return Err(api_error(400, "BadRequest", message));
    }
    if key.kind.is_namespaced {
        metadata["namespace"] = json!(key.namespace);
    }
    object["apiVersion"] = json!(key.kind.api_version);
    object["kind"] = json!(key.kind.name);
    if key.kind.name == "Secret"
        && let Some(texts) = object["stringData"].take().as_object()
    {
        for (key, text) in texts {
            let text = text.as_str().unwrap_or_default();
            object["data"][key] = json!(base64::engine::general_purpose::STANDARD.encode(text));
        }
    }
    remove_nulls(object);
    Ok(())
}

/// Removes all fields that are null.
fn remove_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        *fields = std::mem::take(fields)
            .into_iter()
            .filter(|(_, field)| !field.is_null())
            .collect::<Map<_, _>>();
        fields.values_mut().for_each(remove_nulls);
    }
}
