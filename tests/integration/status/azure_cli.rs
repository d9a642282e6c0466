//! A person's `az` gives the token where `azure.json` has no credential.

use std::process::Command;

use headgate_test_kubernetes::{assert_contains, scratch, write_program};
use serde_json::{Value, json};

use super::world::World;

#[tokio::test]
async fn az_gives_the_token_where_azure_json_has_no_credential() {
    let world = World::start().await;
    let directory = scratch("azure-cli");
    let file = directory.join("azure.json");
    let mut configuration: Value = serde_json::from_slice(&std::fs::read(&world.azure_json).unwrap()).unwrap();
    let configuration_fields = configuration.as_object_mut().unwrap();
    assert!(configuration_fields.remove("aadClientSecret").is_some());
    std::fs::write(&file, configuration.to_string()).unwrap();

    let az = directory.join("az");
    let program = |answer: &str| {
        let text = format!("#!/bin/sh\necho \"$*\" >>{}/log\n{answer}\n", directory.display());
        write_program(&az, text);
    };
    let status = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        command.args(["status", "--all", "--no-agents", "--kubeconfig"]);
        command
            .arg(world.control_plane.kubeconfig())
            .arg("--azure-config-file")
            .arg(&file);
        command.env("PATH", format!("{}:/usr/bin:/bin", directory.display()));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    };

    program("echo 'ERROR: Please run az login to setup account.' >&2; exit 1");
    let shown = status();
    assert_contains!(shown, "az account get-access-token: ERROR: Please run az login");

    let answer = json!({"accessToken": world.token().await, "expires_on": 4_000_000_000_i64, "tokenType": "Bearer"});
    program(&format!("echo '{answer}'"));
    let shown = status();
    assert!(shown.contains("kubernetes-IPv6"), "{shown}");
    let log = std::fs::read_to_string(directory.join("log")).unwrap();
    let last = log.lines().last().unwrap();
    assert!(
        last.starts_with("account get-access-token --output json --resource http"),
        "{last}"
    );
    assert!(last.ends_with(" --tenant tenant"), "{last}");
}
