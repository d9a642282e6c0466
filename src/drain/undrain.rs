//! `headgate undrain`: ends what `headgate drain` created for nodes, and waits until they are given back.
//!
//! A maintenance that has no other nodes is deleted. From one that names others as well, the given nodes are taken out, also where those
//! others are gone. One that was created for the given labels is deleted also while no node has them. All that is decided by [`decide`],
//! before anything is written.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use anyhow::{anyhow, bail};
use headgate_core::node::CORDON_ANNOTATION;
use headgate_kubernetes::{Decoded, Undecodable, split_list};
use headgate_maintenance::api::{NodeMaintenance, Stage};
use headgate_maintenance::automatic::is_automatic;
use headgate_maintenance::plan::conditions::{PROGRESSING, find};
use headgate_maintenance::selection::selects;
use k8s_openapi::api::core::v1::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::manifest::CREATED_BY;
use super::progress::{REMIND_INTERVAL, UNANSWERED_AFTER, unanswered_line};
use super::request::{bounded, not_installed, write_error};
use super::selector::NodeQuery;
use crate::api_error::RequestError;
use crate::failure::{Failure, no_such_node};
use crate::readable_objects::readable_objects;

/// Between two looks at what is left.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Which nodes are given back.
pub(crate) struct UndrainRequest<'a> {
    /// A client of the API server.
    pub(crate) client: &'a Client,
    /// Nodes by name.
    pub(crate) nodes: &'a [String],
    /// Nodes by their labels, in the place of names.
    pub(crate) query: Option<&'a NodeQuery>,
    /// Whether to wait until the nodes are given back.
    pub(crate) wait: bool,
    /// How long; `None` without an end.
    pub(crate) timeout: Option<Duration>,
}

/// A Node, as far as selectors match it.
type NodeMetadata = PartialObjectMeta<Node>;

/// Ends the maintenances, and waits. `line` gets each line of text; `interrupted` ends the waiting.
///
/// # Errors
/// When nothing may be ended, a request is refused, or the nodes are not given back in time.
pub(crate) async fn undrain(
    request: &UndrainRequest<'_>,
    interrupted: impl Future<Output = ()>,
    mut line: impl FnMut(&str),
) -> Result<(), Failure> {
    let client = request.client;
    let nodes = Api::<Decoded<NodeMetadata>>::all(client.clone());
    let all_nodes = bounded(nodes.list(&ListParams::default())).await;
    let all_nodes = all_nodes.map_err(|error| Failure::runtime(anyhow!("Nodes cannot be listed: {error}")))?;
    let all_nodes = readable_objects(all_nodes);
    let api = Api::<Decoded<NodeMaintenance>>::all(client.clone());
    let maintenances = match bounded(api.list(&ListParams::default())).await {
        Ok(list) => readable_objects(list),
        Err(error) if error.code() == 404 => return Err(Failure::runtime(not_installed())),
        Err(error) => return Err(Failure::runtime(anyhow!("NodeMaintenances cannot be listed: {error}"))),
    };
    let given = given_nodes(request, &maintenances, &all_nodes);
    let mut given = given.map_err(Failure::runtime)?;
    let endings = decide(&maintenances, &all_nodes, &given, request.query).map_err(Failure::runtime)?;
    for ending in &endings {
        let name = ending.object.name_any();
        let verb = end(&api, ending).await.map_err(Failure::runtime)?;
        line(&format!("nodemaintenance.headgate.dev/{name} {verb}"));
        if let Some(text) = absent_line(ending, &all_nodes) {
            line(&text);
        }
    }
    leave_out(&mut given, kept(&maintenances, &endings, &all_nodes), &mut line);
    for node in untouched(&given, &endings, &all_nodes) {
        given.remove(&node);
        line(&format!(
            "node/{node} is in no maintenance of headgate: nothing was changed"
        ));
    }
    if !request.wait {
        return Ok(());
    }
    let timeout = async {
        match request.timeout {
            Some(timeout) => {
                sleep(timeout).await;
                Failure::runtime(anyhow!(
                    "not given back within {timeout:?}; the same command again waits on"
                ))
            }
            None => std::future::pending().await,
        }
    };
    let timeout = pin!(timeout);
    tokio::select! {
        biased;
        () = interrupted => Err(Failure::interrupted(anyhow!("interrupted; the same command again waits on"))),
        error = timeout => Err(error),
        () = wait(client, (&endings, &all_nodes), given, line) => Ok(()),
    }
}

