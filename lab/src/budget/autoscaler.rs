//! The delete delay of a cluster-autoscaler that runs in the cluster, from its Deployment.

use std::time::Duration;

use headgate_core::settings::parse_duration;
use k8s_openapi::api::apps::v1::Deployment;

use super::{DEFAULT_DELETE_DELAY, MAX_TIME};

/// The flag of cluster-autoscaler.
const FLAG: &str = "--node-delete-delay-after-taint";

/// A delay, and where it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeleteDelay {
    pub(super) delay: Duration,
    pub(super) source: String,
}

impl DeleteDelay {
    /// Of a cluster whose autoscaler does not run in it, or is not there.
    pub(super) fn unseen() -> Self {
        Self {
            delay: DEFAULT_DELETE_DELAY,
            source: "default of cluster-autoscaler; none is seen in the cluster".to_owned(),
        }
    }
}

/// The delay of this Deployment; none if it does not run cluster-autoscaler, or if the flag cannot be read.
pub(super) fn delete_delay(deployment: &Deployment) -> Option<DeleteDelay> {
    let containers = &deployment.spec.as_ref()?.template.spec.as_ref()?.containers;
    let container = containers.iter().find(|container| {
        let image = container.image.as_deref().unwrap_or_default();
        let name = image.rsplit('/').next().and_then(|name| name.split([':', '@']).next());
        name == Some("cluster-autoscaler")
    })?;
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    // A shell gets all words in one argument.
    let arguments = container.command.iter().chain(&container.args).flatten();
    let words: Vec<_> = arguments.flat_map(|argument| argument.split_whitespace()).collect();
    let place = words.iter().position(|word| word.starts_with(FLAG));
    let Some(place) = place else {
        return Some(DeleteDelay {
            delay: DEFAULT_DELETE_DELAY,
            source: format!("default of cluster-autoscaler, Deployment {name}"),
        });
    };
    let value = match words[place].split_once('=') {
        Some((_, value)) => value,
        None => words.get(place + 1)?,
    };
    Some(DeleteDelay {
        delay: parse_duration(value, Duration::ZERO, MAX_TIME).ok()?,
        source: format!("{FLAG} of Deployment {name}"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(image: &str, words: &[&str]) -> Option<u64> {
        let deployment = json!({"metadata": {"name": "scaler"}, "spec": {"selector": {}, "template": {"spec": {
            "containers": [{"name": "a", "image": image, "command": words}]}}}});
        delete_delay(&serde_json::from_value(deployment).unwrap()).map(|found| found.delay.as_secs())
    }

    #[test]
    fn the_flag_of_cluster_autoscaler_is_found() {
        let image = "registry.k8s.io/autoscaling/cluster-autoscaler:v1.36.0";
        assert_eq!(found(image, &["./cluster-autoscaler", "--v=4"]), Some(5), "the default");
        assert_eq!(
            found(image, &["./ca", "--node-delete-delay-after-taint=1m30s"]),
            Some(90)
        );
        assert_eq!(
            found(image, &["./ca", "--node-delete-delay-after-taint", "20s"]),
            Some(20)
        );
        let shell = "exec ./ca --v=4 --node-delete-delay-after-taint=40s 2>&1";
        assert_eq!(found(image, &["/bin/sh", "-c", shell]), Some(40));
        assert_eq!(found(image, &["./ca", "--node-delete-delay-after-taint=soon"]), None);
        assert_eq!(found("example.com/cluster-autoscaler-status", &[]), None);
    }
}
