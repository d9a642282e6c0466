//! Paths of ARM: which resource, collection or operation a request is about.
//!
//! Names compare without regard to case; the spelling first seen is kept by whoever stores the id.
//! Known words of types are spelled as ARM spells them.

use std::fmt;

use axum::http::StatusCode;
use percent_encoding::percent_decode_str;

use super::error::ArmError;

/// Words of namespaces and types as ARM spells them.
const WORDS: [&str; 31] = [
    "Microsoft.Compute",
    "Microsoft.Network",
    "applicationSecurityGroups",
    "availabilitySets",
    "backendAddressPools",
    "defaultSecurityRules",
    "frontendIPConfigurations",
    "inboundNatPools",
    "inboundNatRules",
    "ipConfigurations",
    "loadBalancerBackendAddresses",
    "loadBalancers",
    "loadBalancingRules",
    "natGateways",
    "networkInterfaces",
    "networkSecurityGroups",
    "outboundRules",
    "privateEndpoints",
    "privateLinkServices",
    "probes",
    "publicIPAddresses",
    "publicIPPrefixes",
    "routeTables",
    "routes",
    "securityRules",
    "subnets",
    "virtualMachineScaleSets",
    "virtualMachines",
    "virtualNetworkPeerings",
    "virtualNetworks",
    "proximityPlacementGroups",
];
/// More segments than any path of ARM has.
const MAX_SEGMENTS: usize = 24;

/// A resource below a resource group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResourceId {
    pub(super) subscription: String,
    pub(super) group: String,
    pub(super) namespace: String,
    /// Types and names, from the outermost; at least one.
    pub(super) segments: Vec<(String, String)>,
}

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// One subscription.
    Subscription(String),
    /// The resource groups of a subscription.
    Groups(String),
    /// One resource group.
    Group { subscription: String, group: String },
    /// Everything in a resource group.
    GroupResources { subscription: String, group: String },
    /// The providers of a subscription, or one.
    Providers {
        subscription: String,
        namespace: Option<String>,
    },
    /// The status or, with `results`, the outcome of a long-running operation.
    Operation { id: String, results: bool },
    /// The resources of one type in a subscription.
    All {
        subscription: String,
        namespace: String,
        kind: String,
    },
    /// The resources of one type in a resource group or below another resource. For some types a word
    /// in this place is not a type but a view, such as `instanceView`.
    Collection {
        subscription: String,
        group: String,
        namespace: String,
        parents: Vec<(String, String)>,
        kind: String,
    },
    /// One resource.
    Resource(ResourceId),
}

impl ResourceId {
    /// The id that `text` spells, if it spells one.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match Target::parse(text) {
            Ok(Target::Resource(id)) => Some(id),
            _ => None,
        }
    }

    /// `Microsoft.Network/loadBalancers/backendAddressPools`.
    pub(super) fn kind(&self) -> String {
        let kinds = self.segments.iter().map(|(kind, _)| kind.as_str());
        std::iter::once(self.namespace.as_str())
            .chain(kinds)
            .collect::<Vec<_>>()
            .join("/")
    }

    /// The last name.
    pub(super) fn name(&self) -> &str {
        self.segments.last().map_or("", |(_, name)| name)
    }

    /// What the id is found by: its text in lower case.
    pub(super) fn key(&self) -> String {
        self.to_string().to_lowercase()
    }

    /// The resource this one is below, by this many segments.
    pub(super) fn ancestor(&self, segments: usize) -> Self {
        let mut id = self.clone();
        id.segments.truncate(segments);
        id
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            subscription,
            group,
            namespace,
            segments,
        } = self;
        write!(
            f,
            "/subscriptions/{subscription}/resourceGroups/{group}/providers/{namespace}"
        )?;
        segments.iter().try_for_each(|(kind, name)| write!(f, "/{kind}/{name}"))
    }
}

