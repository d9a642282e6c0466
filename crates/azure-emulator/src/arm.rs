//! Requests about resources: read, list, write, remove. Who asks, how often, and what goes wrong on
//! purpose has been seen to before.

use axum::http::header::HeaderName;
use axum::http::{Method, StatusCode};
use serde_json::Value;
use uuid::Uuid;

use super::accept;
use super::error::ArmError;
use super::etag;
use super::id::{ResourceId, Target, is};
use super::load_balancer;
use super::merge::merge;
use super::network;
use super::operations::{Removal, Status};
use super::pool::WrittenBy;
use super::record::{self, Record, embedded, owner};
use super::request::{Answer, Call};
use super::settings::Settings;
use super::store::{Store, Terms, Written};

const ASYNC_OPERATION: HeaderName = HeaderName::from_static("azure-asyncoperation");
const ASYNC_NOTIFICATION: HeaderName = HeaderName::from_static("azure-asyncnotification");

/// Answers requests about resources.
#[derive(Debug)]
pub(super) struct Arm<'a> {
    pub(super) store: &'a mut Store,
    pub(super) settings: &'a Settings,
}

type Answered = Result<Answer, ArmError>;

impl Arm<'_> {
    /// Answers.
    ///
    /// # Errors
    /// What ARM would say.
    pub(super) fn answer(&mut self, call: &Call<'_>) -> Answered {
        let target = Target::parse(call.path)?;
        match (call.method.as_str(), target) {
            ("GET", Target::Operation { id, results }) => self.operation(call, &id, results),
            (_, Target::Resource(id)) => {
                let version = call.version(&id.namespace, &id.kind())?;
                self.group_of(&id)?;
                match *call.method {
                    Method::GET => self.get(call, &id),
                    Method::HEAD => self.get(call, &id).map(|_| Answer::empty(StatusCode::NO_CONTENT)),
                    Method::PUT => self.put(call, &id, &version),
                    Method::PATCH => self.patch(call, &id),
                    Method::DELETE => self.delete(call, &id, &version),
                    _ => Err(not_allowed(call.method)),
                }
            }
            (_, target) => super::lists::answer(self, call, &target),
        }
    }

    /// The group of a resource has to be there.
    pub(super) fn group_of(&self, id: &ResourceId) -> Result<(), ArmError> {
        self.group(&id.subscription, &id.group)
    }

    pub(super) fn group(&self, subscription: &str, group: &str) -> Result<(), ArmError> {
        if self.store.groups.contains_key(&group_key(subscription, group)) {
            return Ok(());
        }
        let message = format!("Resource group '{group}' could not be found.");
        Err(ArmError::new(StatusCode::NOT_FOUND, "ResourceGroupNotFound", message).by_gateway())
    }

    /// The record that a resource is or lives in.
    pub(super) fn record(&self, id: &ResourceId) -> Result<&Record, ArmError> {
        let top = owner(id).unwrap_or_else(|| id.clone());
        self.store.find(&top).ok_or_else(|| not_found(&top))
    }

    fn get(&self, call: &Call<'_>, id: &ResourceId) -> Answered {
        let record = self.record(id)?;
        let mut shown = match child_of(record, id) {
            None => self.store.shown(record, self.settings.shows_none()),
            Some((kind, name)) => {
                let list = record::children(&record.document, kind);
                let Some(position) = record::position(list, name) else {
                    return Err(child_not_found(record, kind, name));
                };
                self.store
                    .shown_child(record, kind, &list[position], self.settings.shows_none())
            }
        };
        super::compute::expand(&mut shown, id, call.parameter("$expand").as_deref());
        Ok(Answer::new(StatusCode::OK, shown).etag(record.etag))
    }

    fn put(&mut self, call: &Call<'_>, id: &ResourceId, version: &str) -> Answered {
        let body = call.object()?;
        if owner(id).is_some() {
            return self.put_child(call, id, body.into(), version);
        }
        if id.segments.len() > 1 {
            // A guess: what lies below another resource needs it.
            self.record(&id.ancestor(id.segments.len() - 1))?;
        }
        let existing = self.store.find(id);
        etag::check(call.headers, existing.map(|record| record.etag), &id.to_string())?;
        let mut document = accept::document(body, id, existing, self.store.members(), WrittenBy::LoadBalancer)?;
        network::assign(self.store, id, &mut document, false)?;
        self.write(call, id, document, id, version)
    }

    fn put_child(&mut self, call: &Call<'_>, id: &ResourceId, mut child: Value, version: &str) -> Answered {
        let record = self.record(id)?;
        let Some((kind, name)) = child_of(record, id) else {
            return Err(not_found(id));
        };
        etag::check(call.headers, Some(record.etag), &record.child_id(kind, name))?;
        let list = record::children(&record.document, kind);
        let position = record::position(list, name);
        let before = position.and_then(|position| list[position].as_object());
        let spelled = before.and_then(|before| before.get("name").cloned());
        if let Some(child) = child.as_object_mut() {
            child.insert("name".into(), spelled.unwrap_or_else(|| name.into()));
        }
        let path = record.child_id(kind, name);
        accept::child(&mut child, kind, &path, before, self.store.members(), WrittenBy::Itself)?;
        let mut document = record::with_child(&record.document, kind, position, child);
        let owner = record.id.clone();
        network::assign(self.store, &owner, &mut document, false)?;
        let mut answer = self.write(call, &owner, document, id, version)?;
        answer.status = if position.is_some() {
            StatusCode::OK
        } else {
            StatusCode::CREATED
        };
        Ok(answer)
    }

    /// Writes a document that was made from what was sent, and answers with what is about.
    fn write(
        &mut self,
        call: &Call<'_>,
        id: &ResourceId,
        document: record::Object,
        about: &ResourceId,
        version: &str,
    ) -> Answered {
        if is(&id.kind(), load_balancer::KIND) {
            let spelled = self.store.find(id).map_or(id, |record| &record.id);
            load_balancer::check(spelled, &document)?;
        }
        let terms = self.terms(call);
        let Written { created, operation } = self.store.write(id, document, "Put", about, &terms);
        let shown = self.get(call, about)?;
        let status = if created { StatusCode::CREATED } else { StatusCode::OK };
        let url = self.operation_url(call, operation, version, false);
        // Recorded: no ETag and no Location on the answer to a PUT.
        Ok(Answer {
            status,
            headers: Vec::new(),
            body: shown.body,
        }
        .header(ASYNC_OPERATION, &url)
        .header(ASYNC_NOTIFICATION, "Enabled"))
    }

    fn patch(&mut self, call: &Call<'_>, id: &ResourceId) -> Answered {
        let body = call.object()?;
        let record = self.record(id)?;
        if child_of(record, id).is_some() {
            return Err(not_allowed(call.method));
        }
        etag::check(call.headers, Some(record.etag), &record.id.to_string())?;
        let mut document = record.document.clone();
        if is(&id.namespace, "Microsoft.Network") {
            // What is kept stays as it is: the members of a NIC-based pool, for one, are not all in it.
            let tags = tags_alone(body).map_err(|what| accept::malformed(&id.to_string(), what))?;
            merge(document.entry("tags").or_insert(Value::Null), &tags);
        } else {
            let mut merged = Value::Object(document);
            merge(&mut merged, &Value::Object(body));
            let Value::Object(merged) = merged else {
                return Err(accept::malformed(&id.to_string(), "it is not an object"));
            };
            document = accept::document(merged, id, Some(record), self.store.members(), WrittenBy::LoadBalancer)?;
        }
        self.store.edit(id, document);
        let mut answer = self.get(call, id)?;
        answer.headers.clear();
        Ok(answer)
    }

    fn delete(&mut self, call: &Call<'_>, id: &ResourceId, version: &str) -> Answered {
        let gone = || Answer::empty(StatusCode::NO_CONTENT);
        let Ok(record) = self.record(id) else {
            return Ok(gone());
        };
        let (removal, top) = match child_of(record, id) {
            None => {
                network::may_go(self.store, &record.id)?;
                (Removal::Itself, record.id.clone())
            }
            Some((kind, name)) => {
                let list = record::children(&record.document, kind);
                if record::position(list, name).is_none() {
                    return Ok(gone());
                }
                load_balancer::may_go(record, kind, name)?;
                (Removal::Child(kind, name.to_owned()), record.id.clone())
            }
        };
        etag::check(call.headers, Some(record.etag), &id.to_string())?;
        let terms = self.terms(call);
        let Some(operation) = self.store.delete(&top, removal, id, &terms) else {
            return Ok(gone());
        };
        let answer = Answer::empty(StatusCode::ACCEPTED)
            .header(ASYNC_OPERATION, &self.operation_url(call, operation, version, false))
            .header(ASYNC_NOTIFICATION, "Enabled");
        Ok(answer.location(&self.operation_url(call, operation, version, true)))
    }

    fn operation(&self, call: &Call<'_>, id: &str, results: bool) -> Answered {
        let operation = self.store.operations.asked(id, call.query, call.now.mono)?;
        // Inferred: Azure says when to ask again; without it clients wait for half a minute.
        let again = |answer: Answer| {
            let seconds = self.settings.poll_retry_after;
            answer.header(axum::http::header::RETRY_AFTER, &seconds.to_string())
        };
        Ok(match (&operation.status, results) {
            (Status::InProgress, false) => again(Answer::new(StatusCode::OK, operation.status.body())),
            (Status::InProgress, true) => {
                let version = call.parameter("api-version").unwrap_or_default();
                again(Answer::empty(StatusCode::ACCEPTED).location(&operation.url(call.base, &version, true)))
            }
            (Status::Succeeded, true) => Answer::empty(StatusCode::NO_CONTENT),
            (_, _) => Answer::new(StatusCode::OK, operation.status.body()),
        })
    }

    fn operation_url(&self, call: &Call<'_>, id: Uuid, version: &str, results: bool) -> String {
        let operation = self.store.operations.get(id);
        operation.map_or_else(String::new, |operation| operation.url(call.base, version, results))
    }

    fn terms(&self, call: &Call<'_>) -> Terms {
        Terms {
            now: call.now,
            delay: self.settings.operation_delay,
            ends: call.ends.clone(),
        }
    }
}

