//! Completion on the command line, with the names of Nodes: for shells by the variable `COMPLETE`, and for `kubectl` by the protocol of
//! its plugins' `kubectl_complete-headgate`.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::time::Duration;

use clap_complete::CompleteEnv;
use clap_complete::engine::{CompletionCandidate, complete};
use headgate_kubernetes::api_server::{self, Program};
use headgate_kubernetes::{Decoded, split_list};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::ListParams;
use kube::config::KubeConfigOptions;
use kube::core::PartialObjectMeta;
use tokio::time::timeout;

use super::{block_on, definition};

/// What `kubectl_complete-headgate` calls the program with, before the words of the command line.
const KUBECTL_COMPLETE: &str = "__complete";
/// kubectl's directive not to complete names of files.
const NO_FILE_COMPLETION: &str = ":4";
/// Time for the list of Nodes: a person waits for it.
const NODES_TIMEOUT: Duration = Duration::from_secs(2);
/// Names that are offered at most.
const MAX_NODES: u32 = 1000;

/// Answers a request for completion. Returns whether the process was started for one, and has nothing else to do.
pub(super) fn answer() -> bool {
    CompleteEnv::with_factory(definition).complete();
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_else(|| "headgate".into());
    if arguments.next().as_deref() != Some(OsStr::new(KUBECTL_COMPLETE)) {
        return false;
    }
    let words: Vec<OsString> = std::iter::once(program).chain(arguments).collect();
    let last = words.len() - 1;
    let found = complete(&mut definition(), words, last, None).unwrap_or_default();
    let mut out = io::stdout().lock();
    for candidate in found.iter().filter(|candidate| !candidate.is_hide_set()) {
        // A shell that reads no more needs no more.
        let _ = writeln!(out, "{}", candidate.get_value().display());
    }
    let _ = writeln!(out, "{NO_FILE_COMPLETION}");
    true
}

/// The names of the Nodes of the cluster that kubectl uses; none if they cannot be listed in time.
pub(super) fn node_candidates() -> Vec<CompletionCandidate> {
    let listed = block_on(async { Ok(timeout(NODES_TIMEOUT, list_nodes()).await.ok().flatten()) });
    let names = listed.ok().flatten().unwrap_or_default();
    names.into_iter().map(CompletionCandidate::new).collect()
}

async fn list_nodes() -> Option<Vec<String>> {
    let config = api_server::infer_config(None, &KubeConfigOptions::default())
        .await
        .ok()?;
    let client = api_server::build_lazy_client(&config, Program::Cli).ok()?;
    let nodes = Api::<Decoded<PartialObjectMeta<Node>>>::all(client)
        .list(&ListParams::default().limit(MAX_NODES))
        .await
        .ok()?;
    Some(
        split_list(nodes)
            .0
            .into_iter()
            .filter_map(|node| node.metadata.name)
            .collect(),
    )
}
