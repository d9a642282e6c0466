//! Accounts: those that the seed lists or, without a list, any.

use serde::Deserialize;

use super::super::guids::guid_for_name;
use super::super::id::same_name;
use super::Secret;

/// The tenant of callers that name none.
const DEFAULT_TENANT: &str = "5eed0000-0000-4000-8000-00000000000a";
/// The client id of a managed identity without a list of accounts.
const DEFAULT_CLIENT: &str = "5eed0000-0000-4000-8000-00000000000b";

/// The section `identity` of the seed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IdentitySettings {
    /// The accounts that get tokens. Empty: every account does.
    pub(crate) accounts: Vec<ListedAccount>,
}

/// An account in the seed. With a secret it is an application's, without one or with a `resourceId` a managed identity.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ListedAccount {
    tenant_id: String,
    client_id: String,
    client_secret: Option<Secret>,
    resource_id: Option<String>,
}

impl ListedAccount {
    fn account(&self) -> Principal {
        Principal {
            object: object_of(&self.tenant_id, &self.client_id),
            tenant: self.tenant_id.clone(),
            client: self.client_id.clone(),
        }
    }
}

/// A caller whose token was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    pub(crate) tenant: String,
    /// The application's client id.
    pub(crate) client: String,
    /// The object id in the directory. Throttling counts requests by it.
    pub(crate) object: String,
}

impl Principal {
    /// The caller with the developer's token.
    pub(super) fn developer() -> Self {
        Self {
            tenant: DEFAULT_TENANT.to_owned(),
            client: "developer".to_owned(),
            object: "developer".to_owned(),
        }
    }
}

/// The part of a client's name that no listed account has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnknownAccount {
    Tenant,
    Client,
}

impl IdentitySettings {
    /// The tenant that the subscriptions belong to: the first account's.
    pub(super) fn tenant(&self) -> &str {
        self.accounts.first().map_or(DEFAULT_TENANT, |known| &known.tenant_id)
    }

    /// The account of an application, and its secret if the list has one.
    pub(super) fn client(&self, tenant: &str, client: &str) -> Result<(Principal, Option<&Secret>), UnknownAccount> {
        if self.accounts.is_empty() {
            let account = Principal {
                tenant: tenant.to_owned(),
                client: client.to_owned(),
                object: object_of(tenant, client),
            };
            return Ok((account, None));
        }
        let mut there = self
            .accounts
            .iter()
            .filter(|known| same_name(&known.tenant_id, tenant))
            .peekable();
        there.peek().ok_or(UnknownAccount::Tenant)?;
        let known = there
            .find(|known| same_name(&known.client_id, client))
            .ok_or(UnknownAccount::Client)?;
        Ok((known.account(), known.client_secret.as_ref()))
    }

    /// Whether a secret is accepted. Without a list every secret is, except the empty one.
    pub(super) fn accepts_secret(known: Option<&Secret>, listed: bool, given: &str) -> bool {
        known.map_or(!listed && !given.is_empty(), |known| known.matches(given))
    }

    /// The account of a managed identity.
    pub(super) fn managed_identity(&self, selector: &IdentitySelector<'_>) -> Result<Principal, &'static str> {
        if self.accounts.is_empty() {
            let client = selector.client.unwrap_or(DEFAULT_CLIENT);
            let name = selector.resource.map(str::to_lowercase);
            return Ok(Principal {
                tenant: DEFAULT_TENANT.to_owned(),
                object: object_of(DEFAULT_TENANT, name.as_deref().unwrap_or(client)),
                client: client.to_owned(),
            });
        }
        // An account with a secret is an application, unless it has a resource id too.
        let machines = self
            .accounts
            .iter()
            .filter(|known| known.client_secret.is_none() || known.resource_id.is_some());
        let fits = |known: &&ListedAccount| {
            selector.client.is_none_or(|client| same_name(&known.client_id, client))
                && selector
                    .resource
                    .is_none_or(|id| known.resource_id.as_deref().is_some_and(|known| same_name(known, id)))
        };
        let mut fitting = machines.filter(fits);
        match (fitting.next(), fitting.next()) {
            (Some(known), None) => Ok(known.account()),
            (Some(_), Some(_)) => Err(
                "Multiple user assigned accounts exist, please specify the clientId / resourceId of the identity in the \
                 token request",
            ),
            (None, _) => Err("Identity not found"),
        }
    }
}

/// Selects one of a machine's managed identities; without any field, the only one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdentitySelector<'a> {
    pub(super) client: Option<&'a str>,
    pub(super) resource: Option<&'a str>,
}

fn object_of(tenant: &str, client: &str) -> String {
    guid_for_name(&format!("{tenant}/{client}").to_lowercase()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> IdentitySettings {
        serde_json::from_value(serde_json::json!({"accounts": [
            {"tenantId": "T1", "clientId": "app", "clientSecret": "hush"},
            {"tenantId": "T1", "clientId": "vm", "resourceId": "/subscriptions/s/ids/vm"},
            {"tenantId": "T2", "clientId": "pod"},
        ]}))
        .unwrap()
    }

    #[test]
    fn listed_accounts_are_found() {
        let settings = listed();
        for (tenant, client, want) in [
            ("t1", "APP", Ok("app")),
            ("T1", "vm", Ok("vm")),
            ("T1", "pod", Err(UnknownAccount::Client)),
            ("T3", "app", Err(UnknownAccount::Tenant)),
        ] {
            let seen = settings.client(tenant, client).map(|(account, _)| account.client);
            assert_eq!(seen.as_deref().map_err(|why| *why), want);
        }
        let multiple = "Multiple user assigned";
        for (client, resource, want) in [
            (None, None, Err(multiple)),
            (Some("VM"), None, Ok("vm")),
            (None, Some("/SUBSCRIPTIONS/s/ids/vm"), Ok("vm")),
            (Some("pod"), None, Ok("pod")),
            (Some("app"), None, Err("Identity not found")),
        ] {
            let selector = IdentitySelector { client, resource };
            match (settings.managed_identity(&selector), want) {
                (Ok(account), Ok(want)) => assert_eq!(account.client, want),
                (Err(why), Err(want)) => assert!(why.starts_with(want), "{why}"),
                (seen, want) => panic!("{selector:?}: {seen:?}, not {want:?}"),
            }
        }
    }

    #[test]
    fn every_account_is_accepted_without_a_list_and_keeps_its_object_id() {
        let settings = IdentitySettings::default();
        let (one, secret) = settings.client("t", "c").unwrap();
        assert!(secret.is_none());
        assert_eq!(settings.client("T", "C").unwrap().0.object, one.object);
        assert_ne!(settings.client("t", "d").unwrap().0.object, one.object);
        let machine = |resource| {
            settings
                .managed_identity(&IdentitySelector {
                    resource,
                    ..IdentitySelector::default()
                })
                .unwrap()
                .object
        };
        assert_eq!(machine(None), machine(None));
        assert_ne!(machine(None), machine(Some("/a")));
        for (known, listed, given, good) in [
            (None, false, "any", true),
            (None, false, "", false),
            (None, true, "any", false),
            (Some(Secret("a".to_owned())), true, "a", true),
            (Some(Secret("a".to_owned())), true, "b", false),
        ] {
            assert_eq!(IdentitySettings::accepts_secret(known.as_ref(), listed, given), good);
        }
    }
}
