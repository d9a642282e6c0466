//! One notice: what happened, to which object, and who reports it.

use jiff::Timestamp;
use serde::Serialize;

/// What happened. The fields are those of a template, and of the body where no template is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// The name of the event in `PascalCase`: the reason of a Kubernetes event of headgate's, or one of the agents' own.
    pub event: String,
    /// When it was observed.
    pub time: Timestamp,
    /// The kind of the object, such as `Node`.
    pub kind: String,
    /// The namespace of the object; empty for a Node.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// Whether it needs attention.
    pub warning: bool,
    /// A sentence for people.
    pub note: String,
    /// The signals of the node, where the event is about them.
    pub signals: Vec<String>,
    /// The node of the process that reports it.
    pub reporter: String,
}

impl Notice {
    /// A notice and a warning with characters that a template has to encode, to check one. They differ in each field that may be empty.
    pub(crate) fn examples() -> [Self; 2] {
        let notice = Self {
            event: "NodeSignalled".to_owned(),
            time: Timestamp::UNIX_EPOCH,
            kind: "Node".to_owned(),
            namespace: String::new(),
            name: "node-1".to_owned(),
            warning: false,
            note: "a \"quoted\" \\ word\nand a second line".to_owned(),
            signals: vec!["headgate.dev/maintenance".to_owned(), "deletionTimestamp".to_owned()],
            reporter: "node-1".to_owned(),
        };
        let warning = Self {
            event: "LoadBalancerUpdateFailed".to_owned(),
            kind: "Service".to_owned(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            warning: true,
            signals: Vec::new(),
            ..notice.clone()
        };
        [notice, warning]
    }
}
