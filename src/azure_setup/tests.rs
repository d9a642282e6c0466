//! The script that a shell runs and the steps that headgate runs are the same commands, whatever the inputs and Azure's answers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::{Value, json};

use super::*;

fn inputs() -> Inputs {
    Inputs {
        group: "my-group".to_owned(),
        cluster: "my-cluster".to_owned(),
        subscription: None,
        identity: "headgate".to_owned(),
        namespace: "kube-system".to_owned(),
        image: Some("registry.example.com/headgate".to_owned()),
        values: "values.yaml".into(),
    }
}

/// Azure's answers, by the query.
fn answers(changed: &[(&str, &str)]) -> Vec<(String, String)> {
    let usual = [
        ("tenantId", "t-1"),
        ("nodeResourceGroup", "MC_group (x)_region"),
        ("nodeResourceGroupProfile.restrictionLevel", "Unrestricted"),
        ("networkProfile.loadBalancerProfile.backendPoolType", "nodeIP"),
        ("agentPoolProfiles[0].vnetSubnetId", "/vnets/v/subnets/s"),
        ("oidcIssuerProfile.issuerUrl", "https://issuer.example.com/"),
        ("principalId", "p-1"),
        ("clientId", "c-1"),
        ("[0].id", "/roles/r"),
        ("id", "an-id"),
    ];
    let answer = |(query, answer): (&str, &str)| {
        let other = changed.iter().find(|(name, _)| *name == query);
        (query.to_owned(), other.map_or(answer, |(_, other)| other).to_owned())
    };
    usual.map(answer).into()
}

/// The query of a command and what answers it.
fn answer(answers: &[(String, String)], arguments: &[String]) -> String {
    let query = arguments
        .iter()
        .position(|word| word == "--query")
        .map(|at| &arguments[at + 1]);
    let found = answers.iter().find(|(name, _)| Some(name) == query);
    let is_update = arguments.iter().any(|word| word == "update");
    match found {
        Some(_) if is_update => "https://new.example.com/\n".to_owned(),
        Some((_, text)) if text.is_empty() => String::new(),
        Some((_, text)) => format!("{text}\n"),
        None => String::new(),
    }
}

/// What headgate runs, and the values or why it stopped.
fn ran(plan: &Plan, answers: &[(String, String)]) -> (Vec<Vec<String>>, Result<String, String>) {
    let mut commands = Vec::new();
    let values = run(plan, |arguments| {
        commands.push(arguments.to_vec());
        Ok(answer(answers, arguments))
    });
    (commands, values.map_err(|error| error.to_string()))
}

