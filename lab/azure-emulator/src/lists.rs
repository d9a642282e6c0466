//! Requests about several resources: collections in pages, resource groups, subscriptions, providers; also views, whose
//! paths look like those of a collection.

use axum::http::{Method, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::arm::{Arm, ArmResult, group_key, not_allowed, not_found};
use super::error::ErrorResponse;
use super::id::{ResourceId, Target, same_name};
use super::request::{ArmRequest, JsonResponse};
use super::resource::{self, Resource, embedded};
use super::store::Group;

/// Handles a request that is not about one resource.
///
/// # Errors
/// The error that ARM answers.
pub(super) fn respond(arm: &mut Arm<'_>, request: &ArmRequest<'_>, target: &Target) -> ArmResult {
    let (namespace, kind) = match target {
        Target::All { namespace, kind, .. } => (namespace.as_str(), kind.as_str()),
        Target::Collection { parent, kind } => (parent.namespace.as_str(), kind.as_str()),
        _ => ("Microsoft.Resources", "resourceGroups"),
    };
    request.version(namespace, kind)?;
    match (request.method.as_str(), target) {
        ("PUT", Target::Group { subscription, group }) => put_group(arm, request, subscription, group),
        ("DELETE", Target::Group { subscription, group }) => {
            arm.group(subscription, group)?;
            let prefix = format!("/subscriptions/{subscription}/resourcegroups/{group}/").to_lowercase();
            arm.store.remove_group(&prefix);
            arm.store.groups.remove(&group_key(subscription, group));
            // Guess: Azure does this in the background.
            Ok(JsonResponse::empty(StatusCode::OK))
        }
        ("HEAD", Target::Group { subscription, group }) => arm
            .group(subscription, group)
            .map(|()| JsonResponse::empty(StatusCode::NO_CONTENT)),
        ("GET", target) => get(arm, request, target),
        _ => Err(not_allowed(request.method)),
    }
}

fn get(arm: &Arm<'_>, request: &ArmRequest<'_>, target: &Target) -> ArmResult {
    match target {
        Target::Subscription(subscription) => {
            check_subscription(arm, subscription)?;
            let shown = json!({
                "id": format!("/subscriptions/{subscription}"), "subscriptionId": subscription,
                "displayName": "Emulated", "state": "Enabled", "authorizationSource": "RoleBased",
            });
            Ok(JsonResponse::new(StatusCode::OK, shown))
        }
        Target::Groups(subscription) => {
            check_subscription(arm, subscription)?;
            let groups = arm
                .store
                .groups
                .iter()
                .filter(|(_, group)| same_name(&group.subscription, subscription));
            let shown = groups.map(|(key, group)| (key.clone(), ListItem::Value(show_group(group))));
            page(arm, request, shown)
        }
        Target::Group { subscription, group } => {
            arm.group(subscription, group)?;
            let found = arm.store.groups.get(&group_key(subscription, group));
            Ok(JsonResponse::new(StatusCode::OK, found.map_or(Value::Null, show_group)))
        }
        Target::GroupResources { subscription, group } => {
            arm.group(subscription, group)?;
            let prefix = format!("/subscriptions/{subscription}/resourcegroups/{group}/").to_lowercase();
            let all = arm
                .store
                .below(&prefix)
                .filter(|resource| resource.id.segments.len() == 1);
            // Azure leaves out the properties here.
            let shown = all.map(|resource| {
                let mut shown = resource.show_without_children();
                shown.remove("properties");
                (resource.id.key(), ListItem::Value(shown.into()))
            });
            page(arm, request, shown)
        }
        Target::Providers {
            subscription,
            namespace,
        } => {
            check_subscription(arm, subscription)?;
            Ok(JsonResponse::new(
                StatusCode::OK,
                super::compute::providers(subscription, namespace.as_deref()),
            ))
        }
        Target::All {
            subscription,
            namespace,
            kind,
        } => {
            check_subscription(arm, subscription)?;
            let full_kind = format!("{namespace}/{kind}");
            let prefix = format!("/subscriptions/{subscription}/").to_lowercase();
            let all = arm
                .store
                .below(&prefix)
                .filter(|resource| same_name(&resource.id.kind(), &full_kind));
            page(arm, request, all.map(ListItem::with_key))
        }
        Target::Collection { parent, kind } => {
            arm.group_of(parent)?;
            collection(arm, request, parent, kind)
        }
        Target::Operation { .. } | Target::Resource(_) => Err(not_allowed(request.method)),
    }
}

/// The resources of a kind below `parent`, which is a resource or, without segments, a resource group.
fn collection(arm: &Arm<'_>, request: &ArmRequest<'_>, parent: &ResourceId, kind: &str) -> ArmResult {
    if let Some(list) = arm.authorization.list(parent, kind) {
        return Ok(list);
    }
    if !parent.segments.is_empty() {
        let resource = arm.store.find(parent).ok_or_else(|| not_found(parent))?;
        let resource = arm.store.seen(resource, request.now.mono, arm.settings.read_lag);
        if let Some(kind) = embedded(&resource.id.kind())
            .iter()
            .find(|known| same_name(known, kind))
        {
            let list = resource::children(&resource.document, kind).iter().enumerate();
            let keys = list.map(|(number, child)| (format!("{number:08}"), ListItem::Child(resource, kind, child)));
            return page(arm, request, keys);
        }
        if let Some(view) = super::compute::view(resource, kind) {
            return Ok(JsonResponse::new(StatusCode::OK, view));
        }
    }
    let prefix = format!("{parent}/").to_lowercase();
    let depth = parent.segments.len();
    let any_depth =
        same_name(kind, "networkInterfaces") && same_name(&parent.kind(), "Microsoft.Compute/virtualMachineScaleSets");
    let is_listed =
        |resource: &&Resource| resource.id.is_a(kind) && (resource.id.segments.len() == depth + 1 || any_depth);
    let all = arm.store.below(&prefix).filter(is_listed);
    page(arm, request, all.map(ListItem::with_key))
}

/// An item of a list. It is made into JSON only if it is on the page.
enum ListItem<'a> {
    Resource(&'a Resource),
    Child(&'a Resource, &'static str, &'a Value),
    Value(Value),
}

impl<'a> ListItem<'a> {
    fn with_key(resource: &'a Resource) -> (String, Self) {
        (resource.id.key(), Self::Resource(resource))
    }
}

/// A page of a list in the order of its keys. The token of the next page is the last key of this one.
fn page<'a>(
    arm: &'a Arm<'_>,
    request: &ArmRequest<'_>,
    items: impl Iterator<Item = (String, ListItem<'a>)>,
) -> ArmResult {
    let after = request
        .parameter("$skiptoken")
        .map(|token| parse_skip_token(&token))
        .transpose()?;
    let (size, show_none) = (arm.settings.page_size, arm.settings.shows_none());
    let mut rest = items
        .filter(|(key, _)| after.as_ref().is_none_or(|after| key > after))
        .peekable();
    let mut value = Vec::new();
    let mut last = None;
    while let Some((key, item)) = rest.next_if(|_| value.len() < size) {
        value.push(match item {
            ListItem::Resource(resource) => {
                let resource = arm.store.seen(resource, request.now.mono, arm.settings.read_lag);
                let mut shown = arm.store.show(resource, show_none);
                arm.settings.deviations.hide_admin_states(resource, &mut shown);
                super::compute::expand(&mut shown, &resource.id, request.parameter("$expand").as_deref());
                shown
            }
            ListItem::Child(resource, kind, child) => arm.store.show_child(resource, kind, child, show_none),
            ListItem::Value(value) => value,
        });
        last = Some(key);
    }
    let mut body = json!({"value": value});
    if let (Some(last), true) = (last, rest.peek().is_some()) {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (key, value) in
            form_urlencoded::parse(request.query.as_bytes()).filter(|(key, _)| !same_name(key, "$skiptoken"))
        {
            query.append_pair(&key, &value);
        }
        query.append_pair("$skiptoken", &URL_SAFE_NO_PAD.encode(last));
        body["nextLink"] = format!("{}{}?{}", request.base, request.path, query.finish()).into();
    }
    Ok(JsonResponse::new(StatusCode::OK, body))
}

/// The key in a `$skiptoken`.
///
/// # Errors
/// 400 for a token that was in no `nextLink`. Guess: code and wording. The first page instead would loop forever.
fn parse_skip_token(token: &str) -> Result<String, ErrorResponse> {
    let key = URL_SAFE_NO_PAD.decode(token).ok();
    let key = key
        .and_then(|key| String::from_utf8(key).ok())
        .filter(|key| !key.is_empty());
    key.ok_or_else(|| {
        let message = "The provided skip token is not one that a nextLink had.";
        ErrorResponse::bad_request("InvalidSkipToken", message)
    })
}

fn check_subscription(arm: &Arm<'_>, subscription: &str) -> Result<(), ErrorResponse> {
    if arm
        .store
        .groups
        .values()
        .any(|group| same_name(&group.subscription, subscription))
    {
        return Ok(());
    }
    let message = format!("The subscription '{subscription}' could not be found.");
    Err(ErrorResponse::new(StatusCode::NOT_FOUND, "SubscriptionNotFound", message).by_gateway())
}

fn put_group(arm: &mut Arm<'_>, request: &ArmRequest<'_>, subscription: &str, name: &str) -> ArmResult {
    debug_assert_eq!(request.method, Method::PUT);
    super::normalize::check_name(name)?;
    let mut document = request.object()?;
    resource::strip_read_only(&mut document);
    let key = group_key(subscription, name);
    let existing = arm.store.groups.get(&key);
    let status = if existing.is_some() {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    let name = existing.map_or_else(|| name.to_owned(), |group| group.name.clone());
    let group = Group {
        subscription: subscription.to_owned(),
        name,
        document,
    };
    let shown = show_group(&group);
    arm.store.groups.insert(key, group);
    Ok(JsonResponse::new(status, shown))
}

fn show_group(group: &Group) -> Value {
    let mut shown = group.document.clone();
    let Group { subscription, name, .. } = group;
    shown.insert(
        "id".into(),
        format!("/subscriptions/{subscription}/resourceGroups/{name}").into(),
    );
    shown.insert("name".into(), name.as_str().into());
    shown.insert("type".into(), "Microsoft.Resources/resourceGroups".into());
    if let Some(properties) = resource::properties_mut(&mut shown) {
        properties.insert("provisioningState".into(), "Succeeded".into());
    }
    shown.entry("location").or_insert_with(|| json!("eastus"));
    shown.into()
}
