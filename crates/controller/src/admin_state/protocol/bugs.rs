//! Mistakes that the protocol could have: each one changes a transition, or what the product answers, and some property must notice.

use super::model::{CALM, LEDGER, MEMBERS, RESTORES, RULES, WRITES};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// A PUT without `If-Match`.
    PutsWithoutEtag,
    /// A write has no member that is no node's.
    DropsForeignMembers,
    /// A write lacks a member whose node has an endpoint.
    DropsMembers,
    /// The ledger is written whenever, and the PUT does not wait for it.
    RecordsAfterWrite,
    /// A PUT without an answer counts as one that had no effect, so its intents are undone.
    TakesLostAnswerForRefusal,
    /// A restored entry leaves the ledger at once, while older writes may still arrive.
    ForgetsRestoredAtOnce,
    /// The `ConfigMap` is written without its resourceVersion.
    WritesLedgerWithoutVersion,
    /// After a conflict the ledger is what the API server has, without the changes of this term.
    ForgetsOwnChangesInConflict,
    /// The guard holds nothing back.
    IgnoresGuard,
    /// The guard finds no other node in service with an endpoint.
    MissesOthersInService,
    /// A PUT while ARM carries out another write.
    WritesWhileBusy,
    /// The permit of the term is not asked right before a PUT.
    SendsAfterTerm,
    /// The hold of the shared Lease is not asked right before a PUT.
    SendsWithoutHold,
    /// A new leader begins with an empty ledger.
    DoesNotReadLedger,
    /// An intent that a new leader has only found counts as recorded.
    TakesFoundForRecorded,
    /// A new leader plans before all Nodes are listed.
    PlansBeforeNodesAreListed,
}

/// Each bug, the property that notices it, and what happens in the model in which it does: signals, endpoints, foreign writes, faults,
/// pauses.
pub(super) const BUGS: [(Bug, &str, [u8; 5]); 16] = [
    (Bug::PutsWithoutEtag, MEMBERS, [1, 0, 1, 0, 0]),
    (Bug::DropsForeignMembers, MEMBERS, [1, 0, 1, 0, 0]),
    (Bug::DropsMembers, MEMBERS, [1, 0, 0, 0, 0]),
    (Bug::RecordsAfterWrite, LEDGER, [1, 0, 0, 0, 0]),
    (Bug::TakesLostAnswerForRefusal, LEDGER, [2, 0, 0, 1, 0]),
    (Bug::ForgetsRestoredAtOnce, LEDGER, [2, 0, 1, 0, 0]),
    (Bug::WritesLedgerWithoutVersion, LEDGER, [2, 0, 0, 0, 1]),
    (Bug::ForgetsOwnChangesInConflict, LEDGER, [2, 0, 0, 0, 1]),
    (Bug::IgnoresGuard, RULES, [1, 0, 0, 0, 0]),
    (Bug::MissesOthersInService, RESTORES, [1, 1, 0, 0, 0]),
    (Bug::WritesWhileBusy, WRITES, [2, 0, 0, 1, 0]),
    (Bug::SendsAfterTerm, WRITES, [1, 0, 0, 0, 1]),
    (Bug::SendsWithoutHold, WRITES, [1, 0, 0, 0, 1]),
    (Bug::DoesNotReadLedger, CALM, [1, 0, 0, 0, 1]),
    (Bug::TakesFoundForRecorded, LEDGER, [1, 0, 0, 1, 1]),
    (Bug::PlansBeforeNodesAreListed, RESTORES, [1, 0, 0, 0, 1]),
];
