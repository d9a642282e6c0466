//! The writes of Evacuations that a plan asks for. One whose Evacuation is gone is done.

use std::collections::BTreeMap;

use headgate_kubernetes::Decoded;
use kube::ResourceExt as _;
use kube::api::PostParams;

use super::super::writer::{WriteError, Writer};
use crate::api::names::{INSTIGATOR_FINALIZER, is_protection_finalizer};
use crate::api::{CancellationPolicy, Evacuation};
use crate::plan::action::EvacuationChange;
use crate::snapshot::PodFacts;

/// One write of one Evacuation.
pub(super) async fn change_evacuation(
    writer: &Writer,
    pods: &BTreeMap<&str, &PodFacts>,
    change: EvacuationChange,
    evacuation: &Evacuation,
) -> Result<(), WriteError> {
    let has = evacuation.finalizers();
    let outcome = match change {
        EvacuationChange::Create => {
            let api = writer.evacuations(evacuation.namespace().as_deref().unwrap_or_default());
            let object = Decoded::Object(evacuation.clone());
            return match writer.send(api.create(&PostParams::default(), &object)).await {
                Ok(_) => {
                    if let Some(pod) = pods.get(evacuation.spec.pod_ref.uid.as_str()) {
                        writer.events.malformed_annotations(pod);
                    }
                    Ok(())
                }
                // It exists already; the cache will show it.
                Err(WriteError::Conflict) => Ok(()),
                Err(error) => Err(error),
            };
        }
        EvacuationChange::AddInstigator => {
            let finalizers = [has, &[INSTIGATOR_FINALIZER.to_owned()]].concat();
            writer.set_evacuation_finalizers(evacuation, &finalizers).await
        }
        EvacuationChange::RemoveInstigator => {
            let others = has.iter().filter(|finalizer| *finalizer != INSTIGATOR_FINALIZER);
            let others: Vec<_> = others.cloned().collect();
            writer.set_evacuation_finalizers(evacuation, &others).await
        }
        EvacuationChange::Delete => {
            let status = evacuation.status.as_ref();
            let policy = status.map(|status| status.evacuation_cancellation_policy);
            let is_protected = policy == Some(CancellationPolicy::Forbid);
            let is_removed = |finalizer: &&String| {
                *finalizer == INSTIGATOR_FINALIZER || (!is_protected && is_protection_finalizer(finalizer))
            };
            let removed: Vec<_> = has.iter().filter(is_removed).cloned().collect();
            writer.delete_evacuation(evacuation, &removed).await
        }
    };
    match outcome {
        Err(WriteError::Gone) => Ok(()),
        outcome => outcome,
    }
}
