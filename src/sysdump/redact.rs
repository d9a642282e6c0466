//! Cuts what may be secret out of texts and settings. Pure.
//!
//! A webhook's path and query are as secret as a password, so of every URL only scheme and host stay, and the paths that are headgate's
//! or of ARM. What looks like a token is cut, too.

use serde_yaml::Value;

const CUT: &str = "[cut]";
/// Paths of URLs that are known to have no secret.
const PLAIN_PATHS: [&str; 8] = [
    "/subscriptions/",
    "/api/v1/",
    "/apis/",
    "/healthz",
    "/livez",
    "/readyz",
    "/statusz",
    "/metrics",
];
/// What ends a URL in a text.
const URL_ENDS: [char; 10] = ['"', '\'', '<', '>', ')', ']', '}', ',', '\\', '`'];
/// The least length of a word of base64 that counts as a token.
const MIN_TOKEN: usize = 40;
/// Parts of a setting's name whose value is cut. The template of notifications may have the key of a service.
const SECRET_NAMES: [&str; 7] = ["secret", "password", "token", "credential", "key", "sas", "template"];
/// Settings with one of these parts in the name that hold a name and no secret.
const PLAIN_NAMES: [&str; 3] = ["file", "configsecret", "key"];

/// The text without secrets.
pub(super) fn scrub(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let start = rest[..at]
            .rfind(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c))
            .map_or(0, |before| {
                before + rest[before..].chars().next().map_or(1, char::len_utf8)
            });
        let is_end = |c: char| c.is_whitespace() || URL_ENDS.contains(&c);
        let end = rest[at..].find(is_end).map_or(rest.len(), |length| at + length);
        out += &cut_tokens(&rest[..start]);
        out += &cut_url(&rest[start..end]);
        rest = &rest[end..];
    }
    out + &cut_tokens(rest)
}

/// Scheme and host of a URL, and its path if that is known to have no secret.
fn cut_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let split = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(split);
    let host = match authority.rsplit_once('@') {
        Some((_, host)) => format!("{CUT}@{host}"),
        None => authority.to_owned(),
    };
    let is_known = PLAIN_PATHS.iter().any(|plain| path.starts_with(plain)) && !is_base64(path);
    let is_plain = path.len() <= 1 || is_known;
    let path = match (is_plain, path.split_once(['?', '#'])) {
        (false, _) => format!("/{CUT}"),
        (true, Some((path, _))) => format!("{path}?{CUT}"),
        (true, None) => path.to_owned(),
    };
    format!("{scheme}://{host}{path}")
}

/// The text without words that look like tokens: after `Bearer`, JSON web tokens, and long words of base64 with digits and letters of
/// both cases. Resource ids and hashes in lower case stay.
fn cut_tokens(text: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "+/=_-.~".contains(c);
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut is_after_bearer = false;
    while !rest.is_empty() {
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        let is_token =
            is_after_bearer && !word.is_empty() || word.starts_with("eyJ") && word.len() > MIN_TOKEN || is_base64(word);
        out += if is_token { CUT } else { word };
        if !word.is_empty() {
            is_after_bearer = word.eq_ignore_ascii_case("bearer");
        }
        let gap = after.find(is_part).unwrap_or(after.len());
        out += &after[..gap];
        rest = &after[gap..];
    }
    out
}

fn is_base64(word: &str) -> bool {
    // The parts of a path are words of their own.
    word.split('/').any(|part| {
        let has = |is: fn(&u8) -> bool| part.bytes().any(|byte| is(&byte));
        part.len() >= MIN_TOKEN
            && !part.contains('-')
            && has(u8::is_ascii_digit)
            && has(u8::is_ascii_lowercase)
            && has(u8::is_ascii_uppercase)
    })
}

/// Settings without secrets.
///
/// # Errors
/// They are no YAML; what it is then is not said, because it may have anything in it.
pub(super) fn settings(text: &str) -> Result<String, String> {
    let mut value: Value = serde_yaml::from_str(text).map_err(|_| "it is no YAML".to_owned())?;
    cut_values(&mut value);
    serde_yaml::to_string(&value).map_err(|error| error.to_string())
}