/// What a PATCH of a network resource says: it changes tags and nothing else.
fn tags_alone(mut body: record::Object) -> Result<Value, &'static str> {
    let tags = body
        .remove("tags")
        .unwrap_or_else(|| Value::Object(record::Object::new()));
    if !body.is_empty() {
        return Err("a PATCH changes tags and nothing else");
    }
    Some(tags).filter(Value::is_object).ok_or("tags is not an object")
}

/// What a group is found by.
pub(super) fn group_key(subscription: &str, group: &str) -> String {
    format!("{subscription}/{group}").to_lowercase()
}

/// The kind and name of a child that lives in the record's document, if the id is one's.
fn child_of<'a>(record: &Record, id: &'a ResourceId) -> Option<(&'static str, &'a str)> {
    if id.segments.len() == record.id.segments.len() {
        return None;
    }
    let (kind, name) = id.segments.last()?;
    let known = embedded(&record.id.kind()).iter().find(|known| is(known, kind))?;
    Some((known, name))
}

pub(super) fn not_found(id: &ResourceId) -> ArmError {
    let names: Vec<&str> = id.segments.iter().map(|(_, name)| name.as_str()).collect();
    let message = format!(
        "The Resource '{}/{}' under resource group '{}' was not found. For more details please go to \
         https://aka.ms/ARMResourceNotFoundFix",
        id.kind(),
        names.join("/"),
        id.group
    );
    ArmError::new(StatusCode::NOT_FOUND, "ResourceNotFound", message).by_gateway()
}

fn child_not_found(record: &Record, kind: &str, name: &str) -> ArmError {
    let message = format!("Resource {} not found.", record.child_id(kind, name));
    ArmError::new(StatusCode::NOT_FOUND, "NotFound", message).without_details()
}

/// A guess: the code and wording.
pub(super) fn not_allowed(method: &Method) -> ArmError {
    let shown: String = method.as_str().chars().take(40).collect();
    let message = format!("The http method '{shown}' is not supported for this resource.");
    ArmError::new(StatusCode::METHOD_NOT_ALLOWED, "HttpMethodNotSupported", message)
}
