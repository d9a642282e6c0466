//! The signals that headgate knows by name, and what the settings `signals.disabled` and `signals.extra` make of them. Pure.
//!
//! To add a name, add a variant to [`KnownSignal`], with what finds it and for what it counts by default.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::matcher::{DEFAULT_UNSCHEDULABLE_FOR, FORMS, SignalMatcher, SignalRules};
use super::names::{
    AUTOSCALER_TAINT, DRAINING_TAINT, KARPENTER_TAINT, MAINTENANCE_TAINT, MEDIK8S_TAINT, OUT_OF_SERVICE_TAINT,
    SHUTDOWN_TAINT,
};
use super::spot_notice::AzureNotice;
use crate::telemetry::words;

/// The taint of a node that AKS' automatic repair drains.
const REMEDIATOR_TAINT: &str = "remediator.kubernetes.azure.com/unschedulable";
/// How the keys of the taints of AWS Node Termination Handler begin.
const TERMINATION_HANDLER_PREFIX: &str = "aws-node-termination-handler/";

words! {
    /// What a signal does.
    #[derive(PartialOrd, Ord)]
    pub enum Effect {
        /// `/healthz` answers 503.
        Health = "health",
        /// The leader sets the node `Down` in its load balancers' backend pools.
        AdminState = "adminState",
    }
}

words! {
    /// A signal with a name in the settings.
    #[derive(PartialOrd, Ord)]
    pub enum KnownSignal {
        /// The taint with which Cluster Autoscaler announces a deletion.
        ClusterAutoscaler = "cluster-autoscaler",
        /// The taint of a node that is out of service.
        OutOfService = "out-of-service",
        /// The taint of a VM that is shut down.
        Shutdown = "shutdown",
        /// The taint of a VM that is about to be taken.
        Spot = "spot",
        /// The taint with which Karpenter announces a disruption.
        Karpenter = "karpenter",
        /// headgate's own taint of a maintenance.
        Maintenance = "maintenance",
        /// The Node object is being deleted.
        Deletion = "deletion",
        /// kubelet reports the node's graceful shutdown.
        KubeletShutdown = "kubelet-shutdown",
        /// Azure announces the eviction of this spot VM.
        Preempt = "preempt",
        /// Azure announces that the scale set deletes this VM.
        Terminate = "terminate",
        /// Azure announces that this VM moves to another machine.
        Redeploy = "redeploy",
        /// Azure announces a restart of this VM.
        Reboot = "reboot",
        /// The node is cordoned for a while.
        Cordon = "cordon",
        /// The taint of medik8s' Node Maintenance Operator.
        Medik8s = "medik8s",
        /// The taint of AKS' automatic repair.
        AksRemediator = "aks-remediator",
        /// The taints of AWS Node Termination Handler.
        TerminationHandler = "nth",
    }
}

impl KnownSignal {
    /// For what it counts unless the settings say otherwise.
    pub(crate) const fn default_effects(self) -> &'static [Effect] {
        match self {
            Self::ClusterAutoscaler
            | Self::OutOfService
            | Self::Shutdown
            | Self::Spot
            | Self::Karpenter
            | Self::Maintenance
            | Self::Deletion => &Effect::ALL,
            Self::KubeletShutdown | Self::Preempt => &[Effect::Health],
            Self::Terminate
            | Self::Redeploy
            | Self::Reboot
            | Self::Cordon
            | Self::Medik8s
            | Self::AksRemediator
            | Self::TerminationHandler => &[],
        }
    }

    /// For what it can count: the leader sees only what is in the Node object.
    pub const fn allowed_effects(self) -> &'static [Effect] {
        match self {
            Self::Preempt | Self::Terminate | Self::Redeploy | Self::Reboot => &[Effect::Health],
            _ => &Effect::ALL,
        }
    }

    fn matcher(self) -> SignalMatcher {
        let taint = |key: &str| SignalMatcher::Taint(key.to_owned());
        match self {
            Self::ClusterAutoscaler => taint(AUTOSCALER_TAINT),
            Self::OutOfService => taint(OUT_OF_SERVICE_TAINT),
            Self::Shutdown => taint(SHUTDOWN_TAINT),
            Self::Spot => taint(DRAINING_TAINT),
            Self::Karpenter => taint(KARPENTER_TAINT),
            Self::Maintenance => taint(MAINTENANCE_TAINT),
            Self::Medik8s => taint(MEDIK8S_TAINT),
            Self::AksRemediator => taint(REMEDIATOR_TAINT),
            Self::TerminationHandler => SignalMatcher::TaintPrefix(TERMINATION_HANDLER_PREFIX.to_owned()),
            Self::Cordon => SignalMatcher::Unschedulable(DEFAULT_UNSCHEDULABLE_FOR),
            Self::Deletion => SignalMatcher::Deletion,
            Self::KubeletShutdown => SignalMatcher::Shutdown,
            Self::Preempt => SignalMatcher::Azure(AzureNotice::Preempt),
            Self::Terminate => SignalMatcher::Azure(AzureNotice::Terminate),
            Self::Redeploy => SignalMatcher::Azure(AzureNotice::Redeploy),
            Self::Reboot => SignalMatcher::Azure(AzureNotice::Reboot),
        }
    }

    /// The name of what a matcher finds, if it has one.
    pub(super) fn of(matcher: &SignalMatcher) -> Option<Self> {
        let finds = |signal: &Self| match signal.matcher() {
            SignalMatcher::Unschedulable(_) => matches!(matcher, SignalMatcher::Unschedulable(_)),
            known => known == *matcher,
        };
        Self::ALL.into_iter().find(finds)
    }

    /// All names, for errors.
    pub fn names() -> String {
        Self::ALL.map(Self::as_str).join(", ")
    }
}

