//! Requests about one resource: read, write, patch, delete. Authentication, throttling and faults come before; see
//! `state.rs`. `lists.rs` has the requests about several resources.

use axum::http::header::{HeaderName, RETRY_AFTER};
use axum::http::{Method, StatusCode};
use serde_json::Value;
use uuid::Uuid;

use super::authorization::Authorization;
use super::error::ErrorResponse;
use super::etag;
use super::id::{ResourceId, Target, same_name};
use super::load_balancer;
use super::network;
use super::normalize;
use super::operations::{Removal, Status};
use super::pool::PoolSource;
use super::request::{ArmRequest, JsonResponse};
use super::resource::{self, Resource, embedded, owner};
use super::settings::Settings;
use super::store::{AcceptedWrite, Store, WriteOptions};

const ASYNC_OPERATION: HeaderName = HeaderName::from_static("azure-asyncoperation");
const ASYNC_NOTIFICATION: HeaderName = HeaderName::from_static("azure-asyncnotification");

#[derive(Debug)]
pub(super) struct Arm<'a> {
    pub(super) store: &'a mut Store,
    pub(super) settings: &'a Settings,
    pub(super) authorization: &'a Authorization,
}

pub(super) type ArmResult = Result<JsonResponse, ErrorResponse>;

impl Arm<'_> {
    /// Handles a request that is authenticated and within its limits.
    ///
    /// # Errors
    /// The error that ARM answers.
    pub(super) fn respond(&mut self, request: &ArmRequest<'_>) -> ArmResult {
        let target = Target::parse(request.path)?;
        match (request.method.as_str(), target) {
            ("GET", Target::Operation { id, results }) => self.operation(request, &id, results),
            (_, Target::Resource(id)) => {
                let version = request.version(&id.namespace, &id.kind())?;
                self.group_of(&id)?;
                match *request.method {
                    Method::GET => self.get(request, &id),
                    Method::HEAD => self
                        .get(request, &id)
                        .map(|_| JsonResponse::empty(StatusCode::NO_CONTENT)),
                    Method::PUT => self.put(request, &id, &version),
                    Method::PATCH => self.patch(request, &id),
                    Method::DELETE => self.delete(request, &id, &version),
                    _ => Err(not_allowed(request.method)),
                }
            }
            (_, target) => super::lists::respond(self, request, &target),
        }
    }

    /// Checks that the resource group exists.
    pub(super) fn group_of(&self, id: &ResourceId) -> Result<(), ErrorResponse> {
        self.group(&id.subscription, &id.group)
    }

    pub(super) fn group(&self, subscription: &str, group: &str) -> Result<(), ErrorResponse> {
        if self.store.groups.contains_key(&group_key(subscription, group)) {
            return Ok(());
        }
        let message = format!("Resource group '{group}' could not be found.");
        Err(ErrorResponse::new(StatusCode::NOT_FOUND, "ResourceGroupNotFound", message).by_gateway())
    }

    /// The stored top-level resource that has this id or contains it.
    pub(super) fn resource(&self, id: &ResourceId) -> Result<&Resource, ErrorResponse> {
        let top = owner(id).unwrap_or_else(|| id.clone());
        self.store.find(&top).ok_or_else(|| not_found(&top))
    }

    fn get(&self, request: &ArmRequest<'_>, id: &ResourceId) -> ArmResult {
        let lag = self.settings.read_lag;
        let resource = self.store.seen(self.resource(id)?, request.now.mono, lag);
        let mut response = self.show(request, id, resource)?;
        if let Some(shown) = &mut response.body {
            let kind = child_of(resource, id).map(|(kind, _)| kind);
            self.settings.deviations.show_states(resource, kind, shown);
        }
        Ok(response)
    }

    /// Shows a version of the resource with this id, or of the child with it.
    fn show(&self, request: &ArmRequest<'_>, id: &ResourceId, resource: &Resource) -> ArmResult {
        let deviations = &self.settings.deviations;
        let show_none = self.settings.shows_none();
        let (mut shown, kind, etag) = match child_of(resource, id) {
            None => (self.store.show(resource, show_none), None, resource.etag),
            Some((kind, name)) => {
                let Some(child) = resource::child(&resource.document, kind, name) else {
                    return Err(child_not_found(resource, kind, name));
                };
                let shown = self.store.show_child(resource, kind, child, show_none);
                (shown, Some(kind), deviations.etag(resource, kind, Some(child)))
            }
        };
        deviations.show_etags(resource, kind, &mut shown);
        super::compute::expand(&mut shown, id, request.parameter("$expand").as_deref());
        Ok(JsonResponse::new(StatusCode::OK, shown).etag(etag))
    }

    fn put(&mut self, request: &ArmRequest<'_>, id: &ResourceId, version: &str) -> ArmResult {
        let body = request.object()?;
        if owner(id).is_some() {
            return self.put_child(request, id, body.into(), version);
        }
        if id.segments.len() > 1 {
            // Guess: a resource below another one needs its parent.
            self.resource(&id.ancestor(id.segments.len() - 1))?;
        }
        let existing = self.store.find(id);
        etag::check(request.headers, existing.map(|resource| resource.etag), &id.to_string())?;
        let mut document =
            normalize::normalize_document(body, id, existing, self.store.members(), PoolSource::LoadBalancer)?;
        network::assign(self.store, id, &mut document, false)?;
        self.write(request, id, document, id, version)
    }

    fn put_child(&mut self, request: &ArmRequest<'_>, id: &ResourceId, mut child: Value, version: &str) -> ArmResult {
        let resource = self.resource(id)?;
        let Some((kind, name)) = child_of(resource, id) else {
            return Err(not_found(id));
        };
        let operation = resource.operation.and_then(|id| self.store.operations.in_progress(id));
        let child_name = (kind, name);
        let deviations = &self.settings.deviations;
        deviations.check_write(resource, child_name, request.headers, operation.is_some())?;
        let list = resource::children(&resource.document, kind);
        let position = resource::position(list, name);
        let before = position.and_then(|position| list[position].as_object());
        let spelled = before.and_then(|before| before.get("name").cloned());
        if let Some(child) = child.as_object_mut() {
            child.insert("name".into(), spelled.unwrap_or_else(|| name.into()));
        }
        let path = resource.child_id(kind, name);
        normalize::normalize_child(&mut child, kind, &path, before, self.store.members(), PoolSource::Pool)?;
        let mut document = resource::with_child(&resource.document, kind, position, child);
        let owner = resource.id.clone();
        network::assign(self.store, &owner, &mut document, false)?;
        let mut response = self.write(request, &owner, document, id, version)?;
        response.status = if position.is_some() {
            StatusCode::OK
        } else {
            StatusCode::CREATED
        };
        Ok(response)
    }

    /// Writes a normalized document, and answers with the resource `about`: the top-level resource or one of its
    /// children.
    fn write(
        &mut self,
        request: &ArmRequest<'_>,
        id: &ResourceId,
        document: resource::Object,
        about: &ResourceId,
        version: &str,
    ) -> ArmResult {
        if same_name(&id.kind(), load_balancer::KIND) {
            let spelled = self.store.find(id).map_or(id, |resource| &resource.id);
            load_balancer::check(spelled, &document)?;
        }
        let mut options = self.options(request);
        if about.kind() != id.kind() {
            options.operation_end = options
                .operation_end
                .or_else(|| self.settings.deviations.operation_end());
        }
        let AcceptedWrite { created, operation } = self.store.write(id, document, about, &options);
        let shown = self.show(request, about, self.resource(about)?)?;
        let status = if created { StatusCode::CREATED } else { StatusCode::OK };
        let url = self.operation_url(request, operation, version, false);
        // Recorded: no ETag and no Location in the answer to a PUT.
        let response = JsonResponse {
            status,
            headers: Vec::new(),
            body: shown.body,
        };
        let response = response
            .header(ASYNC_OPERATION, &url)
            .header(ASYNC_NOTIFICATION, "Enabled");
        Ok(self.with_retry_after(response, operation))
    }

    /// Inferred: Azure sends `Retry-After` while an operation is in progress; without it clients wait for half a minute.
    fn with_retry_after(&self, response: JsonResponse, operation: Uuid) -> JsonResponse {
        if self.store.operations.in_progress(operation).is_none() {
            return response;
        }
        response.header(RETRY_AFTER, &self.settings.poll_retry_after.to_string())
    }

    fn patch(&mut self, request: &ArmRequest<'_>, id: &ResourceId) -> ArmResult {
        let body = request.object()?;
        let resource = self.resource(id)?;
        if child_of(resource, id).is_some() {
            return Err(not_allowed(request.method));
        }
        etag::check(request.headers, Some(resource.etag), &resource.id.to_string())?;
        let mut document = resource.document.clone();
        if same_name(&id.namespace, "Microsoft.Network") {
            // The stored document is not normalized again: it does not list all members of a NIC-based pool.
            let tags = only_tags(body).map_err(|what| normalize::malformed(&id.to_string(), what))?;
            json_patch::merge(document.entry("tags").or_insert(Value::Null), &tags);
        } else {
            let mut merged = Value::Object(document);
            json_patch::merge(&mut merged, &Value::Object(body));
            let Value::Object(merged) = merged else {
                return Err(normalize::malformed(&id.to_string(), "it is not an object"));
            };
            document = normalize::normalize_document(
                merged,
                id,
                Some(resource),
                self.store.members(),
                PoolSource::LoadBalancer,
            )?;
        }
        self.store.edit(id, document);
        let mut response = self.show(request, id, self.resource(id)?)?;
        response.headers.clear();
        Ok(response)
    }

    fn delete(&mut self, request: &ArmRequest<'_>, id: &ResourceId, version: &str) -> ArmResult {
        let no_content = || JsonResponse::empty(StatusCode::NO_CONTENT);
        let Ok(resource) = self.resource(id) else {
            return Ok(no_content());
        };
        let top = resource.id.clone();
        let removal = match child_of(resource, id) {
            None => {
                network::check_deletable(self.store, &top)?;
                Removal::Itself
            }
            Some((kind, name)) => {
                if resource::child(&resource.document, kind, name).is_none() {
                    return Ok(no_content());
                }
                load_balancer::check_deletable(resource, kind, name)?;
                Removal::Child(kind, name.to_owned())
            }
        };
        etag::check(request.headers, Some(resource.etag), &id.to_string())?;
        let options = self.options(request);
        let Some(operation) = self.store.delete(&top, removal, id, &options) else {
            return Ok(no_content());
        };
        let response = JsonResponse::empty(StatusCode::ACCEPTED)
            .header(ASYNC_OPERATION, &self.operation_url(request, operation, version, false))
            .header(ASYNC_NOTIFICATION, "Enabled");
        let response = response.location(&self.operation_url(request, operation, version, true));
        Ok(self.with_retry_after(response, operation))
    }

    fn operation(&self, request: &ArmRequest<'_>, id: &str, results: bool) -> ArmResult {
        let operation = self.store.operations.find(id, request.query, request.now.mono)?;
        let with_retry_after = |response| self.with_retry_after(response, operation.id);
        Ok(match (&operation.status, results) {
            (Status::InProgress, false) => with_retry_after(JsonResponse::new(StatusCode::OK, operation.status.body())),
            (Status::InProgress, true) => {
                let version = request.parameter("api-version").unwrap_or_default();
                with_retry_after(JsonResponse::empty(StatusCode::ACCEPTED).location(&operation.url(
                    request.base,
                    &version,
                    true,
                )))
            }
            (Status::Succeeded, true) => JsonResponse::empty(StatusCode::NO_CONTENT),
            (_, _) => JsonResponse::new(StatusCode::OK, operation.status.body()),
        })
    }

    fn operation_url(&self, request: &ArmRequest<'_>, id: Uuid, version: &str, results: bool) -> String {
        let operation = self.store.operations.get(id);
        operation.map_or_else(String::new, |operation| operation.url(request.base, version, results))
    }

    fn options(&self, request: &ArmRequest<'_>) -> WriteOptions {
        WriteOptions {
            now: request.now,
            delay: self.settings.operation_delay,
            read_lag: self.settings.read_lag,
            operation_end: request.operation_end.clone(),
        }
    }
}