/// The nodes that are given back. A name counts without a Node, too, while a maintenance has it.
fn given_nodes(
    request: &UndrainRequest<'_>,
    maintenances: &[NodeMaintenance],
    all: &[NodeMetadata],
) -> anyhow::Result<BTreeSet<String>> {
    let Some(query) = request.query else {
        let is_missing = |name: &&String| {
            let mut of_people = maintenances.iter().filter(|object| is_of_people(object));
            !all.iter().any(|node| node.name_any() == **name) && !of_people.any(|object| names(object, name))
        };
        return match request.nodes.iter().find(is_missing) {
            Some(missing) => Err(no_such_node(missing)),
            None => Ok(request.nodes.iter().cloned().collect()),
        };
    };
    let term = NodeSelectorTerm {
        match_expressions: Some(query.requirements().to_vec()),
        match_fields: None,
    };
    let nodes = names_of(
        &NodeSelector {
            node_selector_terms: vec![term],
        },
        all,
    );
    let mut of_people = maintenances.iter().filter(|object| is_of_people(object));
    anyhow::ensure!(
        !nodes.is_empty() || of_people.any(|object| is_of_labels(object, query)),
        "no node matches -l, and headgate drain created no NodeMaintenance for it; `kubectl get nodes --show-labels` shows the labels \
         that nodes have, `kubectl get hgnm` the NodeMaintenances"
    );
    Ok(nodes)
}

/// The names of the nodes that a selector matches.
fn names_of(selector: &NodeSelector, all: &[NodeMetadata]) -> BTreeSet<String> {
    let selected = all
        .iter()
        .filter(|node| selects(selector, &node.name_any(), node.labels()));
    selected.map(kube::ResourceExt::name_any).collect()
}

/// Whether a maintenance selects a node by its name, which needs no Node.
fn names(object: &NodeMaintenance, name: &str) -> bool {
    let mut terms = object.spec.node_selector.node_selector_terms.iter();
    terms.any(|term| named_node(term).is_some_and(|named| named == name))
}

/// The node that a term names; `None` if the term is about anything else as well.
fn named_node(term: &NodeSelectorTerm) -> Option<&String> {
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let ([field], []) = (fields, expressions) else {
        return None;
    };
    let [name] = field.values.as_deref()? else {
        return None;
    };
    (field.key == "metadata.name" && field.operator == "In").then_some(name)
}

/// What a person does to end a maintenance for one of its nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// `headgate undrain` with the node.
    Undrain,
    /// `headgate undrain` with the labels, or with all of the nodes that have them.
    UndrainLabels,
    /// Its deletion, for all of its nodes.
    #[default]
    Deletion,
    /// The stage `Complete`: the leader creates it again where it is deleted.
    Completion,
    /// It ends already, or has ended.
    Nothing,
}

impl EndedBy {
    /// What ends this one.
    pub(crate) fn of(object: &NodeMaintenance) -> Self {
        if object.spec.stage == Stage::Complete || object.metadata.deletion_timestamp.is_some() {
            return Self::Nothing;
        }
        if is_automatic(object) {
            return Self::Completion;
        }
        match without(&object.spec.node_selector, &BTreeSet::new()) {
            _ if !is_of_drain(object) || !in_progress(object) => Self::Deletion,
            Some(_) => Self::Undrain,
            None => Self::UndrainLabels,
        }
    }
}

/// How one maintenance ends for the given nodes.
#[derive(Clone, Debug, PartialEq)]
struct Ending<'a> {
    object: &'a NodeMaintenance,
    /// The selector without the given nodes; `None` deletes the maintenance.
    rest: Option<NodeSelector>,
}

fn in_progress(object: &NodeMaintenance) -> bool {
    matches!(object.spec.stage, Stage::Cordon | Stage::Drain)
}

