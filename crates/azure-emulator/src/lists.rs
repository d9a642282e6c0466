//! Requests about more than one resource: collections by pages, resource groups, subscriptions,
//! providers; and the views that stand where a collection would.

use axum::http::{Method, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::arm::{Arm, group_key, not_allowed, not_found};
use super::error::ArmError;
use super::id::{ResourceId, Target, is};
use super::record::{self, Record, embedded};
use super::request::{Answer, Call};
use super::store::Group;

type Answered = Result<Answer, ArmError>;

/// Answers what is not about one resource.
///
/// # Errors
/// What ARM would say.
pub(super) fn answer(arm: &mut Arm<'_>, call: &Call<'_>, target: &Target) -> Answered {
    let (namespace, kind) = match target {
        Target::All { namespace, kind, .. } | Target::Collection { namespace, kind, .. } => {
            (namespace.as_str(), kind.as_str())
        }
        _ => ("Microsoft.Resources", "resourceGroups"),
    };
    call.version(namespace, kind)?;
    match (call.method.as_str(), target) {
        ("PUT", Target::Group { subscription, group }) => put_group(arm, call, subscription, group),
        ("DELETE", Target::Group { subscription, group }) => {
            arm.group(subscription, group)?;
            let prefix = format!("/subscriptions/{subscription}/resourcegroups/{group}/").to_lowercase();
            arm.store.remove_group(&prefix);
            arm.store.groups.remove(&group_key(subscription, group));
            // A guess: Azure does this in the background.
            Ok(Answer::empty(StatusCode::OK))
        }
        ("HEAD", Target::Group { subscription, group }) => arm
            .group(subscription, group)
            .map(|()| Answer::empty(StatusCode::NO_CONTENT)),
        ("GET", target) => get(arm, call, target),
        _ => Err(not_allowed(call.method)),
    }
}

fn get(arm: &Arm<'_>, call: &Call<'_>, target: &Target) -> Answered {
    match target {
        Target::Subscription(subscription) => {
            has_subscription(arm, subscription)?;
            let shown = json!({
                "id": format!("/subscriptions/{subscription}"), "subscriptionId": subscription,
                "displayName": "Emulated", "state": "Enabled", "authorizationSource": "RoleBased",
            });
            Ok(Answer::new(StatusCode::OK, shown))
        }
        Target::Groups(subscription) => {
            has_subscription(arm, subscription)?;
            let groups = arm
                .store
                .groups
                .iter()
                .filter(|(_, group)| is(&group.subscription, subscription));
            let shown = groups.map(|(key, group)| (key.clone(), show_group(group)));
            page(arm, call, shown)
        }
        Target::Group { subscription, group } => {
            arm.group(subscription, group)?;
            let found = arm.store.groups.get(&group_key(subscription, group));
            Ok(Answer::new(StatusCode::OK, found.map_or(Value::Null, show_group)))
        }
        Target::GroupResources { subscription, group } => {
            arm.group(subscription, group)?;
            let prefix = format!("/subscriptions/{subscription}/resourcegroups/{group}/").to_lowercase();
            let all = arm
                .store
                .below(&prefix, None)
                .filter(|record| record.id.segments.len() == 1);
            // Azure leaves the properties out here.
            let shown = all.map(|record| {
                let mut shown = record.itself();
                shown.remove("properties");
                (record.id.key(), Value::Object(shown))
            });
            page(arm, call, shown)
        }
        Target::Providers {
            subscription,
            namespace,
        } => {
            has_subscription(arm, subscription)?;
            Ok(Answer::new(
                StatusCode::OK,
                super::compute::providers(subscription, namespace.as_deref()),
            ))
        }
        Target::All {
            subscription,
            namespace,
            kind,
        } => {
            has_subscription(arm, subscription)?;
            let wanted = format!("{namespace}/{kind}");
            let prefix = format!("/subscriptions/{subscription}/").to_lowercase();
            let all = arm
                .store
                .below(&prefix, None)
                .filter(|record| is(&record.id.kind(), &wanted));
            let show_none = arm.settings.shows_none();
            page(
                arm,
                call,
                all.map(|record| (record.id.key(), Show::Record(record, show_none))),
            )
        }
        Target::Collection {
            subscription,
            group,
            namespace,
            parents,
            kind,
        } => {
            arm.group(subscription, group)?;
            let id = |segments| ResourceId {
                subscription: subscription.clone(),
                group: group.clone(),
                namespace: namespace.clone(),
                segments,
            };
            collection(arm, call, &id(parents.clone()), kind)
        }
        Target::Operation { .. } | Target::Resource(_) => Err(not_allowed(call.method)),
    }
}

/// The resources of a kind below `parent`, which may be a resource group.
fn collection(arm: &Arm<'_>, call: &Call<'_>, parent: &ResourceId, kind: &str) -> Answered {
    let show_none = arm.settings.shows_none();
    if !parent.segments.is_empty() {
        let record = arm.store.find(parent).ok_or_else(|| not_found(parent))?;
        if let Some(kind) = embedded(&record.id.kind()).iter().find(|known| is(known, kind)) {
            let list = record::children(&record.document, kind).iter().enumerate();
            let keys =
                list.map(|(number, child)| (format!("{number:08}"), Show::Child(record, kind, child, show_none)));
            return page(arm, call, keys);
        }
        if let Some(view) = super::compute::view(record, kind) {
            return Ok(Answer::new(StatusCode::OK, view));
        }
    }
    let prefix = format!("{parent}/").to_lowercase();
    let depth = parent.segments.len();
    let everywhere = is(kind, "networkInterfaces") && is(&parent.kind(), "Microsoft.Compute/virtualMachineScaleSets");
    let wanted = |record: &&Record| {
        let segments = &record.id.segments;
        let last = segments.last().is_some_and(|(found, _)| is(found, kind));
        last && (segments.len() == depth + 1 || everywhere)
    };
    let all = arm.store.below(&prefix, None).filter(wanted);
    page(
        arm,
        call,
        all.map(|record| (record.id.key(), Show::Record(record, show_none))),
    )
}

/// What is shown of a list's item, once it is known to be on the page.
enum Show<'a> {
    Record(&'a Record, bool),
    Child(&'a Record, &'static str, &'a Value, bool),
    Value(Value),
}

impl From<Value> for Show<'_> {
    fn from(value: Value) -> Self {
        Self::Value(value)
    }
}

/// A page of a list in the order of its keys; the next one begins behind the last key.
fn page<'a, S: Into<Show<'a>>>(
    arm: &'a Arm<'_>,
    call: &Call<'_>,
    items: impl Iterator<Item = (String, S)>,
) -> Answered {
    let after = call.parameter("$skiptoken").map(|token| skipped(&token)).transpose()?;
    let size = arm.settings.page_size;
    let mut rest = items
        .filter(|(key, _)| after.as_ref().is_none_or(|after| key > after))
        .peekable();
    let mut value = Vec::new();
    let mut last = None;
    while let Some((key, item)) = rest.next_if(|_| value.len() < size) {
        value.push(match item.into() {
            Show::Record(record, show_none) => {
                let mut shown = arm.store.shown(record, show_none);
                super::compute::expand(&mut shown, &record.id, call.parameter("$expand").as_deref());
                shown
            }
            Show::Child(record, kind, child, show_none) => arm.store.shown_child(record, kind, child, show_none),
            Show::Value(value) => value,
        });
        last = Some(key);
    }
    let mut body = json!({"value": value});
    if let (Some(last), true) = (last, rest.peek().is_some()) {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (key, value) in form_urlencoded::parse(call.query.as_bytes()).filter(|(key, _)| !is(key, "$skiptoken")) {
            query.append_pair(&key, &value);
        }
        query.append_pair("$skiptoken", &URL_SAFE_NO_PAD.encode(last));
        body["nextLink"] = format!("{}{}?{}", call.base, call.path, query.finish()).into();
    }
    Ok(Answer::new(StatusCode::OK, body))
}

/// The key that a page's token is behind.
///
/// # Errors
/// 400 for what no `nextLink` had: a guess in code and wording, but the first page again would be read for ever.
fn skipped(token: &str) -> Result<String, ArmError> {
    let key = URL_SAFE_NO_PAD.decode(token).ok();
    let key = key
        .and_then(|key| String::from_utf8(key).ok())
        .filter(|key| !key.is_empty());
    key.ok_or_else(|| {
        let message = "The provided skip token is not one that a nextLink had.";
        ArmError::new(StatusCode::BAD_REQUEST, "InvalidSkipToken", message)
    })
}

fn has_subscription(arm: &Arm<'_>, subscription: &str) -> Result<(), ArmError> {
    if arm
        .store
        .groups
        .values()
        .any(|group| is(&group.subscription, subscription))
    {
        return Ok(());
    }
    let message = format!("The subscription '{subscription}' could not be found.");
    Err(ArmError::new(StatusCode::NOT_FOUND, "SubscriptionNotFound", message).by_gateway())
}

fn put_group(arm: &mut Arm<'_>, call: &Call<'_>, subscription: &str, name: &str) -> Answered {
    debug_assert_eq!(call.method, Method::PUT);
    super::accept::check_name(name)?;
    let mut document = call.object()?;
    record::strip(&mut document);
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
    Ok(Answer::new(status, shown))
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
    if let Some(properties) = record::properties_mut(&mut shown) {
        properties.insert("provisioningState".into(), "Succeeded".into());
    }
    shown.entry("location").or_insert_with(|| json!("eastus"));
    shown.into()
}
