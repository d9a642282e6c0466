//! ARM paths: which resource, collection or operation a request is about.
//!
//! Names compare without regard to case; the store keeps the spelling of the first request. Known names of types are
//! spelled as ARM spells them.

use std::fmt;

use axum::http::StatusCode;
use percent_encoding::percent_decode_str;

use super::error::ErrorResponse;

/// Namespaces and types as ARM spells them.
const KNOWN_NAMES: [&str; 34] = [
    "Microsoft.Authorization",
    "Microsoft.Compute",
    "Microsoft.Network",
    "applicationSecurityGroups",
    "availabilitySets",
    "backendAddressPools",
    "defaultSecurityRules",
    "denyAssignments",
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
    "permissions",
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
/// Segments of a path; no path of ARM has more.
const MAX_SEGMENTS: usize = 24;

/// The id of a resource in a resource group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResourceId {
    pub(super) subscription: String,
    pub(super) group: String,
    pub(super) namespace: String,
    /// Types and names, outermost first; none only for the parent of a collection that is the resource group.
    pub(super) segments: Vec<(String, String)>,
}

/// What an ARM path addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A subscription, by its id.
    Subscription(String),
    /// The resource groups of a subscription.
    Groups(String),
    /// A resource group, by its name.
    Group { subscription: String, group: String },
    /// All resources in a resource group.
    GroupResources { subscription: String, group: String },
    /// The resource providers of a subscription, or one of them.
    Providers {
        subscription: String,
        namespace: Option<String>,
    },
    /// The status of a long-running operation or, with `results`, its result.
    Operation { id: String, results: bool },
    /// The resources of one type in a subscription.
    All {
        subscription: String,
        namespace: String,
        kind: String,
    },
    /// The resources of one type in a resource group or below another resource. For some types the last segment is not
    /// a type but a view, such as `instanceView`.
    Collection { parent: ResourceId, kind: String },
    /// A resource or a child of one.
    Resource(ResourceId),
}

impl ResourceId {
    /// Parses an id; `None` if the text is not the path of a resource.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match Target::parse(text) {
            Ok(Target::Resource(id)) => Some(id),
            _ => None,
        }
    }

    /// The full type, such as `Microsoft.Network/loadBalancers/backendAddressPools`.
    pub(super) fn kind(&self) -> String {
        let kinds = self.segments.iter().map(|(kind, _)| kind.as_str());
        std::iter::once(self.namespace.as_str())
            .chain(kinds)
            .collect::<Vec<_>>()
            .join("/")
    }

    /// Whether the innermost resource is of this type, such as `networkInterfaces`.
    pub(super) fn is_a(&self, kind: &str) -> bool {
        self.segments.last().is_some_and(|(own, _)| same_name(own, kind))
    }

    /// The name of the innermost resource.
    pub(super) fn name(&self) -> &str {
        self.segments.last().map_or("", |(_, name)| name)
    }

    /// The key in the store: the id in lower case.
    pub(super) fn key(&self) -> String {
        self.to_string().to_lowercase()
    }

    /// The id with only the first `segments` segments.
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
    /// Parses a path, which may be percent-encoded.
    ///
    /// # Errors
    /// 404 for a path that ARM does not have.
    pub(super) fn parse(path: &str) -> Result<Self, ErrorResponse> {
        let words = path
            .trim_matches('/')
            .split('/')
            .map(segment)
            .collect::<Option<Vec<_>>>()
            .filter(|words| words.len() <= MAX_SEGMENTS)
            .ok_or_else(|| not_a_path(path))?;
        let lower: Vec<_> = words.iter().map(|word| word.to_ascii_lowercase()).collect();
        let lower: Vec<_> = lower.iter().map(String::as_str).collect();
        let subscription = || words[1].clone();
        let group = || words[3].clone();
        Ok(match lower[..] {
            ["subscriptions", _] => Self::Subscription(subscription()),
            ["subscriptions", _, "resourcegroups"] => Self::Groups(subscription()),
            ["subscriptions", _, "providers"] => Self::Providers {
                subscription: subscription(),
                namespace: None,
            },
            ["subscriptions", _, "providers", _] => Self::Providers {
                subscription: subscription(),
                namespace: Some(spelled(&words[3])),
            },
            ["subscriptions", _, "providers", _, _] => Self::All {
                subscription: subscription(),
                namespace: spelled(&words[3]),
                kind: spelled(&words[4]),
            },
            [
                "subscriptions",
                _,
                "providers",
                _,
                "locations",
                _,
                word @ ("operations" | "operationresults"),
                _,
            ] => Self::Operation {
                id: words[7].clone(),
                results: word == "operationresults",
            },
            ["subscriptions", _, "resourcegroups", _] => Self::Group {
                subscription: subscription(),
                group: group(),
            },
            ["subscriptions", _, "resourcegroups", _, "resources"] => Self::GroupResources {
                subscription: subscription(),
                group: group(),
            },
            ["subscriptions", _, "resourcegroups", _, "providers", _, _, ..] => {
                let pairs = words[6..].chunks_exact(2);
                let kind = pairs.remainder().first().map(|kind| spelled(kind));
                let id = ResourceId {
                    subscription: subscription(),
                    group: group(),
                    namespace: spelled(&words[5]),
                    segments: pairs.map(|pair| (spelled(&pair[0]), pair[1].clone())).collect(),
                };
                match kind {
                    Some(kind) => Self::Collection { parent: id, kind },
                    None => Self::Resource(id),
                }
            }
            _ => return Err(not_a_path(path)),
        })
    }
}

/// Whether two names are the same to ARM, which ignores case.
pub(super) fn same_name(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

/// A name as ARM spells it, unchanged if it is not a known one.
fn spelled(word: &str) -> String {
    let known = KNOWN_NAMES.iter().find(|known| same_name(known, word));
    known.map_or(word, |known| known).to_owned()
}

/// A percent-decoded segment; `None` if it is empty or has characters that no name may have.
fn segment(text: &str) -> Option<String> {
    let decoded = percent_decode_str(text).decode_utf8().ok()?;
    let allowed = !decoded.is_empty() && !decoded.contains(|c: char| c.is_control() || "/\\<>%&?#".contains(c));
    allowed.then(|| decoded.into_owned())
}

fn not_a_path(path: &str) -> ErrorResponse {
    let shown: String = path.chars().take(200).collect();
    // Guess: the wording.
    ErrorResponse::new(
        StatusCode::NOT_FOUND,
        "InvalidRequestUri",
        format!("The request URI path '{shown}' names no resource."),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_parsed() {
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
            "/subscriptions/S/other",
            "/subscriptions/S/other/n",
            "/subscriptions/S/other/n/t",
            "/subscriptions/S/other/g/providers/n/t/a",
            "/subscriptions/S/other/n/locations/l/operations/g",
            "/subscriptions/S/providers/n/other/l/operations/g",
            "/subscriptions/S/providers/n/locations/l/other/g",
            "/subscriptions/S/resourceGroups/g/other",
            "/subscriptions/S/resourceGroups/g/other/n/t/a",
            "/metadata/scheduledevents",
        ] {
            assert_eq!(parsed(path), Err("InvalidRequestUri".to_owned()), "{path}");
        }
        assert!(parsed(&"/a".repeat(100)).is_err());
    }
}
