//! The accounts there are: those that a seed file lists, or any.

use std::time::Duration;

use serde::Deserialize;

use super::super::guids::named;
use super::Secret;

/// The tenant of those who do not say theirs.
const TENANT: &str = "5eed0000-0000-4000-8000-00000000000a";
/// The client of a managed identity that no list has.
const CLIENT: &str = "5eed0000-0000-4000-8000-00000000000b";
/// What App Service's header says unless it is set.
const IDENTITY_HEADER: &str = "emulator";

/// Who is known, and for how long.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(in super::super) struct IdentitySettings {
    /// The accounts; if there are none, everybody is good.
    pub(in super::super) accounts: Vec<Listed>,
    /// How long a token is good for.
    #[serde(with = "super::super::settings::text")]
    pub(in super::super) token_lifetime: Duration,
    /// A token that is always good, for people who call by hand.
    pub(in super::super) developer_token: Option<Secret>,
    /// What `X-IDENTITY-HEADER` must say.
    pub(in super::super) identity_header: Secret,
}

impl Default for IdentitySettings {
    fn default() -> Self {
        Self {
            accounts: Vec::new(),
            token_lifetime: Duration::from_hours(1),
            developer_token: None,
            identity_header: Secret::new(IDENTITY_HEADER),
        }
    }
}

/// An account as a seed file lists it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(in super::super) struct Listed {
    tenant_id: String,
    client_id: String,
    #[serde(default)]
    object_id: Option<String>,
    #[serde(default)]
    client_secret: Option<Secret>,
    #[serde(default)]
    resource_id: Option<String>,
}

impl Listed {
    fn account(&self) -> Account {
        let object = self.object_id.clone();
        Account {
            object: object.unwrap_or_else(|| object_of(&self.tenant_id, &self.client_id)),
            tenant: self.tenant_id.clone(),
            client: self.client_id.clone(),
        }
    }
}

/// Whom a token is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) tenant: String,
    pub(super) client: String,
    pub(super) object: String,
}

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Principal {
    /// The tenant.
    pub(in super::super) tenant: String,
    /// The application.
    pub(in super::super) client: String,
    /// The object in the tenant's directory, by which throttling counts.
    pub(in super::super) object: String,
}

impl Principal {
    /// The one with the developer's token.
    pub(super) fn developer() -> Self {
        Self {
            tenant: TENANT.to_owned(),
            client: "developer".to_owned(),
            object: "developer".to_owned(),
        }
    }
}

/// Why a client gets no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stranger {
    Tenant,
    Client,
}

impl IdentitySettings {
    /// The tenant whose subscriptions these are: that of the first account.
    pub(super) fn tenant(&self) -> &str {
        self.accounts.first().map_or(TENANT, |known| &known.tenant_id)
    }

    /// Whether this is the developer's token.
    pub(super) fn is_developer(&self, token: &str) -> bool {
        self.developer_token.as_ref().is_some_and(|known| known.is(token))
    }

    /// The account of a client that says which it is, and its secret if one is kept.
    pub(super) fn client(&self, tenant: &str, client: &str) -> Result<(Account, Option<&Secret>), Stranger> {
        if self.accounts.is_empty() {
            let account = Account {
                tenant: tenant.to_owned(),
                client: client.to_owned(),
                object: object_of(tenant, client),
            };
            return Ok((account, None));
        }
        let mut there = self
            .accounts
            .iter()
            .filter(|known| same(&known.tenant_id, tenant))
            .peekable();
        there.peek().ok_or(Stranger::Tenant)?;
        let known = there
            .find(|known| same(&known.client_id, client))
            .ok_or(Stranger::Client)?;
        Ok((known.account(), known.client_secret.as_ref()))
    }

    /// Whether a client's secret is good.
    pub(super) fn takes(known: Option<&Secret>, listed: bool, given: &str) -> bool {
        known.map_or(!listed && !given.is_empty(), |known| known.is(given))
    }