fn is_of_people(object: &NodeMaintenance) -> bool {
    in_progress(object) && !is_automatic(object)
}

fn is_of_drain(object: &NodeMaintenance) -> bool {
    object.labels().get(CREATED_BY.0).map(String::as_str) == Some(CREATED_BY.1)
}

/// Whether `headgate drain` created a maintenance for these labels. It waits for nodes that get them, also while no node has them.
fn is_of_labels(object: &NodeMaintenance, query: &NodeQuery) -> bool {
    let texts = |requirements: &[NodeSelectorRequirement]| -> BTreeSet<_> {
        requirements.iter().map(|one| json!(one).to_string()).collect()
    };
    let [term] = object.spec.node_selector.node_selector_terms.as_slice() else {
        return false;
    };
    let has_fields = term.match_fields.as_ref().is_some_and(|fields| !fields.is_empty());
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    is_of_drain(object) && !has_fields && texts(expressions) == texts(query.requirements())
}

/// The nodes that another maintenance than the ended ones keeps, and why. One of the leader would be created again.
fn kept<'a>(
    maintenances: &'a [NodeMaintenance],
    endings: &'a [Ending<'_>],
    all_nodes: &'a [NodeMetadata],
) -> impl Iterator<Item = (String, String)> + 'a {
    let keeps = |object: &&NodeMaintenance| {
        let is_given_back = object.spec.dry_run || object.metadata.deletion_timestamp.is_some();
        in_progress(object) && !is_ended(endings, object) && (is_automatic(object) || !is_given_back)
    };
    maintenances.iter().filter(keeps).flat_map(|object| {
        let why = if is_automatic(object) {
            "it is about to be taken"
        } else {
            "another maintenance has begun there"
        };
        let why = format!("{why} (nodemaintenance/{})", object.name_any());
        let names = names_of(&object.spec.node_selector, all_nodes);
        names.into_iter().map(move |node| (node, why.clone()))
    })
}

/// The given nodes that nothing of headgate keeps, and that no ending is about.
fn untouched(given: &BTreeSet<String>, endings: &[Ending<'_>], all_nodes: &[NodeMetadata]) -> Vec<String> {
    let is_ended = |node: &NodeMetadata| {
        let mut selectors = endings.iter().map(|ending| &ending.object.spec.node_selector);
        selectors.any(|selector| selects(selector, &node.name_any(), node.labels()))
    };
    let untouched = all_nodes.iter().filter(|node| {
        given.contains(&node.name_any()) && !node.annotations().contains_key(CORDON_ANNOTATION) && !is_ended(node)
    });
    untouched.map(kube::ResourceExt::name_any).collect()
}

fn is_ended(endings: &[Ending<'_>], object: &NodeMaintenance) -> bool {
    endings.iter().any(|ending| ending.object.uid() == object.uid())
}

/// Waits no longer for the nodes that are kept, and says why.
fn leave_out(given: &mut BTreeSet<String>, kept: impl Iterator<Item = (String, String)>, line: &mut impl FnMut(&str)) {
    for (node, why) in kept {
        if given.remove(&node) {
            line(&format!("node/{node} stays out: {why}"));
        }
    }
}

/// What is done for the given nodes, or those of the labels. A node that is in no maintenance needs nothing.
fn decide<'a>(
    maintenances: &'a [NodeMaintenance],
    all_nodes: &[NodeMetadata],
    given: &BTreeSet<String>,
    query: Option<&NodeQuery>,
) -> anyhow::Result<Vec<Ending<'a>>> {
    let mut endings = Vec::new();
    for object in maintenances.iter().filter(|object| is_of_people(object)) {
        let name = object.name_any();
        let nodes = names_of(&object.spec.node_selector, all_nodes);
        // One that comes back under the name of a node that is gone would be drained at once.
        let is_selected = |node: &&String| nodes.contains(*node) || names(object, node);
        match given.iter().find(is_selected) {
            None if !query.is_some_and(|query| is_of_labels(object, query)) => continue,
            Some(node) if !is_of_drain(object) => {
                if object.spec.dry_run || object.metadata.deletion_timestamp.is_some() {
                    // It keeps no node, or gives them back already.
                    continue;
                }
                bail!(
                    "node {node} is in NodeMaintenance {name}, which headgate drain did not create; nothing was ended. \
                     `kubectl delete hgnm {name}` ends it for all of its nodes"
                );
            }
            _ => {}
        }
        let rest = match (
            without(&object.spec.node_selector, given),
            nodes.difference(given).next(),
        ) {
            // Those of its nodes that are gone may come back, and are not given.
            (Some(rest), _) => Some(rest).filter(|rest| !rest.node_selector_terms.is_empty()),
            (None, None) => None,
            (None, Some(other)) => bail!(
                "NodeMaintenance {name} selects nodes by their labels, node {other} as well; nothing was ended. \
                 Give all of its nodes, or the labels that were given to headgate drain"
            ),
        };
        endings.push(Ending { object, rest });
    }
    Ok(endings)
}

