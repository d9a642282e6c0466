//! What an identity may do in Azure: permissions, deny assignments, and who a token is for. Pure.
//!
//! Actions compare without regard to case, and `*` in a pattern stands for any text. A document of an unexpected form grants and denies
//! nothing.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::azure_json::Secret;

/// The principal of a deny assignment that stands for everyone.
const EVERYONE: &str = "00000000-0000-0000-0000-000000000000";

/// Actions, as a role grants or a deny assignment denies them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permission {
    /// Patterns of actions.
    pub actions: Vec<String>,
    /// Patterns of actions that are left out.
    pub not_actions: Vec<String>,
}

impl Permission {
    /// One as ARM shows it.
    pub(crate) fn from_document(document: &Value) -> Self {
        let texts = |name: &str| {
            let list = document[name].as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Self {
            actions: texts("actions"),
            not_actions: texts("notActions"),
        }
    }

    /// Whether the action is one of them.
    pub fn contains(&self, action: &str) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, action));
        any(&self.actions) && !any(&self.not_actions)
    }
}

/// What denies actions to principals, whatever roles grant them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DenyAssignment {
    /// The display name.
    pub name: String,
    /// The id of the scope.
    pub scope: String,
    /// Whether it is for the scope itself only.
    pub is_for_scope_only: bool,
    /// What it denies.
    pub permissions: Vec<Permission>,
    /// The principals that it denies them to.
    principals: Vec<Principal>,
    /// Those among them that it leaves out.
    excluded: Vec<Principal>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Principal {
    id: String,
    kind: String,
}

impl Principal {
    fn is(&self, object_id: &str) -> bool {
        self.id.eq_ignore_ascii_case(object_id)
    }

    fn is_group(&self) -> bool {
        self.kind.eq_ignore_ascii_case("group")
    }
}

/// Whether a deny assignment is about an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// It is.
    Certain,
    /// It depends on the groups of the identity, which are not known.
    DependsOnGroups,
    /// It is not.
    None,
}

impl DenyAssignment {
    /// One as ARM shows it.
    pub fn from_document(document: &Value) -> Self {
        let properties = &document["properties"];
        let list = |name: &str| properties[name].as_array().into_iter().flatten();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let principals = |name: &str| {
            list(name)
                .map(|principal| Principal {
                    id: text(&principal["id"]),
                    kind: text(&principal["type"]),
                })
                .collect()
        };
        Self {
            name: text(&properties["denyAssignmentName"]),
            scope: text(&properties["scope"]),
            is_for_scope_only: properties["doNotApplyToChildScopes"].as_bool().unwrap_or_default(),
            permissions: list("permissions").map(Permission::from_document).collect(),
            principals: principals("principals"),
            excluded: principals("excludePrincipals"),
        }
    }

    /// Whether it is about the identity with this object id.
    pub fn denial(&self, object_id: &str) -> Denial {
        if self.excluded.iter().any(|principal| principal.is(object_id)) {
            return Denial::None;
        }
        let is_named = |principal: &Principal| principal.is(EVERYONE) || principal.is(object_id);
        let may_be_excluded = self.excluded.iter().any(Principal::is_group);
        if self.principals.iter().any(is_named) {
            if may_be_excluded {
                Denial::DependsOnGroups
            } else {
                Denial::Certain
            }
        } else if self.principals.iter().any(Principal::is_group) {
            Denial::DependsOnGroups
        } else {
            Denial::None
        }
    }

    /// Whether it denies an action.
    pub fn denies(&self, action: &str) -> bool {
        self.permissions.iter().any(|permission| permission.contains(action))
    }
}

/// The principal of a token, as its payload says. The signature is not verified: ARM does that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenClaims {
    /// The object id of the service principal or managed identity; empty if the token has none.
    pub object_id: String,
    /// The application's client id; empty if the token has none.
    pub client_id: String,
}

