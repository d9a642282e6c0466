//! The ARM client against the emulator's binary, over HTTP and TLS, with each kind of credential.

use std::sync::Arc;
use std::time::Duration;

use headgate_azure::{
    AdminState, ArmClient, ArmClientOptions, Endpoints, ErrorClass, Identity, ResourceGroupId, TokenCache, Transport,
    WritePermit,
};
use headgate_azure::{Credential, ManagedIdentity, Secret};
use headgate_core::clock::Clock;
use headgate_http::client::TrustedRoots;
use headgate_http::proxies::Proxies;
use tokio::time::Instant;

use crate::emulator::emulator_process::Emulator;

const TENANT: &str = "7e4a0000-0000-4000-8000-000000000001";
const APPLICATION: &str = "c11e0000-0000-4000-8000-000000000002";
const MACHINE: &str = "ac41e000-0000-4000-8000-000000000003";
const SUBSCRIPTION: &str = "5b0c0de0-0000-4000-8000-000000000005";
/// A service account's token. The emulator checks its form and times only.
const ASSERTION: &str = "eyJhbGciOiJub25lIn0.eyJleHAiOjQxMDI0NDQ4MDB9.c2ln\n";

fn secret(text: &str) -> Credential {
    Credential::ClientSecret {
        client_id: APPLICATION.to_owned(),
        secret: Secret::new(text),
    }
}

#[tokio::test]
async fn every_credential_over_http_and_tls() {
    let emulator = Emulator::start(&["--operation-delay", "100ms"]).await;
    let authorities = std::fs::read(emulator.directory.join("ca.pem")).unwrap();
    let token_file = emulator.directory.join("service-account");
    std::fs::write(&token_file, ASSERTION).unwrap();
    let workload = Credential::WorkloadIdentity {
        client_id: APPLICATION.to_owned(),
        token_file: token_file.display().to_string(),
    };
    let machine = Credential::ManagedIdentity(Some(ManagedIdentity::ClientId(MACHINE.to_owned())));
    let group = ResourceGroupId::new(SUBSCRIPTION, "traffic").unwrap();
    let id = group.load_balancer("web").unwrap().pool("nodes").unwrap();
    let imds = format!("http://{}", emulator.arm);
    let transport = Transport::network(&TrustedRoots::Pem(authorities), Proxies::from_env()).unwrap();
    for endpoint in [
        format!("http://{}", emulator.arm),
        format!("https://{}", emulator.arm_tls),
    ] {
        let endpoints = Endpoints::discover(&transport, &endpoint, Some("HeadgateEmulator"))
            .await
            .unwrap();
        let arm = |credential: &Credential| {
            let identity = Identity::new(credential, Some(TENANT), &endpoints, &imds).unwrap();
            let tokens = TokenCache::new(identity, transport.clone(), Clock::System);
            let options = ArmClientOptions {
                endpoints: endpoints.clone(),
                rate_limits: None,
                user_agent: None,
            };
            ArmClient::new(options, transport.clone(), Arc::new(tokens), Clock::System)
        };
        for (credential, state) in [
            (&secret("a secret"), AdminState::Down),
            (&workload, AdminState::None),
            (&machine, AdminState::Up),
        ] {
            let arm = arm(credential);
            let deadline = Instant::now() + Duration::from_mins(1);
            let found = arm
                .list_load_balancers(&group, |_| true, |_| (), deadline)
                .await
                .unwrap();
            assert!(
                found.load_balancers.iter().any(|found| found.id == *id.load_balancer()),
                "{credential:?}"
            );
            let mut pool = arm.get_pool(&id, deadline).await.unwrap();
            assert!(pool.set_admin_state(0, state), "{credential:?}");
            let operation = arm
                .put_pool(pool.encode().unwrap(), WritePermit::new(|| true), deadline)
                .await;
            let operation = operation.unwrap_or_else(|error| panic!("{credential:?} at {endpoint}: {error}"));
            arm.poll_until_done(&operation, deadline).await.unwrap();
            let read = arm.get_pool(&id, deadline).await.unwrap();
            assert_eq!(read.addresses().next().unwrap().admin_state(), Some(state));
        }
        let wrong = arm(&secret("another"))
            .get_pool(&id, Instant::now() + Duration::from_mins(1))
            .await;
        let error = wrong.unwrap_err();
        assert_eq!((error.code(), error.class()), ("Token", ErrorClass::Terminal));
        assert!(error.to_string().contains("AADSTS7000215"), "{error}");
        assert!(!error.to_string().contains("another"), "{error}");
    }

    // The emulator's authority is not trusted.
    let strangers = std::fs::read(Emulator::start(&[]).await.directory.join("ca.pem")).unwrap();
    let transport = Transport::network(&TrustedRoots::Pem(strangers), Proxies::from_env()).unwrap();
    let endpoint = format!("https://{}", emulator.arm_tls);
    let error = Endpoints::discover(&transport, &endpoint, None).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");
    emulator.stop().await;
}
