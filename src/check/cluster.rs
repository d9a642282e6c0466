//! The API server: its version, the kinds that it serves, and whether it shows the Nodes. Pure.

use headgate_maintenance::automatic::Cause;

use super::finding::Finding;
use super::{Found, Server, World};
use crate::config::Settings;

/// The oldest version whose `ValidatingAdmissionPolicy` and tokens headgate's policies rely on.
const OLDEST: (u32, u32) = (1, 30);

/// A kind that headgate needs.
pub(super) struct Kind {
    /// `GROUP/VERSION`.
    pub(super) version: &'static str,
    pub(super) plural: &'static str,
    is_needed: fn(&Settings) -> bool,
    install: &'static str,
}

/// The kinds that an API server may lack.
pub(super) const KINDS: &[Kind] = &[
    Kind {
        version: "admissionregistration.k8s.io/v1",
        plural: "validatingadmissionpolicies",
        is_needed: |_| true,
        install: "upgrade to Kubernetes 1.30 or newer: without the kind nothing limits what headgate's rights allow, and it writes nothing",
    },
    Kind {
        version: "headgate.dev/v1alpha1",
        plural: "nodemaintenances",
        is_needed: |settings| settings.maintenance.enabled,
        install: "install the CustomResourceDefinitions of this version of headgate, or set maintenance.enabled: false",
    },
    Kind {
        version: "headgate.dev/v1alpha1",
        plural: "evacuations",
        is_needed: |settings| settings.maintenance.enabled,
        install: "install the CustomResourceDefinitions of this version of headgate, or set maintenance.enabled: false",
    },
    Kind {
        version: "cluster.x-k8s.io/v1beta2",
        plural: "machines",
        is_needed: |settings| settings.maintenance.automatic.causes.contains_key(&Cause::Machine),
        install: "upgrade Cluster API to a version that serves it, or take machine out of maintenance.automatic",
    },
];

impl Kind {
    pub(super) fn full_name(&self) -> String {
        format!("{}/{}", self.version, self.plural)
    }
}

pub(super) fn check_version(world: &World) -> Found {
    let Server { version, major, minor } = world.server.as_ref().map_err(|error| {
        let what = format!("the version is not known: {error}");
        Finding::warning(what, "make sure that this user may get /version")
    })?;
    if (*major, *minor) < OLDEST {
        return Err(Finding::failure(
            format!("Kubernetes {version} is older than {}.{}", OLDEST.0, OLDEST.1),
            "upgrade: headgate's admission policies need it, and without them it writes nothing",
        ));
    }
    Ok(vec![Finding::ok(format!("Kubernetes {version}"))])
}

pub(super) fn check_kinds(world: &World) -> Found {
    let served = world.served.as_ref().map_err(|error| {
        let what = format!("the kinds are not known: {error}");
        Finding::warning(what, "make sure that this user may get /apis")
    })?;
    let missing = |kind: &&Kind| (kind.is_needed)(&world.settings) && !served.contains(&kind.full_name());
    let missing = KINDS.iter().filter(missing).map(|kind| {
        let what = format!("the API server does not serve {} of {}", kind.plural, kind.version);
        Finding::failure(what, kind.install).about(kind.full_name())
    });
    Finding::or_ok(
        missing.collect(),
        "the API server serves every kind that the settings need",
    )
}

pub(super) fn check_nodes(world: &World) -> Found {
    let nodes = world.nodes.as_ref().map_err(|error| {
        let what = format!("the Nodes cannot be listed: {error}");
        Finding::failure(what, "let this user list nodes; headgate's own account may")
    })?;
    Ok(vec![Finding::ok(format!("{} Nodes", nodes.len()))])
}