/// A selector of nodes by name without some of them; `None` if it does not only name nodes.
fn without(selector: &NodeSelector, given: &BTreeSet<String>) -> Option<NodeSelector> {
    let mut rest = selector.clone();
    rest.node_selector_terms.clear();
    for term in &selector.node_selector_terms {
        let name = named_node(term)?;
        if !given.contains(name) {
            rest.node_selector_terms.push(term.clone());
        }
    }
    Some(rest)
}

/// Sends what was decided. Gives what happened, in a word.
async fn end(api: &Api<Decoded<NodeMaintenance>>, ending: &Ending<'_>) -> anyhow::Result<&'static str> {
    let (object, name) = (ending.object, ending.object.name_any());
    let Some(rest) = &ending.rest else {
        if object.metadata.deletion_timestamp.is_some() {
            return Ok("is being deleted");
        }
        let params = DeleteParams::default().preconditions(Preconditions {
            uid: object.uid(),
            resource_version: None,
        });
        return match bounded(api.delete(&name, &params)).await {
            Err(error) if error.code() != 404 => Err(write_error(&name, "deleted", &error)),
            Ok(_) | Err(_) => Ok("deleted"),
        };
    };
    // Not its version: the controllers write its status at any time.
    let patch = json!([
        {"op": "test", "path": "/metadata/uid", "value": object.uid()},
        {"op": "test", "path": "/spec/nodeSelector", "value": object.spec.node_selector},
        {"op": "replace", "path": "/spec/nodeSelector", "value": rest},
    ]);
    let patch =
        serde_json::from_value(patch).map_err(|error| anyhow!("NodeMaintenance {name} was not changed: {error}"))?;
    let patched = bounded(api.patch(&name, &PatchParams::default(), &Patch::Json::<()>(patch))).await;
    match patched {
        Ok(_) => Ok("keeps its other nodes"),
        Err(error) => Err(write_error(&name, "changed", &error)),
    }
}

/// What is left of a maintenance of which no node exists any more.
fn absent_line(ending: &Ending<'_>, all_nodes: &[NodeMetadata]) -> Option<String> {
    let terms = &ending.rest.as_ref()?.node_selector_terms;
    let names: Vec<_> = terms.iter().filter_map(named_node).map(String::as_str).collect();
    let exists = |name: &&str| all_nodes.iter().any(|node| node.name_any() == *name);
    (!names.iter().any(exists)).then(|| {
        format!(
            "none of them exists, and a node that comes back under such a name is drained; `headgate undrain {}` ends that",
            names.join(" ")
        )
    })
}

/// Waits until the deleted maintenances and the cordons of the nodes are gone. A failed read is tried again.
async fn wait(
    client: &Client,
    (endings, all_nodes): (&[Ending<'_>], &[NodeMetadata]),
    mut nodes: BTreeSet<String>,
    mut line: impl FnMut(&str),
) {
    let maintenance_api = Api::<Decoded<NodeMaintenance>>::all(client.clone());
    let node_api = Api::<Decoded<Node>>::all(client.clone());
    let mut deleted: Vec<_> = endings.iter().filter(|ending| ending.rest.is_none()).collect();
    let mut report_at = Instant::now() + UNANSWERED_AFTER;
    let mut reported = Vec::new();
    let mut last_error = String::new();
    loop {
        let looked = async {
            while let Some(ending) = deleted.last() {
                let found = bounded(maintenance_api.get_opt(&ending.object.name_any())).await?;
                let uid = found.as_ref().and_then(kube::ResourceExt::uid);
                if uid.is_some() && uid == ending.object.uid() {
                    return Ok(());
                }
                deleted.pop();
            }
            for name in nodes.clone() {
                let node =
                    bounded(async { node_api.get_opt(&name).await?.map(Decoded::into_object).transpose() }).await?;
                let Some(text) = returned(node.as_ref()) else {
                    continue;
                };
                line(&format!("node/{name} {text}"));
                nodes.remove(&name);
            }
            Ok(())
        };
        let mut looked: Result<(), RequestError> = looked.await;
        if deleted.is_empty() && nodes.is_empty() {
            return;
        }
        if looked.is_ok() && Instant::now() >= report_at {
            report_at = Instant::now() + REMIND_INTERVAL;
            looked = bounded(maintenance_api.list(&ListParams::default())).await.map(|list| {
                let (objects, undecodable) = split_list(list);
                leave_out(&mut nodes, kept(&objects, endings, all_nodes), &mut line);
                let lines = waiting_lines(&objects, &undecodable, endings, &nodes);
                if lines != reported {
                    for text in &lines {
                        line(text);
                    }
                }
                reported = lines;
            });
        }
        if let Err(error) = looked {
            let error = format!("not read, trying again: {error}");
            if error != last_error {
                line(&error);
            }
            last_error = error;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// What keeps the nodes that are left: what controllers say of the maintenances that were ended, by all as they are now.
fn waiting_lines(
    objects: &[NodeMaintenance],
    undecodable: &[Undecodable],
    endings: &[Ending<'_>],
    nodes: &BTreeSet<String>,
) -> Vec<String> {
    let ended = objects.iter().filter(|object| is_ended(endings, object));
    let lines: Vec<_> = ended.filter_map(waiting_line).collect();
    let Some(first) = nodes.first().filter(|_| lines.is_empty()) else {
        return lines;
    };
    let nodes = match nodes.len() {
        1 => format!("node/{first} is"),
        more => format!("node/{first} and {} more are", more - 1),
    };
    let why = match undecodable.first() {
        None => ". Does a controller lead? headgate status shows the leader".to_owned(),
        Some(first) => format!(". NodeMaintenance {first}; no cordon is removed that it may want"),
    };
    vec![format!("{nodes} still cordoned by headgate{why}")]
}

/// What controllers say of a maintenance that was ended; `None` where it goes on for its other nodes.
fn waiting_line(object: &NodeMaintenance) -> Option<String> {
    let name = object.name_any();
    let status = object.status.as_ref();
    let Some(status) = status.filter(|status| status.observed_generation >= object.metadata.generation) else {
        return Some(unanswered_line(&name));
    };
    object.metadata.deletion_timestamp.as_ref()?;
    let progressing = find(&status.conditions, PROGRESSING);
    Some(match progressing.filter(|condition| condition.status == "True") {
        None => format!(
            "nodemaintenance/{name} is completed, and its finalizers keep it: {}",
            object.finalizers().join(", ")
        ),
        Some(condition) if condition.message.is_empty() => format!("nodemaintenance/{name} is being completed"),
        Some(condition) => format!("nodemaintenance/{name} is being completed: {}", condition.message),
    })
}

/// What became of a node, once no maintenance keeps it cordoned; `None` stands for a Node that does not exist.
fn returned(node: Option<&Node>) -> Option<&'static str> {
    let Some(node) = node else {
        return Some("does not exist any more");
    };
    let is_cordoned = node
        .spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default();
    match (node.annotations().contains_key(CORDON_ANNOTATION), is_cordoned) {
        (true, _) => None,
        (false, false) => Some("uncordoned"),
        (false, true) => Some("is cordoned, as it was before the maintenance; `kubectl uncordon` makes it schedulable"),
    }
}

#[cfg(test)]
mod tests;