impl TokenClaims {
    /// The claims of a token; empty if it is no JSON web token.
    pub fn read(token: &Secret) -> Self {
        let payload = token.expose().split('.').nth(1).unwrap_or_default();
        let payload = BASE64_URL_SAFE_NO_PAD.decode(payload).unwrap_or_default();
        let claims: Value = serde_json::from_slice(&payload).unwrap_or_default();
        let text = |name: &str| claims[name].as_str().unwrap_or_default().to_owned();
        Self {
            object_id: text("oid"),
            client_id: text("appid"),
        }
    }
}

/// Whether an action matches a pattern.
fn matches(pattern: &str, action: &str) -> bool {
    let (pattern, action) = (pattern.to_ascii_lowercase(), action.to_ascii_lowercase());
    let mut parts = pattern.split('*');
    let Some(mut rest) = action.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else {
        return rest.is_empty();
    };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const READ: &str = "Microsoft.Network/loadBalancers/read";

    #[test]
    fn patterns_match_actions_as_azure_does() {
        for (pattern, action, expected) in [
            ("*", READ, true),
            ("*/read", READ, true),
            ("*/write", READ, false),
            ("microsoft.network/LOADBALANCERS/read", READ, true),
            ("Microsoft.Network/*", READ, true),
            ("Microsoft.Network/*/read", READ, true),
            ("Microsoft.Network/*/read", "Microsoft.Network/read", false),
            ("Microsoft.Net", READ, false),
            ("Microsoft.Network/loadBalancers/read/more", READ, false),
            ("*load*read", READ, true),
            ("", READ, false),
        ] {
            assert_eq!(matches(pattern, action), expected, "{pattern} {action}");
        }
        let document = json!({"actions": ["*"], "notActions": ["*/write"], "dataActions": null});
        let permission = Permission::from_document(&document);
        assert!(permission.contains(READ));
        assert!(!permission.contains("Microsoft.Network/loadBalancers/write"));
        assert!(!Permission::from_document(&json!("odd")).contains(READ));
    }

    #[test]
    fn deny_assignments_are_about_everyone_or_some_but_not_those_they_exclude() {
        let principal = |id: &str, kind: &str| json!([{"id": id, "type": kind}]);
        let everyone = || principal(EVERYONE, "SystemDefined");
        for (principals, excluded, expected) in [
            (everyone(), json!([]), Denial::Certain),
            (everyone(), principal("ME", "ServicePrincipal"), Denial::None),
            (everyone(), principal("other", "ServicePrincipal"), Denial::Certain),
            (everyone(), principal("g", "Group"), Denial::DependsOnGroups),
            (principal("me", "ServicePrincipal"), json!(null), Denial::Certain),
            (principal("other", "User"), json!([]), Denial::None),
            (principal("g", "Group"), json!([]), Denial::DependsOnGroups),
        ] {
            let document = json!({"properties": {"denyAssignmentName": "locked", "scope": "/subscriptions/s",
                "permissions": [{"actions": ["*/write"], "notActions": []}], "doNotApplyToChildScopes": true,
                "principals": principals, "excludePrincipals": excluded}});
            let assignment = DenyAssignment::from_document(&document);
            assert_eq!(assignment.denial("me"), expected, "{document}");
            assert!(assignment.is_for_scope_only && assignment.denies("a/write") && !assignment.denies(READ));
        }
    }

    #[test]
    fn tokens_say_whom_they_are_for() {
        let token = |payload: &str| Secret::new(format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(payload)));
        let claims = TokenClaims::read(&token(r#"{"oid": "o", "appid": "a", "exp": 1}"#));
        assert_eq!((claims.object_id.as_str(), claims.client_id.as_str()), ("o", "a"));
        for odd in [
            token("[]"),
            token(r#"{"oid": 7}"#),
            Secret::new("opaque"),
            Secret::new(""),
        ] {
            assert_eq!(TokenClaims::read(&odd), TokenClaims::default());
        }
    }
}
