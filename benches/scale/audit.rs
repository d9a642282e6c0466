//! Requests to the API server by client, from its audit log, which leaves out what kubelets and the API server itself send.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use jiff::Timestamp;
use serde::Deserialize;

/// Writes of kubelets are left out: there are thousands a second, and metrics count them.
const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  users: ['system:apiserver']
- level: None
  namespaces: [kube-node-lease]
- level: None
  resources: [{group: '', resources: [nodes/status]}]
- level: Metadata
";

/// One request, or the start of a watch.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request {
    verb: String,
    stage: String,
    #[serde(default)]
    user_agent: String,
    #[serde(rename = "requestURI", default)]
    uri: String,
    object_ref: Option<Object>,
    #[serde(rename = "stageTimestamp")]
    completed: Timestamp,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Object {
    resource: String,
    subresource: String,
}

impl Request {
    /// The program that sent it, such as `headgate-agent`.
    fn client(&self) -> &str {
        self.user_agent.split('/').next().unwrap_or_default()
    }

    fn resource(&self) -> String {
        let object = self.object_ref.clone().unwrap_or_default();
        match (object.resource.is_empty(), object.subresource.is_empty()) {
            (true, _) => "other paths".to_owned(),
            (false, true) => object.resource,
            (false, false) => format!("{}/{}", object.resource, object.subresource),
        }
    }

    /// A watch counts when it starts, any other request when it ends.
    fn counts(&self) -> bool {
        self.stage
            == if self.verb == "watch" {
                "ResponseStarted"
            } else {
                "ResponseComplete"
            }
    }
}

/// The log, read up to some byte.
#[derive(Clone)]
pub(crate) struct AuditLog {
    file: PathBuf,
    offset: Cell<u64>,
}

impl AuditLog {
    /// The flags of kube-apiserver that make it write the log in a directory.
    pub(crate) fn flags(directory: &Path) -> anyhow::Result<Vec<String>> {
        let policy = directory.join("audit-policy.yaml");
        fs::write(&policy, POLICY).with_context(|| format!("writing {}", policy.display()))?;
        Ok(vec![
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", log_file(directory).display()),
            // One file: 100 MB and more would begin another.
            "--audit-log-maxsize=0".to_owned(),
        ])
    }

    /// The log of a directory, from its beginning.
    pub(crate) fn new(directory: &Path) -> Self {
        Self {
            file: log_file(directory),
            offset: Cell::new(0),
        }
    }

    /// The requests since the last call.
    ///
    /// # Errors
    /// The file is shorter than what was read of it, so requests are lost.
    pub(crate) fn read(&self) -> anyhow::Result<Vec<Request>> {
        let file = File::open(&self.file).context("the audit log")?;
        let (length, read) = (file.metadata()?.len(), self.offset.get());
        ensure!(
            length >= read,
            "the audit log has {length} bytes, of which {read} were read: it was rotated"
        );
        let mut file = BufReader::new(file);
        file.seek(SeekFrom::Start(read))?;
        let (mut requests, mut line) = (Vec::new(), String::new());
        loop {
            line.clear();
            let length = file.read_line(&mut line)?;
            // The last line may be incomplete.
            if !line.ends_with('\n') {
                return Ok(requests);
            }
            self.offset.set(self.offset.get() + u64::try_from(length)?);
            let request: Request = serde_json::from_str(&line).context("a line of the audit log")?;
            if request.counts() {
                requests.push(request);
            }
        }
    }
}

/// The requests by client, verb and resource.
pub(crate) fn counts(requests: &[Request]) -> BTreeMap<(String, String, String), u64> {
    let mut counts = BTreeMap::new();
    for request in requests {
        let key = (request.client().to_owned(), request.verb.clone(), request.resource());
        *counts.entry(key).or_default() += 1;
    }
    counts
}

fn log_file(directory: &Path) -> PathBuf {
    directory.join("audit.log")
}

/// When each agent first asked for a watch again after `since`.
pub(crate) fn first_watches(requests: &[Request], since: Timestamp) -> Vec<Duration> {
    let mut first: BTreeMap<&str, Timestamp> = BTreeMap::new();
    for request in requests {
        if request.client() == "headgate-agent" && request.verb == "watch" && request.completed >= since {
            // Of the own Node, whose name is a parameter; the version from which it goes on changes.
            let mut parameters = request.uri.split(['?', '&']);
            let Some(node) = parameters.find(|part| part.contains("fieldSelector")) else {
                continue;
            };
            let at = first.entry(node).or_insert(request.completed);
            *at = (*at).min(request.completed);
        }
    }
    let after = |at: Timestamp| Duration::try_from(at.duration_since(since)).unwrap_or_default();
    first.into_values().map(after).collect()
}
