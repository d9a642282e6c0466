//! JSON web tokens, signed with HMAC-SHA256. Clients read only the payload.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use ring::{digest, hmac};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::account::Principal;

/// The claims of a token.
#[derive(Debug, PartialEq, Deserialize, Serialize)]
pub(super) struct Claims {
    /// The audience: the resource that the token is for.
    pub(super) aud: String,
    /// The issuer, which names the tenant.
    pub(super) iss: String,
    pub(super) iat: i64,
    pub(super) nbf: i64,
    pub(super) exp: i64,
    /// The application's client id.
    pub(super) appid: String,
    /// How the client authenticated. 1: a secret; 2: a certificate or an assertion. Managed identities have 2.
    pub(super) appidacr: String,
    pub(super) idp: String,
    pub(super) idtyp: String,
    /// The object id in the directory.
    pub(super) oid: String,
    pub(super) sub: String,
    pub(super) tid: String,
    /// A unique id of the token.
    pub(super) uti: String,
    pub(super) ver: String,
}

/// Signs and verifies tokens with one key, which `Debug` does not show.
pub(super) struct Signer {
    key: hmac::Key,
    id: String,
}

impl Signer {
    pub(super) fn new(key: &[u8]) -> Self {
        let id = digest::digest(&digest::SHA256, key);
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, key),
            id: BASE64.encode(&id.as_ref()[..20]),
        }
    }

    /// A token that is valid from and until these Unix times, in seconds.
    pub(super) fn sign(&self, account: &Principal, audience: &str, from: i64, until: i64) -> String {
        let issuer = format!("https://sts.windows.net/{}/", account.tenant);
        let id = hmac::sign(&self.key, format!("{}{audience}{from}", account.object).as_bytes());
        let claims = Claims {
            aud: audience.to_owned(),
            iss: issuer.clone(),
            iat: from,
            nbf: from,
            exp: until,
            appid: account.client.clone(),
            appidacr: "1".to_owned(),
            idp: issuer,
            idtyp: "app".to_owned(),
            oid: account.object.clone(),
            sub: account.object.clone(),
            tid: account.tenant.clone(),
            uti: BASE64.encode(&id.as_ref()[..16]),
            ver: "1.0".to_owned(),
        };
        let header = json!({"typ": "JWT", "alg": "HS256", "kid": self.id});
        let signed = format!("{}.{}", encoded(&header), encoded(&json!(claims)));
        let signature = hmac::sign(&self.key, signed.as_bytes());
        format!("{signed}.{}", BASE64.encode(signature))
    }

    /// The claims of a token that this key signed, `None` for any other text.
    pub(super) fn read(&self, token: &str) -> Option<Claims> {
        let (signed, signature) = token.rsplit_once('.')?;
        hmac::verify(&self.key, signed.as_bytes(), &BASE64.decode(signature).ok()?).ok()?;
        let (_, claims) = signed.split_once('.')?;
        serde_json::from_slice(&BASE64.decode(claims).ok()?).ok()
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Signer")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// The payload of a token from any issuer, without a check of its signature; `None` if it is not a JSON web token.
pub(super) fn payload(token: &str) -> Option<Value> {
    let mut parts = token.split('.');
    let (header, payload, signature) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || signature.is_empty() {
        return None;
    }
    let object = |part: &str| -> Option<Value> {
        let value: Value = serde_json::from_slice(&BASE64.decode(part).ok()?).ok()?;
        value.is_object().then_some(value)
    };
    object(header)?.get("alg")?;
    object(payload)
}

fn encoded(value: &Value) -> String {
    BASE64.encode(value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn altered_tokens_and_tokens_of_other_keys_are_refused() {
        let account = Principal {
            tenant: "t".to_owned(),
            client: "c".to_owned(),
            object: "o".to_owned(),
        };
        let (ours, theirs) = (Signer::new(b"ours"), Signer::new(b"theirs"));
        let token = ours.sign(&account, "https://x", 100, 200);
        let claims = ours.read(&token).unwrap();
        assert_eq!(claims.iss, "https://sts.windows.net/t/");
        assert_eq!(
            (claims.exp, claims.oid.as_str(), claims.aud.as_str()),
            (200, "o", "https://x")
        );
        let header: Value = serde_json::from_slice(&BASE64.decode(token.split('.').next().unwrap()).unwrap()).unwrap();
        assert_eq!((&header["typ"], &header["alg"]), (&json!("JWT"), &json!("HS256")));
        assert_eq!(payload(&token).unwrap()["appid"], "c");
        assert_eq!(theirs.read(&token), None);
        for cut in (0..token.len()).step_by(7) {
            assert_eq!(ours.read(&token[..cut]), None);
        }
        let none = format!("{}.{}.", encoded(&json!({"alg": "none"})), encoded(&json!(claims)));
        assert_eq!(ours.read(&none), None);
        for odd in ["", ".", "..", "...", "a.b", "a.b.c", "ä.ö.ü", &none, "e30.e30.e30"] {
            assert_eq!((ours.read(odd), payload(odd)), (None, None), "{odd}");
        }
    }
}
