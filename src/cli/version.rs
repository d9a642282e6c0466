//! `headgate version`: of this program, and of the agents and controllers in the cluster, as their pods are labelled.

use std::collections::BTreeMap;

use clap::Args;
use headgate_core::telemetry::VERSION;
use jiff::Timestamp;
use serde::Serialize;

use crate::pods::{HeadgatePod, HeadgatePods};
use crate::report::{Detail, Report};

use super::cluster::ClusterArguments;
use super::output::{self, Output};
use super::{Failure, block_on};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Only this program's version; no request is sent
    #[arg(long)]
    client: bool,

    /// Namespace of headgate's pods
    #[arg(long, value_name = "NAMESPACE", default_value = "kube-system")]
    agents_namespace: String,

    #[command(flatten)]
    cluster: ClusterArguments,

    /// Output format
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.client {
        return output::print_report(arguments.output, &Versions::default());
    }
    let pods = block_on(async {
        let client = arguments.cluster.client().await?;
        let pods = HeadgatePods::list(&client, &arguments.agents_namespace, None, None).await;
        pods.map_err(|error| Failure::environment(anyhow::anyhow!(error)))
    });
    let pods = match pods {
        Ok(pods) => pods.all,
        Err(failure) => {
            // What is known without the cluster.
            output::print_report(arguments.output, &Versions::default())?;
            return Err(failure);
        }
    };
    output::print_report(arguments.output, &Versions::of(&pods))
}

/// The versions of all parts.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Versions {
    client: &'static str,
    /// `None` where the cluster was not asked.
    agents: Option<Vec<Part>>,
    controllers: Option<Vec<Part>>,
}

/// Pods of one version and image.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Part {
    /// The label `app.kubernetes.io/version`, or the tag of the image.
    version: Option<String>,
    image: String,
    pods: usize,
}

impl Default for Versions {
    fn default() -> Self {
        Self {
            client: VERSION,
            agents: None,
            controllers: None,
        }
    }
}

impl Versions {
    fn of(pods: &[HeadgatePod]) -> Self {
        let parts = |component: &str| {
            let mut counts: BTreeMap<(&Option<String>, &String), usize> = BTreeMap::new();
            for pod in pods.iter().filter(|pod| pod.component == component) {
                *counts.entry((&pod.version, &pod.image)).or_default() += 1;
            }
            let parts = counts.into_iter().map(|((version, image), pods)| Part {
                version: version.clone(),
                image: image.clone(),
                pods,
            });
            Some(parts.collect())
        };
        Self {
            agents: parts("agent"),
            controllers: parts("controller"),
            ..Self::default()
        }
    }
}

impl Report for Versions {
    const KIND: Option<&'static str> = Some("Version");

    fn taken_at(&self) -> Timestamp {
        Timestamp::now()
    }

    fn text(&self, _: Detail) -> String {
        let mut rows = vec![vec!["Client:".to_owned(), self.client.to_owned()]];
        for (name, parts) in [("Agents:", &self.agents), ("Controllers:", &self.controllers)] {
            let Some(parts) = parts else { continue };
            if parts.is_empty() {
                rows.push(vec![name.to_owned(), "none".to_owned()]);
            }
            for (index, part) in parts.iter().enumerate() {
                let noun = if part.pods == 1 { "pod" } else { "pods" };
                rows.push(vec![
                    if index == 0 { name.to_owned() } else { String::new() },
                    part.version.clone().unwrap_or_else(|| "unknown".to_owned()),
                    format!("{} {noun}", part.pods),
                    part.image.clone(),
                ]);
            }
        }
        crate::status::format_rows(&rows)
    }

    fn names(&self) -> Vec<String> {
        let parts = [&self.agents, &self.controllers].into_iter().flatten().flatten();
        let parts = parts.filter_map(|part| part.version.clone());
        std::iter::once(self.client.to_owned()).chain(parts).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(component: &str, version: &str) -> HeadgatePod {
        HeadgatePod {
            component: component.to_owned(),
            version: Some(version.to_owned()),
            image: format!("headgate:{version}"),
            ..HeadgatePod::default()
        }
    }

    #[test]
    fn versions_are_counted() {
        let pods = [
            pod("agent", "0.2.0"),
            pod("agent", "0.1.0"),
            pod("agent", "0.2.0"),
            pod("hold", "0.2.0"),
        ];
        let found = Versions::of(&pods).text(Detail::Narrow);
        let expected = format!(
            "Client:        {VERSION}\nAgents:        0.1.0   1 pod    headgate:0.1.0\n               0.2.0   2 pods   headgate:0.2.0\n\
             Controllers:   none\n"
        );
        // The client's version widens its column.
        let words = |text: &str| {
            text.lines()
                .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>()
        };
        assert_eq!(words(&found), words(&expected));
        assert_eq!(Versions::default().text(Detail::Wide), format!("Client:   {VERSION}\n"));
    }
}
