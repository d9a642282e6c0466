//! What a shell runs, whatever the inputs and Azure's answers.

use std::fmt::Write as _;

use headgate_test_kubernetes::write_program;
use serde_json::{Value, json};

use super::*;

const POOL_TYPE: &str = "networkProfile.loadBalancerProfile.backendPoolType";

fn arguments() -> Arguments {
    Arguments {
        resource_group: "my-group".to_owned(),
        name: "my-cluster".to_owned(),
        subscription: None,
        identity: "headgate".to_owned(),
        namespace: "kube-system".to_owned(),
        image: Some("registry.example.com/headgate".to_owned()),
        values: "values.yaml".into(),
        run: false,
    }
}

/// Azure's answers, by the query.
fn answers(changed: &[(&str, &str)]) -> Vec<(String, String)> {
    let usual = [
        ("tenantId", "t-1"),
        ("nodeResourceGroup", "MC_group (x)_region"),
        ("nodeResourceGroupProfile.restrictionLevel", "Unrestricted"),
        (POOL_TYPE, "nodeIP"),
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

/// What a shell runs, with an `az` that logs its arguments.
fn ran(arguments: &Arguments, answers: &[(String, String)]) -> (Vec<Vec<String>>, Result<String, String>) {
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
    write_program(&az, program);
    std::fs::write(directory.path().join("script"), script(arguments)).unwrap();
    let mut sh = Command::new("sh");
    sh.arg("script").current_dir(directory.path());
    sh.env("PATH", format!("{}:/usr/bin:/bin", directory.path().display()));
    let output = sh.output().unwrap();
    let commands = std::fs::read_to_string(log).unwrap();
    let commands = commands.split_terminator("\0\n");
    let commands = commands.map(|line| line.split('\0').map(ToOwned::to_owned).collect());
    let values = if output.status.success() {
        Ok(std::fs::read_to_string(directory.path().join(&arguments.values)).unwrap())
    } else {
        Err(String::from_utf8(output.stderr).unwrap().trim_end().to_owned())
    };
    (commands.collect(), values)
}

/// The value of a flag.
fn value_of<'a>(command: &'a [String], flag: &str) -> &'a str {
    &command[command.iter().position(|word| word == flag).unwrap() + 1]
}

#[test]
fn nothing_of_the_user_is_read_as_shell() {
    let (group, cluster, subscription) = ("a 'b' $(id) `id`", "c\"; exit 3 #", "My \\ subscription*");
    let (identity, image) = ("é\nf", "x$HOME/`id`\\\"}y");
    let odd = Arguments {
        resource_group: group.to_owned(),
        name: cluster.to_owned(),
        subscription: Some(subscription.to_owned()),
        identity: identity.to_owned(),
        namespace: "other".to_owned(),
        image: Some(image.to_owned()),
        values: "my $values.yaml".into(),
        run: false,
    };
    let (commands, values) = ran(&odd, &answers(&[]));
    let values: Value = serde_yaml::from_str(&values.unwrap()).unwrap();
    assert_eq!(values["image"]["repository"], image);
    for command in &commands {
        match [command[0].as_str(), command[1].as_str()] {
            ["account", _] => assert_eq!(value_of(command, "--subscription"), subscription),
            ["aks", _] => assert_eq!(value_of(command, "--name"), cluster),
            ["identity", "federated-credential"] => {
                assert_eq!(value_of(command, "--identity-name"), identity);
                assert_eq!(value_of(command, "--name"), format!("headgate-{cluster}"));
                let subject = "system:serviceaccount:other:headgate-controller";
                assert_eq!(value_of(command, "--subject"), subject);
            }
            ["identity", _] => assert_eq!(value_of(command, "--name"), identity),
            _ => continue,
        }
        if command[0] != "account" {
            let expected = [group, "an-id"];
            assert_eq!(
                ["--resource-group", "--subscription"].map(|flag| value_of(command, flag)),
                expected
            );
        }
    }
    assert_eq!(commands.len(), 13, "{commands:?}");
}

#[test]
fn a_new_cluster_gets_an_issuer_an_identity_and_the_role_where_its_pools_are() {
    let changed = [("oidcIssuerProfile.issuerUrl", ""), ("[0].id", "")];
    let (commands, values) = ran(&arguments(), &answers(&changed));
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
fn only_what_is_missing_is_made_and_only_pools_of_addresses_need_the_network() {
    for (changed, expected) in [
        (&[][..], [0, 0, 2]),
        (&[("oidcIssuerProfile.issuerUrl", "")], [1, 0, 2]),
        (&[("[0].id", "")], [0, 1, 2]),
        (&[("agentPoolProfiles[0].vnetSubnetId", "")], [0, 0, 1]),
        (&[(POOL_TYPE, "nodeIPConfiguration")], [0, 0, 1]),
    ] {
        let (commands, values) = ran(&arguments(), &answers(changed));
        assert!(values.is_ok(), "{changed:?} {values:?}");
        let commands: Vec<String> = commands.iter().map(|words| words.join(" ")).collect();
        let made = ["aks update", "role definition create", "role assignment create"]
            .map(|start| commands.iter().filter(|command| command.starts_with(start)).count());
        assert_eq!(made, expected, "{changed:?}");
    }
}

/// The names of custom roles are unique in a tenant, and a list shows those of its scope only.
#[test]
fn each_subscription_of_a_tenant_gets_the_role_of_the_manifests_as_its_own() {
    for subscription in ["s-1", "s-2"] {
        let changed = [("id", subscription), ("[0].id", "")];
        let (commands, _) = ran(&arguments(), &answers(&changed));
        let role = |verb| {
            commands
                .iter()
                .find(|words| words[..3] == ["role", "definition", verb])
                .unwrap()
        };
        let (list, create) = (role("list"), role("create"));
        let role: Value = serde_json::from_str(value_of(create, "--role-definition")).unwrap();
        let expected = ROLE.replace(ROLE_SUBSCRIPTION, subscription);
        assert_eq!(role, serde_json::from_str::<Value>(&expected).unwrap());
        assert_eq!(role["Name"], value_of(list, "--name"));
        assert_eq!(role["AssignableScopes"], json!([value_of(list, "--scope")]));
        assert_eq!(value_of(list, "--scope"), format!("/subscriptions/{subscription}"));
    }
}

#[test]
fn a_cluster_without_admin_states_is_refused_before_anything_is_changed() {
    for (query, value) in [
        ("nodeResourceGroupProfile.restrictionLevel", "ReadOnly"),
        (POOL_TYPE, "podIP"),
    ] {
        let (commands, values) = ran(&arguments(), &answers(&[(query, value)]));
        assert!(values.unwrap_err().contains("profile healthz"), "{value}");
        assert!(commands.iter().all(|words| words[1] == "show"), "{commands:?}");
    }
}