    /// The account of a machine, which may say which of its accounts it means.
    pub(super) fn machine(&self, wanted: &Wanted<'_>) -> Result<Account, &'static str> {
        if self.accounts.is_empty() {
            let client = wanted.client.unwrap_or(CLIENT);
            let name = wanted.resource.map(str::to_lowercase);
            let object = wanted.object.map(str::to_owned);
            return Ok(Account {
                tenant: TENANT.to_owned(),
                object: object.unwrap_or_else(|| object_of(TENANT, name.as_deref().unwrap_or(client))),
                client: client.to_owned(),
            });
        }
        // Who has a secret is an application, unless it is a resource too.
        let machines = self
            .accounts
            .iter()
            .filter(|known| known.client_secret.is_none() || known.resource_id.is_some());
        let fits = |known: &&Listed| {
            wanted.client.is_none_or(|client| same(&known.client_id, client))
                && wanted.object.is_none_or(|object| same(&known.account().object, object))
                && wanted
                    .resource
                    .is_none_or(|id| known.resource_id.as_deref().is_some_and(|known| same(known, id)))
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

/// Which of a machine's accounts is meant; nothing said means the only one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted<'a> {
    pub(super) client: Option<&'a str>,
    pub(super) object: Option<&'a str>,
    pub(super) resource: Option<&'a str>,
}

fn same(left: &str, right: &str) -> bool {
    left.eq_ignore_ascii_case(right)
}

fn object_of(tenant: &str, client: &str) -> String {
    named(&format!("{tenant}/{client}").to_lowercase()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed() -> IdentitySettings {
        serde_json::from_value(serde_json::json!({"accounts": [
            {"tenantId": "T1", "clientId": "app", "objectId": "o-app", "clientSecret": "hush"},
            {"tenantId": "T1", "clientId": "vm", "objectId": "o-vm", "resourceId": "/subscriptions/s/ids/vm"},
            {"tenantId": "T2", "clientId": "pod"},
        ], "tokenLifetime": "10m", "developerToken": "golden", "identityHeader": "silver"}))
        .unwrap()
    }

    #[test]
    fn nothing_secret_is_written_by_debug() {
        let text = format!("{:?}", listed());
        for secret in ["hush", "golden", "silver"] {
            assert!(!text.contains(secret), "{text}");
        }
    }

    #[test]
    fn who_is_who_when_accounts_are_listed() {
        let settings = listed();
        for (tenant, client, want) in [
            ("t1", "APP", Ok("o-app")),
            ("T1", "vm", Ok("o-vm")),
            ("T1", "pod", Err(Stranger::Client)),
            ("T3", "app", Err(Stranger::Tenant)),
        ] {
            let seen = settings.client(tenant, client).map(|(account, _)| account.object);
            assert_eq!(seen.as_deref().map_err(|why| *why), want);
        }
        let multiple = "Multiple user assigned";
        for (client, object, resource, want) in [
            (None, None, None, Err(multiple)),
            (Some("VM"), None, None, Ok("vm")),
            (None, Some("o-vm"), None, Ok("vm")),
            (None, None, Some("/SUBSCRIPTIONS/s/ids/vm"), Ok("vm")),
            (Some("pod"), None, None, Ok("pod")),
            (Some("app"), None, None, Err("Identity not found")),
            (Some("vm"), Some("o-app"), None, Err("Identity not found")),
        ] {
            let wanted = Wanted {
                client,
                object,
                resource,
            };
            match (settings.machine(&wanted), want) {
                (Ok(account), Ok(want)) => assert_eq!(account.client, want),
                (Err(why), Err(want)) => assert!(why.starts_with(want), "{why}"),
                (seen, want) => panic!("{wanted:?}: {seen:?}, not {want:?}"),
            }
        }
    }

    #[test]
    fn everybody_is_good_when_none_is_listed_and_stays_who_it_is() {
        let settings = IdentitySettings::default();
        let (one, secret) = settings.client("t", "c").unwrap();
        assert!(secret.is_none());
        assert_eq!(settings.client("T", "C").unwrap().0.object, one.object);
        assert_ne!(settings.client("t", "d").unwrap().0.object, one.object);
        let machine = |resource| {
            settings
                .machine(&Wanted {
                    resource,
                    ..Wanted::default()
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
            (Some(Secret::new("a")), true, "a", true),
            (Some(Secret::new("a")), true, "b", false),
        ] {
            assert_eq!(IdentitySettings::takes(known.as_ref(), listed, given), good);
        }
    }
}
