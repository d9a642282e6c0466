//! The ARM emulator's router: any request to ARM, the token services, IMDS or the control API gets JSON or an empty
//! body, every resource keeps its fields and its own etag, and the emulator can be reset and read afterwards.

use bolero::check;
use bytes::Bytes;
use headgate_azure_emulator::{Emulator, Settings};
use headgate_core::clock::Clock;
use hyper::Request;
use serde_json::{Value, json};

use crate::mutated_corpus::{MutatedCorpus, time};

const NAME: &str = "arm";
const BASE: &str = "http://emulator";
const POOL: &str =
    "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb/backendAddressPools/a";
const WORDS: &[&[u8]] = &[
    b"PUT ",
    b"DELETE ",
    b"PATCH ",
    b"POST ",
    b"HEAD ",
    b"/subscriptions/s",
    b"/resourceGroups/g",
    b"/providers/Microsoft.Network",
    b"/loadBalancers/lb",
    b"/backendAddressPools/a",
    b"/providers/Microsoft.Compute/virtualMachineScaleSets/v/virtualMachines/0",
    b"/networkInterfaces/nic",
    b"/publicIPAddresses/ip",
    b"/instanceView",
    b"/locations/eastus/operations/",
    b"/emulator/v1/faults",
    b"/emulator/v1/settings",
    b"/emulator/v1/journal?after=0",
    b"/emulator/v1/scheduled-events",
    b"/metadata/scheduledevents?api-version=2020-07-01",
    b"/metadata/identity/oauth2/token",
    b"/t/oauth2/v2.0/token",
    b"?api-version=2025-05-01",
    b"&$skiptoken=",
    b"&$expand=instanceView",
    b"%2f",
    b"%ff",
    b"{\"properties\":{",
    b"\"backendAddressPools\":[",
    b"\"loadBalancerBackendAddresses\":[",
    b"\"name\":\"",
    b"\"adminState\":\"Down\"",
    b"\"ipAddress\":\"10.0.0.1\"",
    b"\"ipConfigurations\":[",
    b"\"action\":{\"write\":{\"merge\":{",
    b"\"action\":{\"operation\":\"fail\",\"effect\":\"lost\"}",
    b"\"match\":{\"path\":\"(a*)*",
    b"null",
    b"[",
    b"]",
    b"{",
    b"}",
    b"\"",
    b",",
    b"\n",
];

/// An emulator with an IP-based pool and a NIC-based pool, each in its own load balancer.
fn emulator() -> Emulator {
    let group = "/subscriptions/s/resourceGroups/g/providers";
    let lb = |name: &str| format!("{group}/Microsoft.Network/loadBalancers/{name}");
    let nic = format!("{group}/Microsoft.Compute/virtualMachineScaleSets/v/virtualMachines/0/networkInterfaces/nic");
    let seed = json!({"resources": [
        {"id": lb("lb"), "location": "eastus", "properties": {
            "backendAddressPools": [{"name": "a", "properties": {"loadBalancerBackendAddresses": [
                {"name": "n", "properties": {"ipAddress": "10.0.0.1"}}]}}],
            "loadBalancingRules": [{"name": "r", "properties": {"backendAddressPool": {"id": format!("{}/backendAddressPools/a", lb("lb"))}}}]}},
        {"id": lb("nics"), "location": "eastus", "properties": {"backendAddressPools": [{"name": "a"}]}},
        {"id": nic, "properties": {"ipConfigurations": [{"name": "ip", "properties": {
            "loadBalancerBackendAddressPools": [{"id": format!("{}/backendAddressPools/a", lb("nics"))}]}}]}},
    ]});
    let seed = serde_json::from_value(seed).unwrap();
    Emulator::new(Settings::default(), seed, Clock::System, 1).unwrap()
}

/// Sends the request of one line, `METHOD PATH BODY`. A line that is no HTTP request is skipped.
async fn send(emulator: &Emulator, token: &str, line: &[u8]) {
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let (method, path, body) = (words.next(), words.next(), words.next().unwrap_or_default());
    let builder = Request::builder()
        .method(method.unwrap_or_default())
        .uri(path.unwrap_or_default())
        .header("Authorization", format!("Bearer {token}"))
        .header("Metadata", "true");
    let Ok(request) = builder.body(Bytes::copy_from_slice(body)) else {
        return;
    };
    let is_control = request.uri().path().starts_with("/emulator/");
    let response = if is_control {
        emulator.control(&request)
    } else {
        // A fault may cut the connection.
        let Ok(response) = emulator.call(request, BASE).await else {
            return;
        };
        response
    };
    let status = response.status();
    let text = response.body();
    if !text.is_empty() {
        let is_json = response
            .headers()
            .get("content-type")
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
        let parsed = serde_json::from_slice::<Value>(text);
        assert!(
            !is_json || parsed.is_ok(),
            "{status}: {}",
            String::from_utf8_lossy(text)
        );
    }
}

#[test]
fn any_requests_leave_the_emulator_working() {
    let mutated_corpus = MutatedCorpus::load(NAME, WORDS);
    let files = mutated_corpus.files().to_vec();
    let run = |bytes: &[u8]| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let emulator = emulator();
            let control = |method: &str, path: &str| {
                let request = Request::builder().method(method).uri(format!("/emulator/v1/{path}"));
                emulator.control(&request.body(Bytes::new()).unwrap())
            };
            let token: Value = serde_json::from_slice(control("GET", "token").body()).unwrap();
            let token = token["token"].as_str().unwrap();
            for line in bytes.split(|byte| *byte == b'\n').take(32) {
                send(&emulator, token, line).await;
            }
            let state: Value = serde_json::from_slice(control("GET", "state").body()).unwrap();
            let mut etags = std::collections::BTreeSet::new();
            for resource in state["resources"].as_array().unwrap() {
                for field in ["id", "name", "type", "etag"] {
                    assert!(resource[field].is_string(), "{resource}");
                }
                assert!(
                    etags.insert(resource["etag"].as_str().unwrap()),
                    "two resources never share an etag"
                );
                assert!(resource["properties"]["provisioningState"].is_string(), "{resource}");
            }
            assert_eq!(control("DELETE", "faults").status(), 204);
            assert_eq!(control("POST", "reset").status(), 204);
            let request = Request::get(format!("{POOL}?api-version=2025-05-01"))
                .header("Authorization", format!("Bearer {token}"));
            let read = emulator.call(request.body(Bytes::new()).unwrap(), BASE).await.unwrap();
            // The input may have shortened the token's lifetime or shrunk the buckets.
            assert!([200, 401, 429].contains(&read.status().as_u16()), "{read:?}");
        });
    };
    for bytes in &files {
        run(bytes);
    }
    check!(name = NAME)
        .with_generator(mutated_corpus)
        .with_test_time(time())
        .for_each(|bytes: &Vec<u8>| run(bytes));
}
