//! The ARM emulator as a process, with Microsoft's clients and the requests of cloud-controller-manager.

use std::process::Command;
use std::time::Duration;

use headgate_test_kubernetes::{assert_contains, eventually, lab_program, met};
use serde_json::{Value, json};

use self::emulator_process::Emulator;
use crate::harness::http::{Connection, control, exchange};

mod clients;
pub(crate) mod emulator_process;
mod evidence;

#[tokio::test]
async fn the_emulator_waits_for_no_connection_and_no_request_when_it_stops() {
    let emulator = Emulator::start(&[]).await;
    let addresses = emulator.directory.join("addresses.json");
    assert!(addresses.exists());
    let mut kept_open = Connection::open(emulator.arm).await.unwrap();
    kept_open.send(b"GET / HTTP/1.1\r\nHost: arm\r\n\r\n").await.unwrap();
    kept_open.response().await.unwrap();

    // Another request is answered ten minutes later, long after the time for the stop.
    let rule = json!({"match": {"path": "^/slow"}, "action": {"stall": "10m"}});
    control(emulator.control, "POST", "faults", &rule).await;
    let mut stalled = Connection::open(emulator.arm).await.unwrap();
    stalled.send(b"GET /slow HTTP/1.1\r\nHost: arm\r\n\r\n").await.unwrap();
    eventually(Duration::from_mins(1), "the request is received", async || {
        let journal = control(emulator.control, "GET", "journal", &Value::Null)
            .await
            .to_string();
        met(journal.contains("/slow"), journal)
    })
    .await;

    emulator.stop().await;
    assert!(!addresses.exists(), "its addresses are no longer served");
    for connection in [&mut kept_open, &mut stalled] {
        assert_eq!(connection.rest().await.unwrap_or_default(), b"", "closed");
    }
}

/// The exit code and the standard error of a command that has to end by itself.
async fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = tokio::process::Command::from(Command::new(lab_program()));
    command.arg("azure-emulator").args(arguments).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_mins(1), command.output()).await;
    let output = output.expect("it ends by itself").unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn an_address_in_use_is_refused() {
    let emulator = Emulator::start(&[]).await;
    let taken = emulator.arm.to_string();
    for flag in ["--listen", "--tls-listen", "--control-listen"] {
        let (code, stderr) = refused(&[flag, &taken]).await;
        assert_eq!(code, Some(1), "{flag}: {stderr}");
        assert_contains!(stderr, format!("cannot listen on {taken}: Address already in use"));
    }
    emulator.stop().await;
    let (code, stderr) = refused(&["--listen", &taken, "--tls-listen", &taken]).await;
    assert_eq!(code, Some(1), "one address for two: {stderr}");
}

#[tokio::test]
async fn an_invalid_seed_ends_with_exit_code_2() {
    let seed = headgate_test_kubernetes::scratch("seed").join("seed.yaml");
    let file = seed.to_str().unwrap();
    let lb = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers/lb";
    for (text, wanted) in [
        (None, "No such file".to_owned()),
        (Some("[".to_owned()), "is not a seed".to_owned()),
        (
            Some("resources: [{location: x}]".to_owned()),
            "resource 1 of the seed, (no id), cannot be used: its id must be".to_owned(),
        ),
        (
            Some(format!("resources: [{{id: {lb}}}, {{id: {lb}}}]")),
            "resource 2".to_owned(),
        ),
        (
            Some(format!("resources: [{{id: {lb}/backendAddressPools/p}}]")),
            "in its parent's document".to_owned(),
        ),
        (
            Some(format!(
                "resources: [{{id: {lb}, properties: {{backendAddressPools: [{{properties: {{}}}}]}}}}]"
            )),
            format!("Cannot parse the request. {lb}: one of backendAddressPools has no name."),
        ),
    ] {
        if let Some(text) = &text {
            std::fs::write(&seed, text).unwrap();
        }
        let (code, stderr) = refused(&["--seed", file]).await;
        assert_eq!(code, Some(2), "{text:?}: {stderr}");
        assert!(stderr.contains(&wanted), "{text:?}: {stderr}");
    }
}

#[tokio::test]
async fn a_body_of_more_than_four_mebibytes_is_refused_with_413() {
    const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;
    let emulator = Emulator::start(&[]).await;
    for (length, status, error) in [
        (MAX_BODY_BYTES, 401, "AuthenticationFailed"),
        (MAX_BODY_BYTES + 1, 413, "RequestContentTooLarge"),
    ] {
        let head = "PUT /subscriptions/s HTTP/1.1\r\nHost: arm\r\n";
        let body = vec![b'x'; length];
        let framed = [
            [format!("{head}Content-Length: {length}\r\n\r\n").as_bytes(), &body].concat(),
            [
                format!("{head}Transfer-Encoding: chunked\r\n\r\n{length:x}\r\n").as_bytes(),
                &body,
                b"\r\n0\r\n\r\n",
            ]
            .concat(),
        ];
        for request in framed {
            let answer = exchange(emulator.arm, &request).await.unwrap();
            assert_eq!(
                (answer.status, answer.json()["error"]["code"].as_str()),
                (status, Some(error))
            );
        }
    }
    emulator.stop().await;
}