impl Target {
    /// Reads a path, which may have escapes.
    ///
    /// # Errors
    /// Paths that are none of ARM's.
    pub(super) fn parse(path: &str) -> Result<Self, ArmError> {
        let segments = path
            .trim_matches('/')
            .split('/')
            .map(segment)
            .collect::<Option<Vec<_>>>()
            .filter(|segments| segments.len() <= MAX_SEGMENTS)
            .ok_or_else(|| not_a_path(path))?;
        let words: Vec<&str> = segments.iter().map(String::as_str).collect();
        let [first, subscription, rest @ ..] = words.as_slice() else {
            return Err(not_a_path(path));
        };
        if !is(first, "subscriptions") {
            return Err(not_a_path(path));
        }
        let subscription = (*subscription).to_owned();
        match rest {
            [] => Ok(Self::Subscription(subscription)),
            [groups] if is(groups, "resourceGroups") => Ok(Self::Groups(subscription)),
            [providers] if is(providers, "providers") => Ok(Self::Providers {
                subscription,
                namespace: None,
            }),
            [providers, namespace] if is(providers, "providers") => Ok(Self::Providers {
                subscription,
                namespace: Some(spelled(namespace)),
            }),
            [providers, namespace, kind] if is(providers, "providers") => Ok(Self::All {
                subscription,
                namespace: spelled(namespace),
                kind: spelled(kind),
            }),
            [providers, _, locations, _, operations, id]
                if is(providers, "providers") && is(locations, "locations") =>
            {
                let results = is(operations, "operationResults");
                if !results && !is(operations, "operations") {
                    return Err(not_a_path(path));
                }
                Ok(Self::Operation {
                    id: (*id).to_owned(),
                    results,
                })
            }
            [groups, group, rest @ ..] if is(groups, "resourceGroups") => {
                let group = (*group).to_owned();
                match rest {
                    [] => Ok(Self::Group { subscription, group }),
                    [resources] if is(resources, "resources") => Ok(Self::GroupResources { subscription, group }),
                    [providers, namespace, rest @ ..] if is(providers, "providers") && !rest.is_empty() => {
                        Ok(Self::below(subscription, group, spelled(namespace), rest))
                    }
                    _ => Err(not_a_path(path)),
                }
            }
            _ => Err(not_a_path(path)),
        }
    }

    fn below(subscription: String, group: String, namespace: String, rest: &[&str]) -> Self {
        let mut pairs = rest.chunks_exact(2);
        let segments: Vec<_> = pairs
            .by_ref()
            .map(|pair| (spelled(pair[0]), pair[1].to_owned()))
            .collect();
        match pairs.remainder() {
            [kind] => Self::Collection {
                subscription,
                group,
                namespace,
                parents: segments,
                kind: spelled(kind),
            },
            _ => Self::Resource(ResourceId {
                subscription,
                group,
                namespace,
                segments,
            }),
        }
    }
}

/// Whether two words are the same to ARM.
pub(super) fn is(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

/// A word as ARM spells it, where that is known.
fn spelled(word: &str) -> String {
    let known = WORDS.iter().find(|known| is(known, word));
    known.map_or(word, |known| known).to_owned()
}

/// A segment without its escapes; none where it is empty or cannot be part of a name.
fn segment(text: &str) -> Option<String> {
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    let allowed = !decoded.is_empty() && !decoded.contains(|c: char| c.is_control() || "/\\<>%&?#".contains(c));
    allowed.then(|| decoded.into_owned())
}

fn not_a_path(path: &str) -> ArmError {
    let shown: String = path.chars().take(200).collect();
    // A guess: the wording.
    ArmError::new(
        StatusCode::NOT_FOUND,
        "InvalidRequestUri",
        format!("The request URI path '{shown}' names no resource."),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_what_they_name() {
        let parsed = |path: &str| Target::parse(path).map_err(|error| error.code);
        let id = ResourceId::parse(
            "/SUBSCRIPTIONS/S/resourcegroups/Rg/providers/microsoft.network/loadbalancers/Lb/BACKENDADDRESSPOOLS/p%2D1/",
        );
        let id = id.unwrap();
        let text =
            "/subscriptions/S/resourceGroups/Rg/providers/Microsoft.Network/loadBalancers/Lb/backendAddressPools/p-1";
        assert_eq!(id.to_string(), text);
        assert_eq!(id.kind(), "Microsoft.Network/loadBalancers/backendAddressPools");
        assert_eq!(id.ancestor(1).name(), "Lb");
        assert_eq!(parsed("/subscriptions/S"), Ok(Target::Subscription("S".into())));
        let all = Target::All {
            subscription: "S".into(),
            namespace: "Microsoft.Network".into(),
            kind: "loadBalancers".into(),
        };
        assert_eq!(
            parsed("/subscriptions/S/providers/Microsoft.Network/loadbalancers"),
            Ok(all)
        );
        let operation = Target::Operation {
            id: "g".into(),
            results: true,
        };
        assert_eq!(
            parsed("/subscriptions/S/providers/Microsoft.Network/locations/eastus/operationResults/g"),
            Ok(operation)
        );
        for path in [
            "",
            "/",
            "//",
            "/subscriptions",
            "/subscriptions//resourceGroups",
            "/subscriptions/S/resourceGroups/g/providers",
            "/subscriptions/S/resourceGroups/g/providers/n",
            "/subscriptions/S/resourceGroups/g/providers/n/t/a%2Fb",
            "/subscriptions/S/resourceGroups/g/providers/n/t/a%00b",
            "/subscriptions/S/resourceGroups/g/providers/n/t/%ff",
            "/metadata/instance",
        ] {
            assert_eq!(parsed(path), Err("InvalidRequestUri".to_owned()), "{path}");
        }
        assert!(parsed(&"/a".repeat(100)).is_err());
    }
}
