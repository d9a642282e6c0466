//! The writes of Evacuations that a plan asks for. One whose Evacuation is gone is done.

use std::collections::BTreeMap;

use headgate_kubernetes::Decoded;
use kube::ResourceExt as _;
use kube::api::PostParams;

use super::super::writer::{WriteError, Writer};
use crate::api::names::{INSTIGATOR_FINALIZER, is_protection_finalizer};
use crate::api::{CancellationPolicy, Evacuation};
use crate::plan::action::{Action, EvacuationKey};
use crate::snapshot::PodFacts;

/// One write about one Evacuation.
pub(super) async fn change_evacuation(
    writer: &Writer,
    evacuations: &BTreeMap<&str, &Evacuation>,
    pods: &BTreeMap<&str, &PodFacts>,
    action: &Action,
) -> Result<(), WriteError> {
    let find = |key: &EvacuationKey| evacuations.get(key.uid.as_str()).copied().ok_or(WriteError::Gone);
    let outcome = match action {
        Action::CreateEvacuation { evacuation } => {
            let api = writer.evacuations(evacuation.namespace().as_deref().unwrap_or_default());
            let object = Decoded::Object((**evacuation).clone());
            let created = writer.send(api.create(&PostParams::default(), &object)).await;
            match created {
                Ok(_) => {
                    if let Some(pod) = pods.get(evacuation.spec.pod_ref.uid.as_str()) {
                        writer.events.malformed_annotations(pod);
                    }
                    return Ok(());
                }
                // It exists already; the cache will show it.
                Err(WriteError::Conflict) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Action::AddInstigator { evacuation } => {
            let object = find(evacuation)?;
            let mut finalizers = object.finalizers().to_vec();
            finalizers.push(INSTIGATOR_FINALIZER.to_owned());
            writer.set_evacuation_finalizers(object, &finalizers).await
        }
        Action::RemoveInstigator { evacuation } => {
            let object = find(evacuation)?;
            let others = object
                .finalizers()
                .iter()
                .filter(|finalizer| *finalizer != INSTIGATOR_FINALIZER);
            let others: Vec<_> = others.cloned().collect();
            writer.set_evacuation_finalizers(object, &others).await
        }
        Action::DeleteEvacuation { evacuation } => {
            let object = find(evacuation)?;
            let policy = object
                .status
                .as_ref()
                .map(|status| status.evacuation_cancellation_policy);
            let is_protected = policy == Some(CancellationPolicy::Forbid);
            let is_removed = |finalizer: &&String| {
                *finalizer == INSTIGATOR_FINALIZER || (!is_protected && is_protection_finalizer(finalizer))
            };
            let removed: Vec<_> = object.finalizers().iter().filter(is_removed).cloned().collect();
            writer.delete_evacuation(object, &removed).await
        }
        _ => Ok(()),
    };
    match outcome {
        Err(WriteError::Gone) => Ok(()),
        outcome => outcome,
    }
}