/// One entry of `signals.extra`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraSignal {
    /// What finds it.
    pub matcher: SignalMatcher,
    /// For what it counts; for a signal with a name in the place of its default.
    pub effects: BTreeSet<Effect>,
}

impl ExtraSignal {
    /// Reads one entry of the list.
    ///
    /// # Errors
    /// What is allowed, in words.
    pub fn parse(value: &Value) -> Result<Self, String> {
        let mut fields = value
            .as_object()
            .cloned()
            .ok_or_else(|| format!("an entry such as {FORMS}"))?;
        let effects = fields.remove("for");
        let matcher = match fields.get("signal") {
            Some(name) if fields.len() == 1 => {
                let signal = KnownSignal::ALL
                    .into_iter()
                    .find(|signal| name.as_str() == Some(signal.as_str()));
                let signal = signal.ok_or_else(|| format!("a signal that is one of {}", KnownSignal::names()))?;
                signal.matcher()
            }
            _ => SignalMatcher::parse(&fields.clone().into())?,
        };
        let known = KnownSignal::of(&matcher);
        if fields.contains_key("taint")
            && let Some(signal) = known
        {
            return Err(format!(
                "{{signal: {}, for: …}}, which is the name of this taint",
                signal.as_str()
            ));
        }
        let allowed = known.map_or(&Effect::ALL[..], KnownSignal::allowed_effects);
        Ok(Self {
            effects: parse_effects(effects.as_ref(), allowed)?,
            matcher,
        })
    }

    /// The entry in the settings.
    pub fn to_value(&self) -> Value {
        let mut entry = match self.known() {
            Some(signal) if signal.matcher() == self.matcher => json!({"signal": signal.as_str()}),
            _ => self.matcher.to_value(),
        };
        entry["for"] = self.effects.iter().map(|effect| effect.as_str()).collect();
        entry
    }

    /// The signal with a name that the entry is about.
    pub fn known(&self) -> Option<KnownSignal> {
        KnownSignal::of(&self.matcher)
    }

    /// What two entries of one list have in common if one of them is superfluous.
    pub fn name(&self) -> String {
        self.known()
            .map_or_else(|| self.matcher.to_string(), |signal| signal.as_str().to_owned())
    }
}

fn parse_effects(value: Option<&Value>, allowed: &[Effect]) -> Result<BTreeSet<Effect>, String> {
    let names: Vec<_> = allowed.iter().map(|effect| effect.as_str()).collect();
    let wrong = || match allowed {
        [_] => format!(
            "for: [{}]: the leader sees what is in the Node object only",
            names.join(", ")
        ),
        _ => format!("for: a list of one or both of {}", names.join(", ")),
    };
    let items = value.and_then(Value::as_array).filter(|items| !items.is_empty());
    let effects = items.ok_or_else(wrong)?.iter().map(|item| {
        let found = allowed.iter().find(|effect| item.as_str() == Some(effect.as_str()));
        found.copied().ok_or_else(wrong)
    });
    effects.collect()
}

/// The settings `signals.disabled` and `signals.extra`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignalSettings {
    /// The signals that count for nothing.
    pub disabled: BTreeSet<KnownSignal>,
    /// The signals that count besides, and those that count for something else than by default.
    pub extra: Vec<ExtraSignal>,
}

impl SignalSettings {
    /// A signal that both lists name.
    pub fn contradiction(&self) -> Option<KnownSignal> {
        let mut named = self.extra.iter().filter_map(ExtraSignal::known);
        named.find(|signal| self.disabled.contains(signal))
    }

    /// What makes `/healthz` answer 503.
    pub fn health(&self) -> SignalRules {
        self.rules(Effect::Health)
    }

    /// What takes the node out of its load balancers' backend pools.
    pub fn admin_state(&self) -> SignalRules {
        self.rules(Effect::AdminState)
    }

    /// Whether a signal with a name counts for this.
    pub fn counts(&self, signal: KnownSignal, effect: Effect) -> bool {
        match self.extra_of(signal) {
            Some(extra) => extra.effects.contains(&effect),
            None => signal.default_effects().contains(&effect) && !self.disabled.contains(&signal),
        }
    }

    fn extra_of(&self, signal: KnownSignal) -> Option<&ExtraSignal> {
        self.extra.iter().find(|extra| extra.known() == Some(signal))
    }

    fn rules(&self, effect: Effect) -> SignalRules {
        let known = KnownSignal::ALL
            .into_iter()
            .filter(|signal| self.counts(*signal, effect));
        let known = known.map(|signal| {
            let extra = self.extra_of(signal);
            extra.map_or_else(|| signal.matcher(), |extra| extra.matcher.clone())
        });
        let without_name = self.extra.iter().filter(|extra| extra.known().is_none());
        let without_name = without_name.filter(|extra| extra.effects.contains(&effect));
        let without_name = without_name.map(|extra| extra.matcher.clone());
        let mut matchers: Vec<_> = known.chain(without_name).collect();
        matchers.sort_by_key(|matcher| SignalMatcher::BUILT_IN.contains(matcher));
        SignalRules { matchers }
    }
}

#[cfg(test)]
mod tests;