fn cut_values(value: &mut Value) {
    match value {
        Value::Mapping(fields) => {
            for (name, value) in fields.iter_mut() {
                let is_secret = name.as_str().is_some_and(is_secret_name);
                match value {
                    Value::String(text) if is_secret => CUT.clone_into(text),
                    value => cut_values(value),
                }
            }
        }
        Value::Sequence(values) => values.iter_mut().for_each(cut_values),
        Value::Tagged(tagged) => cut_values(&mut tagged.value),
        Value::String(text) => *text = scrub(text),
        _ => {}
    }
}

fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_plain = PLAIN_NAMES.contains(&&*name) || name.ends_with("file");
    !is_plain && SECRET_NAMES.iter().any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_keep_scheme_and_host() {
        for (text, expected) in [
            (
                "sent to https://hooks.example.com/services/T0/B0/planted: 404",
                "sent to https://hooks.example.com/[cut] 404",
            ),
            (
                "\"url\":\"https://user:planted@proxy.example.com:3128\"",
                "\"url\":\"https://[cut]@proxy.example.com:3128\"",
            ),
            (
                "PUT https://management.azure.com/subscriptions/s/resourceGroups/g?api-version=1&sig=planted",
                "PUT https://management.azure.com/subscriptions/s/resourceGroups/g?[cut]",
            ),
            (
                "posted to https://discord.com/api/webhooks/1/planted",
                "posted to https://discord.com/[cut]",
            ),
            (
                "https://10.0.0.1:443/api/v1/nodes?watch=true",
                "https://10.0.0.1:443/api/v1/nodes?[cut]",
            ),
            (
                &format!("https://10.0.0.1/api/v1/{}/nodes", "aB3".repeat(20)),
                "https://10.0.0.1/[cut]",
            ),
            ("http://10.0.0.1:10256/healthz", "http://10.0.0.1:10256/healthz"),
            (
                "see (https://example.com/a), or b",
                "see (https://example.com/[cut]), or b",
            ),
            ("https://example.com?code=planted", "https://example.com/[cut]"),
            ("a://", "a://"),
            ("é://b/planted", "é://b/[cut]"),
        ] {
            assert_eq!(scrub(text), expected);
        }
    }

    #[test]
    fn tokens_are_cut_and_names_stay() {
        let token = format!("eyJ{}", "aB3".repeat(20));
        assert_eq!(
            scrub(&format!("Authorization: Bearer planted, {token}!")),
            "Authorization: Bearer [cut], [cut]!"
        );
        assert_eq!(scrub(&format!("key={}", "aB3~".repeat(12))), CUT);
        for kept in [
            "aks-nodepool1-12345678-vmss000001 ToBeDeletedByClusterAutoscaler",
            "/subscriptions/0b1f6471-1bf0-4dda-aec3-cb9272f09590/resourceGroups/MC_group_cluster_westeurope/providers/Microsoft.Network",
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "LoadBalancerAdminStateUpdateFailed 2026-11-21T10:00:00Z",
        ] {
            assert_eq!(scrub(kept), kept);
        }
    }

    #[test]
    fn settings_lose_what_may_be_secret() {
        let text = "azure: {configFile: /etc/headgate/azure.json, configSecret: kube-system/azure, aadClientSecret: planted}\n\
                    notifications: {urlFile: /etc/url, proxyUrl: 'http://u:planted@proxy:3128', headers: ['https://x/planted'], \
                    template: '{\"routing_key\": \"planted\", \"summary\": {{ note | tojson }}}'}\n\
                    signals: {adminState: [{taint: {key: drain}}]}\nwebhookToken: planted\n";
        let found = settings(text).unwrap();
        assert!(!found.contains("planted"), "{found}");
        for kept in [
            "/etc/headgate/azure.json",
            "kube-system/azure",
            "/etc/url",
            "@proxy:3128",
            "key: drain",
        ] {
            assert!(found.contains(kept), "{kept} is not in {found}");
        }
        assert_eq!(settings("a: [planted").unwrap_err(), "it is no YAML");
    }
}