/// The tags in a PATCH of a network resource, which may change nothing else.
fn only_tags(mut body: resource::Object) -> Result<Value, &'static str> {
    let tags = body
        .remove("tags")
        .unwrap_or_else(|| Value::Object(resource::Object::new()));
    if !body.is_empty() {
        return Err("a PATCH changes tags and nothing else");
    }
    Some(tags).filter(Value::is_object).ok_or("tags is not an object")
}

/// The key of a resource group in the store.
pub(super) fn group_key(subscription: &str, group: &str) -> String {
    format!("{subscription}/{group}").to_lowercase()
}

/// The kind and name of the child that the id names, where it is part of the resource's document.
fn child_of<'a>(resource: &Resource, id: &'a ResourceId) -> Option<(&'static str, &'a str)> {
    if id.segments.len() == resource.id.segments.len() {
        return None;
    }
    let (kind, name) = id.segments.last()?;
    let known = embedded(&resource.id.kind())
        .iter()
        .find(|known| same_name(known, kind))?;
    Some((known, name))
}

pub(super) fn not_found(id: &ResourceId) -> ErrorResponse {
    let names: Vec<&str> = id.segments.iter().map(|(_, name)| name.as_str()).collect();
    let message = format!(
        "The Resource '{}/{}' under resource group '{}' was not found. For more details please go to \
         https://aka.ms/ARMResourceNotFoundFix",
        id.kind(),
        names.join("/"),
        id.group
    );
    ErrorResponse::new(StatusCode::NOT_FOUND, "ResourceNotFound", message).by_gateway()
}

fn child_not_found(resource: &Resource, kind: &str, name: &str) -> ErrorResponse {
    let message = format!("Resource {} not found.", resource.child_id(kind, name));
    ErrorResponse::new(StatusCode::NOT_FOUND, "NotFound", message).without_details()
}

/// Guess: the code and wording.
pub(super) fn not_allowed(method: &Method) -> ErrorResponse {
    let shown: String = method.as_str().chars().take(40).collect();
    let message = format!("The http method '{shown}' is not supported for this resource.");
    ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, "HttpMethodNotSupported", message)
}
