//! The ARM emulator, judged by clients that nobody here wrote.

use std::process::Command;
use std::time::{Duration, Instant};

use headgate_test_kubernetes::eventually;

use self::process::Emulator;
use crate::harness::http::{Connection, exchange};

mod clients;
mod cloud_controller_manager;
mod evidence;
pub(crate) mod process;

#[tokio::test]
async fn it_ends_at_once_although_connections_are_kept_open() {
    let emulator = Emulator::start(&[]).await;
    let addresses = emulator.directory.join("addresses.json");
    assert!(addresses.exists());
    let mut kept = Connection::open(emulator.arm).await.unwrap();
    kept.send(b"GET / HTTP/1.1\r\nHost: arm\r\n\r\n").await.unwrap();
    kept.response().await.unwrap();

    let told = Instant::now();
    emulator.stop().await;
    let took = told.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(!addresses.exists(), "it names addresses where nobody is any more");
    assert_eq!(kept.rest().await.unwrap(), b"", "closed");
}

/// What the command says and its exit code, where it has to end by itself.
async fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = tokio::process::Command::from(Command::new(env!("CARGO_BIN_EXE_headgate")));
    command.arg("azure-emulator").args(arguments).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_mins(1), command.output()).await;
    let output = output.expect("it ends by itself").unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn an_address_is_one_listeners() {
    let emulator = Emulator::start(&[]).await;
    let taken = emulator.arm.to_string();
    for flag in ["--listen", "--tls-listen", "--control-listen"] {
        let (code, said) = refused(&[flag, &taken]).await;
        assert_eq!(code, Some(1), "{flag}: {said}");
        assert!(
            said.contains(&format!("cannot listen on {taken}: Address already in use")),
            "{said}"
        );
    }
    emulator.stop().await;
    let (code, said) = refused(&["--listen", &taken, "--tls-listen", &taken]).await;
    assert_eq!(code, Some(1), "one address for two: {said}");
}

#[tokio::test]
async fn a_seed_that_cannot_be_used_is_a_mistake_in_the_settings() {
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
        let (code, said) = refused(&["--seed", file]).await;
        assert_eq!(code, Some(2), "{text:?}: {said}");
        assert!(said.contains(&wanted), "{text:?}: {said}");
    }
}

#[tokio::test]
async fn a_body_of_more_than_four_mebibytes_is_refused_in_arms_words() {
    const MOST: usize = 4 * 1024 * 1024;
    let emulator = Emulator::start(&[]).await;
    for (length, status, error) in [
        (MOST, 401, "AuthenticationFailed"),
        (MOST + 1, 413, "RequestContentTooLarge"),
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

#[tokio::test]
async fn it_ends_at_once_although_a_fault_stalls_an_answer() {
    let emulator = Emulator::start(&[]).await;
    let rule = r#"{"action": {"stall": "10m"}}"#;
    let request = format!(
        "POST /emulator/v1/faults HTTP/1.1\r\nHost: c\r\nContent-Length: {}\r\n\r\n{rule}",
        rule.len()
    );
    let control = emulator.control;
    assert_eq!(exchange(control, request.as_bytes()).await.unwrap().status, 201);
    let mut stalled = Connection::open(emulator.arm).await.unwrap();
    stalled.send(b"GET / HTTP/1.1\r\nHost: arm\r\n\r\n").await.unwrap();
    let journal = "GET /emulator/v1/journal HTTP/1.1\r\nHost: c\r\n\r\n";
    eventually(Duration::from_secs(20), "the request in the journal", async || {
        let journal = exchange(control, journal.as_bytes())
            .await
            .map_err(|error| error.to_string())?;
        let entries = journal.json()["entries"].as_array().map_or(0, Vec::len);
        if entries == 1 {
            Ok(())
        } else {
            Err(format!("{entries} entries"))
        }
    })
    .await;

    let told = Instant::now();
    emulator.stop().await;
    let took = told.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
}
