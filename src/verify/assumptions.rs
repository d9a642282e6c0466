//! What headgate assumes about Azure: the table that `headgate verify` asks, and docs/concepts/limits.md shows.

use std::fmt::Write as _;

/// One assumption. The texts are Markdown.
#[derive(Clone, Copy, Debug)]
pub struct Assumption {
    /// Names it in reports.
    pub id: &'static str,
    /// What headgate assumes.
    pub question: &'static str,
    /// What is seen where it holds.
    pub expected: &'static str,
    /// What the assumption rests on.
    pub source: &'static str,
}

pub(super) const WRITE_ADDRESSES: &str = "write-addresses";
pub(super) const WRITE_INTERFACES: &str = "write-interfaces";
pub(super) const IF_MATCH_ADDRESSES: &str = "if-match-addresses";
pub(super) const IF_MATCH_INTERFACES: &str = "if-match-interfaces";
pub(super) const RESTORED_STATE: &str = "restored-state";
pub(super) const ETAGS: &str = "etags";
pub(super) const POOLS_UPDATING: &str = "pools-updating";
pub(super) const OPERATION_STATUS: &str = "operation-status";
pub(super) const SECOND_WRITE: &str = "second-write";
pub(super) const SUPERSEDED_STATES: &str = "superseded-states";
pub(super) const SUPERSEDED_MEMBERS: &str = "superseded-members";
pub(super) const NEW_CONNECTIONS: &str = "new-connections";
pub(super) const ESTABLISHED_CONNECTIONS: &str = "established-connections";
pub(super) const ROLE: &str = "role";

/// All assumptions, in the order in which they are asked.
pub const ASSUMPTIONS: &[Assumption] = &[
    Assumption {
        id: WRITE_ADDRESSES,
        question: "Azure accepts a PUT of a pool of IP addresses that changes admin states only, with `If-Match`",
        expected: "accepted, and a read shows `Down`",
        source: "Microsoft's how-to does it by address",
    },
    Assumption {
        id: WRITE_INTERFACES,
        question: "the same for a pool of **network interfaces**",
        expected: "accepted, and a read shows `Down`",
        source: "the how-to shows it in the portal only, after the pool was created; no public recording",
    },
    Assumption {
        id: IF_MATCH_ADDRESSES,
        question: "a write of a pool of IP addresses with a stale `If-Match` is refused",
        expected: "refused with 412",
        source: "recorded for load balancers",
    },
    Assumption {
        id: IF_MATCH_INTERFACES,
        question: "the same for a pool of network interfaces",
        expected: "refused with 412",
        source: "recorded for load balancers",
    },
    Assumption {
        id: RESTORED_STATE,
        question: "an admin state that was set back to `None` is left out (headgate also reads `None`)",
        expected: "left out",
        source: "nothing is published",
    },
    Assumption {
        id: ETAGS,
        question: "a write of a pool changes the etags of its load balancer and of all pools",
        expected: "all etags differ from those before",
        source: "dumps that others published",
    },
    Assumption {
        id: POOLS_UPDATING,
        question: "while ARM changes a load balancer, each of its pools shows that (needed above 6 MiB)",
        expected: "every pool is `Updating`",
        source: "nothing is published",
    },
    Assumption {
        id: OPERATION_STATUS,
        question: "the role may read the status of an operation (otherwise headgate reads the pool)",
        expected: "the status is read",
        source: "the URL that Azure gives",
    },
    Assumption {
        id: SECOND_WRITE,
        question: "a write of another pool during an operation supersedes it",
        expected: "accepted, and the first operation ends `Canceled`",
        source: "published logs",
    },
    Assumption {
        id: SUPERSEDED_STATES,
        question: "admin states of a superseded write stay",
        expected: "the entry of the first pool is `Down`",
        source: "nothing is published",
    },
    Assumption {
        id: SUPERSEDED_MEMBERS,
        question: "members that a superseded write added stay",
        expected: "the member is in the first pool",
        source: "nothing is published",
    },
    Assumption {
        id: NEW_CONNECTIONS,
        question: "`Down` soon stops new connections",
        expected: "they stop; the answer says after how long",
        source: "nothing is published",
    },
    Assumption {
        id: ESTABLISHED_CONNECTIONS,
        question: "`Down` keeps established TCP connections",
        expected: "they are answered until the end",
        source: "Microsoft's overview, against the API's description",
    },
    Assumption {
        id: ROLE,
        question: "the role of `manifests/azure` has every action that is needed",
        expected: "the identity has its actions and no others, and no request is refused with 403",
        source: "requests mapped to actions; Microsoft's list for AKS",
    },
];

/// The list of docs/concepts/limits.md.
pub fn table() -> String {
    let mut text = String::new();
    for Assumption {
        id, question, source, ..
    } in ASSUMPTIONS
    {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- `{id}`: {question}. *{source}*");
    }
    text
}