/// What a shell runs, with an `az` that logs its arguments.
fn ran_by_sh(plan: &Plan, answers: &[(String, String)]) -> (Vec<Vec<String>>, Result<String, String>) {
    let directory = tempfile::tempdir().unwrap();
    let (az, log) = (directory.path().join("az"), directory.path().join("log"));
    let mut cases = String::from("*' update '*) echo https://new.example.com/;;\n");
    for (query, text) in answers {
        let print = if text.is_empty() {
            ":".to_owned()
        } else {
            format!("echo '{text}'")
        };
        writeln!(cases, "*' --query {query} '*) {print};;").unwrap();
    }
    let program = format!(
        "#!/bin/sh\nfor word; do printf '%s\\0' \"$word\" >>log; done; printf '\\n' >>log\ncase \" $* \" in\n{cases}esac\n"
    );
    std::fs::write(&az, program).unwrap();
    std::fs::set_permissions(&az, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(directory.path().join("script"), script(plan)).unwrap();
    let mut sh = Command::new("sh");
    sh.arg("script").current_dir(directory.path());
    sh.env("PATH", format!("{}:/usr/bin:/bin", directory.path().display()));
    let output = sh.output().unwrap();
    let commands = std::fs::read_to_string(log).unwrap();
    let commands = commands.split_terminator("\0\n");
    let commands = commands.map(|line| line.split('\0').map(ToOwned::to_owned).collect());
    let values = if output.status.success() {
        Ok(std::fs::read_to_string(directory.path().join(&plan.values_file)).unwrap())
    } else {
        Err(String::from_utf8(output.stderr).unwrap().trim_end().to_owned())
    };
    (commands.collect(), values)
}

#[test]
fn the_script_and_the_steps_are_the_same_commands() {
    let odd = Inputs {
        group: "a 'b' $(id) `id`".to_owned(),
        cluster: "c\"; exit 3 #".to_owned(),
        subscription: Some("My \\ subscription*".to_owned()),
        identity: "é\nf".to_owned(),
        namespace: "other".to_owned(),
        image: Some("x$HOME/`id`\\\"y".to_owned()),
        values: "my values.yaml".into(),
    };
    for inputs in [inputs(), odd] {
        let plan = plan(&inputs);
        for changed in [
            &[][..],
            &[("oidcIssuerProfile.issuerUrl", "")],
            &[("[0].id", ""), ("agentPoolProfiles[0].vnetSubnetId", "")],
            &[(
                "networkProfile.loadBalancerProfile.backendPoolType",
                "nodeIPConfiguration",
            )],
            &[("nodeResourceGroupProfile.restrictionLevel", "ReadOnly")],
            &[("networkProfile.loadBalancerProfile.backendPoolType", "podIP")],
        ] {
            let answers = answers(changed);
            assert_eq!(ran(&plan, &answers), ran_by_sh(&plan, &answers), "{changed:?}");
        }
    }
}

#[test]
fn a_new_cluster_gets_an_issuer_an_identity_and_the_role_where_its_pools_are() {
    let changed = [("oidcIssuerProfile.issuerUrl", ""), ("[0].id", "")];
    let (commands, values) = ran(&plan(&inputs()), &answers(&changed));
    let commands: Vec<String> = commands.iter().map(|words| words.join(" ")).collect();
    let position = |start: &str| {
        let found = commands.iter().position(|command| command.starts_with(start));
        found.unwrap_or_else(|| panic!("{start}: {commands:#?}"))
    };
    let in_order = [
        "aks update --enable-oidc-issuer --resource-group my-group --name my-cluster --subscription an-id",
        "identity create --resource-group my-group --name headgate",
        "identity federated-credential create --resource-group my-group --identity-name headgate --subscription an-id --name headgate-my-cluster \
         --audiences api://AzureADTokenExchange --subject system:serviceaccount:kube-system:headgate-controller \
         --issuer https://new.example.com/",
        "role definition create",
        "role assignment create --assignee-principal-type ServicePrincipal --assignee-object-id p-1 --role an-id \
         --scope /subscriptions/an-id/resourceGroups/MC_group (x)_region",
    ]
    .map(position);
    assert!(in_order.is_sorted(), "{commands:#?}");
    let assignments = commands.iter().filter(|command| command.starts_with("role assignment"));
    assert!(
        assignments.clone().nth(1).unwrap().contains(" --scope /vnets/v "),
        "{commands:#?}"
    );
    assert_eq!(assignments.count(), 2);

    let values: Value = serde_yaml::from_str(&values.unwrap()).unwrap();
    assert_eq!(
        values,
        json!({"profile": "aks", "image": {"repository": "registry.example.com/headgate"}, "azure": {"tenantId": "t-1",
            "subscriptionId": "an-id", "resourceGroup": "MC_group (x)_region", "clientId": "c-1",
            "config": {"loadBalancerBackendPoolConfigurationType": "nodeIP"}}})
    );
}

#[test]
fn what_is_there_is_left_alone() {
    let (commands, _) = ran(&plan(&inputs()), &answers(&[]));
    for kept in ["aks update", "role definition create"] {
        assert!(
            !commands.iter().any(|words| words.join(" ").starts_with(kept)),
            "{kept}"
        );
    }
}

/// The names of custom roles are unique in a tenant, and a list shows those of its scope only.
#[test]
fn each_subscription_of_a_tenant_gets_a_role_of_its_own() {
    let mut roles = BTreeMap::<String, String>::new();
    let mut created = Vec::new();
    for subscription in ["s-1", "s-2", "s-1"] {
        let answers = answers(&[("id", subscription)]);
        let values = run(&plan(&inputs()), |arguments| {
            let value_of = |flag: &str| &arguments[arguments.iter().position(|word| word == flag).unwrap() + 1];
            match arguments.iter().map(String::as_str).take(3).collect::<Vec<_>>()[..] {
                ["role", "definition", "list"] => {
                    let is_shown = roles.get(value_of("--name")) == Some(value_of("--scope"));
                    Ok(if is_shown { "/roles/r\n" } else { "" }.to_owned())
                }
                ["role", "definition", "create"] => {
                    let role: Value = serde_json::from_str(value_of("--role-definition")).unwrap();
                    let text = |value: &Value| value.as_str().unwrap().to_owned();
                    let (name, scope) = (text(&role["Name"]), text(&role["AssignableScopes"][0]));
                    created.push(subscription);
                    match roles.insert(name, scope) {
                        None => Ok("/roles/r\n".to_owned()),
                        Some(_) => anyhow::bail!("RoleDefinitionWithSameNameExists"),
                    }
                }
                _ => Ok(answer(&answers, arguments)),
            }
        });
        values.unwrap();
    }
    assert_eq!(created, ["s-1", "s-2"]);
}

#[test]
fn a_cluster_without_admin_states_is_refused_before_anything_is_changed() {
    for (query, value) in [
        ("nodeResourceGroupProfile.restrictionLevel", "ReadOnly"),
        ("networkProfile.loadBalancerProfile.backendPoolType", "podIP"),
    ] {
        let (commands, values) = ran(&plan(&inputs()), &answers(&[(query, value)]));
        assert!(values.unwrap_err().contains("profile healthz"), "{value}");
        assert!(commands.iter().all(|words| words[1] == "show"), "{commands:?}");
    }
}

#[test]
fn the_role_is_that_of_the_manifests() {
    let Word(parts) = definition();
    let parts = parts.iter().map(|part| match part {
        Part::Text(text) => text.as_str(),
        Part::Variable(SUBSCRIPTION) => ROLE_SUBSCRIPTION,
        _ => panic!("{part:?}"),
    });
    let role: Value = serde_json::from_str(&parts.collect::<String>()).unwrap();
    assert_eq!(role, serde_json::from_str::<Value>(ROLE).unwrap());
    assert_eq!(role["Name"], format!("{ROLE_NAME_PREFIX}{ROLE_SUBSCRIPTION}"));
    assert_eq!(
        role["AssignableScopes"],
        json!([format!("/subscriptions/{ROLE_SUBSCRIPTION}")])
    );
}
