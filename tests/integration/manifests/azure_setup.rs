//! `headgate azure-setup`: real az accepts its commands and those of the pages, and the chart takes the values that it writes.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use headgate_test_kubernetes::scratch;
use serde_json::{Value, json};

use super::rendering::{merged, profile, rendered};
use super::{only, repository, text};

/// An `az` for a shell: it logs its arguments to the file `log`, and answers for a cluster that needs every step.
pub(super) const AZ: &str = r#"
az() {
  printf '%s\0' "$@" >>log
  printf '\n' >>log
  case "$*" in
    'aks show'*issuerUrl* | 'role definition list'*) ;;
    *restrictionLevel*) echo Unrestricted ;;
    *backendPoolType*) echo nodeIP ;;
    *vnetSubnetId*) echo /subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/v/subnets/s ;;
    *issuerUrl*) echo https://issuer.example.com/ ;;
    *tenantId*) echo 00000000-0000-0000-0000-000000000001 ;;
    'account show'*) echo 00000000-0000-0000-0000-000000000002 ;;
    *clientId*) echo 00000000-0000-0000-0000-000000000003 ;;
    *nodeResourceGroup*) echo MC_group_cluster_region ;;
    *) echo answer ;;
  esac
}
"#;

/// With this before a script bash runs no program; `cat` stands for the one of the script.
const NOTHING_IS_RUN: &str = r#"
PATH=/nonexistent
command_not_found_handle() { :; }
cat() { while IFS= read -r line; do printf '%s\n' "$line"; done; }
"#;

/// The arguments of each `az` that a script runs in a directory.
fn az_commands(script: &str, directory: &Path) -> Vec<Vec<String>> {
    std::fs::write(directory.join("script"), format!("{NOTHING_IS_RUN}{AZ}{script}")).unwrap();
    let output = Command::new("bash")
        .arg("script")
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}\n{script}");
    let log = std::fs::read_to_string(directory.join("log")).unwrap_or_default();
    let commands = log.split_terminator("\0\n");
    commands
        .map(|line| line.split('\0').map(ToOwned::to_owned).collect())
        .collect()
}

/// What `headgate azure-setup` prints.
fn printed_script() -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
    command.args([
        "azure-setup",
        "-g",
        "group",
        "-n",
        "cluster",
        "--image",
        "registry.example.com/headgate",
    ]);
    super::stdout_of(&mut command)
}

/// The interpreter that has az.
fn interpreter() -> &'static Path {
    static INTERPRETER: OnceLock<PathBuf> = OnceLock::new();
    INTERPRETER.get_or_init(|| {
        let script = repository("tests/azure-clients/build.sh");
        let output = Command::new(&script).arg("cli").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        PathBuf::from(String::from_utf8(output.stdout).unwrap().trim_end())
    })
}

/// What az refuses of these commands.
fn refused(commands: &[Vec<String>]) -> String {
    let mut parse = Command::new(interpreter());
    parse.arg(repository("tests/azure-clients/cli/parse.py"));
    let mut parse = parse.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let input = serde_json::to_vec(commands).unwrap();
    parse.stdin.take().unwrap().write_all(&input).unwrap();
    let output = parse.wait_with_output().unwrap();
    let refused = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.success(), refused.is_empty(), "{refused}");
    refused
}

/// The shell blocks of the pages that name az.
fn blocks(directory: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            blocks(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let page = std::fs::read_to_string(&path).unwrap();
            let shell = page
                .split("```sh\n")
                .skip(1)
                .map(|rest| rest.split("\n```").next().unwrap());
            found.extend(shell.filter(|block| has_az(block)).map(ToOwned::to_owned));
        }
    }
}

fn has_az(text: &str) -> bool {
    text.split(|character: char| !character.is_alphanumeric())
        .any(|word| word == "az")
}

/// The az commands in the texts of a source file, which end at a character that none of them has.
fn in_texts(path: &str) -> Vec<String> {
    let source = text(path);
    let commands = source.split("az ").skip(1).zip(source.split("az "));
    let at_a_boundary = commands.filter(|(_, before)| before.ends_with([' ', '"', '`', '(']));
    let command = |(rest, _): (&str, &str)| format!("az {}", rest.split([')', ';', '"', '`', '\n']).next().unwrap());
    at_a_boundary.map(command).collect()
}

#[test]
fn az_accepts_every_command_of_the_script_the_pages_and_the_messages() {
    let mut commands = az_commands(&printed_script(), &scratch("azure-setup"));
    assert_eq!(commands.len(), 15, "every condition holds: {commands:#?}");
    let mut pages = Vec::new();
    for directory in ["docs", "manifests", "charts", "lab"] {
        blocks(&repository(directory), &mut pages);
    }
    assert!(pages.len() >= 2, "{pages:?}");
    for page in &pages {
        let of_page = az_commands(page, &scratch("page"));
        assert!(!of_page.is_empty(), "{page}");
        commands.extend(of_page);
    }
    for source in ["charts/headgate/templates/validate.yaml", "src/check/azure.rs"] {
        let of_source = in_texts(source);
        assert!(of_source.len() >= 2, "{of_source:?}");
        for command in of_source {
            commands.extend(az_commands(&command.replace(['{', '}'], ""), &scratch("message")));
        }
    }
    assert_eq!(refused(&commands), "");
}

#[test]
fn az_refuses_what_it_does_not_know() {
    for (command, said) in [
        (&["aks", "shw"][..], "misspelled"),
        (&["aks", "show", "--name", "c"], "required: --resource-group"),
        (&["account", "show", "--tenants"], "unrecognized arguments: --tenants"),
        (&["account", "show", "--query", "a["], "invalid jmespath_type value"),
        (
            &[
                "aks",
                "update",
                "-g",
                "g",
                "-n",
                "c",
                "--nrg-lockdown-restriction-level",
                "None",
            ],
            "Allowed values: ReadOnly, Unrestricted",
        ),
    ] {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let text = refused(std::slice::from_ref(&command));
        assert!(text.contains(said), "{command:?}: {text}");
    }
}

#[test]
fn the_chart_takes_the_values_and_runs_as_the_identity_of_the_script() {
    let directory = scratch("azure-setup");
    let commands = az_commands(&printed_script(), &directory);
    let written = std::fs::read_to_string(directory.join("values.yaml")).unwrap();
    let written: Value = serde_yaml::from_str(&written).unwrap();
    let pools = json!({"azure": {"config": {"loadBalancerBackendPoolConfigurationType": "nodeIP"}}});
    assert_eq!(written, merged(profile("aks"), pools));

    let objects = rendered("kube-system", &written, &[]);
    let pod = &only(&objects, "Deployment")["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().unwrap().iter();
    let mut tokens = volumes.filter_map(|volume| volume.pointer("/projected/sources/0/serviceAccountToken/audience"));
    let credential = commands
        .iter()
        .find(|words| words[1] == "federated-credential")
        .unwrap();
    let value_of = |flag: &str| &credential[credential.iter().position(|word| word == flag).unwrap() + 1];
    assert_eq!(value_of("--audiences"), tokens.next().unwrap().as_str().unwrap());
    let account = pod["serviceAccountName"].as_str().unwrap();
    assert_eq!(
        value_of("--subject"),
        &format!("system:serviceaccount:kube-system:{account}")
    );
}
