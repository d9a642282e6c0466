//! Files of clusters, and mistakes in them.

#![allow(clippy::unwrap_in_result, reason = "what a test cannot do without fails the test")]

use headgate_core::settings::Violation;

use super::*;

fn loaded(text: &str) -> Result<AzureJson, Vec<String>> {
    with(text, None, &[])
}

fn with(text: &str, secret: Option<&str>, environment: &[(&str, &str)]) -> Result<AzureJson, Vec<String>> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("azure.json");
    std::fs::write(&file, text).unwrap();
    let found = |name: &str| {
        let pair = environment.iter().find(|(known, _)| *known == name);
        pair.map(|(_, value)| (*value).to_owned())
    };
    let sources = ConfigSources {
        file: Some(&file),
        secret,
        environment: Some(&found),
    };
    let loaded = AzureJson::load(sources);
    let strip = |violation: &Violation| violation.to_string().replace(&file.display().to_string(), "f");
    loaded.map_err(|error| error.0.iter().map(strip).collect())
}

/// The file of an AKS node, shortened.
const AKS: &str = r#"{"cloud": "AzurePublicCloud", "tenantId": "t", "subscriptionId": "s", "aadClientId": "msi", "aadClientSecret": "msi",
  "resourceGroup": "MC_Group_EastUS", "location": "eastus", "vmType": "vmss", "cloudProviderBackoff": true, "cloudProviderRatelimit": true,
  "cloudProviderRateLimitQPS": 10, "cloudProviderRateLimitBucket": 100, "cloudProviderRatelimitQPSWrite": 10, "cloudProviderRatelimitBucketWrite": 100,
  "useManagedIdentityExtension": true, "userAssignedIdentityID": "id", "useInstanceMetadata": true, "loadBalancerSku": "Standard", "unknown": [1]}"#;

#[test]
fn file_of_an_aks_node() {
    let azure = loaded(AKS).unwrap();
    assert_eq!(azure.resource_group.as_deref(), Some("mc_group_eastus"));
    assert_eq!(azure.load_balancers_group(), Some("mc_group_eastus"));
    let identity = ManagedIdentity::ClientId("id".into());
    assert_eq!(azure.credential, Credential::ManagedIdentity(Some(identity)));
    // Whatever the keys' case.
    let (limit, limits) = (RateLimit { qps: 10.0, bucket: 100 }, azure.rate_limits.unwrap());
    assert_eq!((limits.read, limits.write), (limit, limit));
    assert_eq!(azure.backend_pool_type, BackendPoolType::NodeIpConfiguration);
    assert!(azure.exclude_master_from_standard_lb && azure.enable_load_balancer_admin_state);
    assert_eq!(azure.cloud_name.as_deref(), Some("AzurePublicCloud"));
}

#[test]
fn file_below_a_secret_must_only_be_readable() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("azure.json");
    for (text, good) in [
        (AKS, true),
        ("useManagedIdentityExtension: [maybe]", true),
        ("[a]", false),
        ("{", false),
    ] {
        std::fs::write(&file, text).unwrap();
        assert_eq!(AzureJson::check_readable(&file).is_ok(), good, "{text}");
    }
    assert!(AzureJson::check_readable(&directory.path().join("none")).is_err());
}

#[test]
fn yaml_booleans_types_and_empty_files() {
    for empty in ["", "{}", "---\n", "null"] {
        let azure = loaded(empty).unwrap();
        assert_eq!(azure.cloud, AzureCloud::Public, "{empty:?}");
        assert_eq!(azure.credential, Credential::None, "{empty:?}");
        assert_eq!(azure.subscription_id, None, "{empty:?}");
    }
    let text =
        "enableLoadBalancerAdminState: off\nEXCLUDEMASTERFROMSTANDARDLB: no\ntenantId: 7\ncloud: azurechinacloud\n";
    let azure = loaded(text).unwrap();
    assert!(!azure.enable_load_balancer_admin_state && !azure.exclude_master_from_standard_lb);
    assert_eq!(azure.tenant_id.as_deref(), Some("7"));
    assert_eq!(azure.cloud, AzureCloud::China);
    // Go sorts keys that differ in case only; null counts as absent.
    let azure = loaded(r#"{"TENANTID": "a", "tenantId": "b", "tenantid": null, "cloud": "elsewhere"}"#).unwrap();
    assert_eq!(azure.tenant_id.as_deref(), Some("b"));
    assert_eq!(azure.cloud, AzureCloud::Public);
}

#[test]
fn cloud_config_type_selects_file_or_secret() {
    let secret = Some("tenantId: b\nuserAgent: secret\n");
    for (kind, tenant, group, agent) in [
        ("", Some("b"), Some("g"), Some("secret")),
        ("merge", Some("b"), Some("g"), Some("secret")),
        ("secret", Some("b"), None, Some("secret")),
        ("file", Some("a"), Some("g"), None),
    ] {
        let text = format!("tenantId: a\nresourceGroup: G\ncloudConfigType: '{kind}'\n");
        let azure = with(&text, secret, &[]).unwrap();
        assert_eq!(azure.tenant_id.as_deref(), tenant, "{kind:?}");
        assert_eq!(azure.resource_group.as_deref(), group, "{kind:?}");
        assert_eq!(azure.user_agent.as_deref(), agent, "{kind:?}");
    }
    let errors = with("cloudConfigType: both\n", secret, &[]).unwrap_err();
    let expected = "f:1: cloudConfigType: \"both\" is not allowed; allowed: file, secret or merge";
    assert_eq!(errors, [expected]);
}

#[test]
fn every_mistake_is_reported_and_no_secret() {
    let text = "aadClientSecret: [hunter2]\nuseManagedIdentityExtension: maybe\ncloudProviderRateLimit: true\ncloudProviderRateLimitQPS: -1\n\
        loadBalancerBackendPoolConfigurationType: hosts\nmultipleStandardLoadBalancerConfigurations: {a: b}\n";
    let expected = [
        "f:5: loadBalancerBackendPoolConfigurationType: \"hosts\" is not allowed; allowed: nodeIPConfiguration or nodeIP",
        "f:1: aadClientSecret: this value is not allowed; allowed: a string",
        "f:2: useManagedIdentityExtension: \"maybe\" is not allowed; allowed: true or false",
        "f:6: multipleStandardLoadBalancerConfigurations: a section is not allowed; allowed: a list of sections",
        "f:4: cloudProviderRateLimitQPS: the number -1 is not allowed; allowed: a number from 0",
    ];
    assert_eq!(loaded(text).unwrap_err(), expected);
    for text in [
        "[hunter2]",
        "hunter2",
        "aadClientSecret: 'hunter2",
        "aadClientSecret: hunter2\n  x: y",
    ] {
        let errors = loaded(text).unwrap_err().join("\n");
        let shows_secret = errors.contains("aadClientSecret") && errors.contains("hunter2");
        assert!(!shows_secret, "{errors}");
    }
    let sources = ConfigSources {
        file: Some(Path::new("/nonexistent/azure.json")),
        ..ConfigSources::default()
    };
    let missing = AzureJson::load(sources).unwrap_err();
    assert!(missing.to_string().contains("cannot be read"), "{missing}");
    let secret = loaded("aadClientId: c\naadClientSecret: hunter2\n").unwrap();
    assert!(!format!("{secret:?}").contains("hunter2"));
}

#[test]
fn mistakes_in_sections_and_other_sources_have_their_line() {
    let text = "{\n  \"loadBalancerRateLimit\": {\n    \"unknown\": [1,\n      2], \"CloudProviderRateLimit\": \"maybe\"\n  },\n  \"vnetName\": {},\n\
        \"multipleStandardLoadBalancerConfigurations\": [\n    {\"name\": \"a\", \"primaryVMSet\": \"x\"},\n    {\"primaryVMSet\": \"y\",\n     \"name\": []}]}";
    let secret = "# a comment\nresourceGroup: []\n";
    let expected = [
        "the Secret's cloud-config:2: resourceGroup: a list is not allowed; allowed: a string",
        "f:10: multipleStandardLoadBalancerConfigurations[1].name: a list is not allowed; allowed: a string",
        "f:7: multipleStandardLoadBalancerConfigurations: multiple standard load balancers cannot be used with backend pool type \
         nodeIPConfiguration",
        "f:6: vnetName: a section is not allowed; allowed: a string",
        "f:4: loadBalancerRateLimit.cloudProviderRateLimit: \"maybe\" is not allowed; allowed: true or false",
    ];
    assert_eq!(with(text, Some(secret), &[]).unwrap_err(), expected);
    let sources = ConfigSources {
        secret: Some(secret),
        environment: Some(&|name: &str| (name == "AZURE_TENANT_ID").then(|| "t".to_owned())),
        ..ConfigSources::default()
    };
    for (key, place) in [
        ("RESOURCEGROUP", Some(("the Secret's cloud-config", Some(2)))),
        ("tenantId", Some(("AZURE_TENANT_ID", None))),
        ("vnetName", None),
    ] {
        let place = place.map(|(origin, line)| (origin.to_owned(), line));
        assert_eq!(AzureJson::place_of(sources, key), place, "{key}");
    }
}

#[test]
fn credentials_in_upstreams_order() {
    let workload = "useFederatedWorkloadIdentityExtension: true\naadClientId: c\n";
    let no_file = "f:1: aadFederatedTokenFile: workload identity needs it; allowed: the path of a projected service account token";
    assert_eq!(loaded(workload).unwrap_err(), [no_file]);
    let (client_id, token_file) = ("c".to_owned(), "/token".to_owned());
    let expected = Credential::WorkloadIdentity { client_id, token_file };
    let all = "useManagedIdentityExtension: true\naadClientSecret: s\n";
    let environment = [
        ("AZURE_FEDERATED_TOKEN_FILE", "/token"),
        ("AZURE_CLIENT_ID", "c"),
        ("AZURE_TENANT_ID", "t"),
    ];
    let azure = with(&format!("{workload}{all}"), None, &environment).unwrap();
    assert_eq!((azure.credential, azure.tenant_id.as_deref()), (expected, Some("t")));
    let resource = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/i";
    let azure = loaded(&format!("{all}userAssignedIdentityID: {resource}\n")).unwrap();
    let identity = ManagedIdentity::ResourceId(resource.into());
    assert_eq!(azure.credential, Credential::ManagedIdentity(Some(identity)));
    let azure = with("aadClientId: c\n", None, &[("AZURE_CLIENT_SECRET", "from-outside")]).unwrap();
    let (client_id, secret) = ("c".to_owned(), Secret("from-outside".into()));
    assert_eq!(azure.credential, Credential::ClientSecret { client_id, secret });
    let certificate = "aadClientId: c\naadClientCertPath: /cert.pfx\n";
    let errors = loaded(certificate).unwrap_err().join("\n");
    let expected = "client certificates are not supported; allowed: useFederated";
    assert!(errors.contains(expected), "{errors}");
    let not_needed = loaded(&format!("{certificate}useManagedIdentityExtension: true\n"));
    assert!(not_needed.is_ok());
}

#[test]
fn a_secret_wins_over_the_file_and_keeps_its_case() {
    let secret = "resourceGroup: Secret\nloadBalancerName: lb\n";
    let azure = with("resourceGroup: FILE\ntenantId: file\n", Some(secret), &[]).unwrap();
    assert_eq!(azure.resource_group.as_deref(), Some("Secret"));
    assert_eq!(azure.tenant_id.as_deref(), Some("file"));
    assert_eq!(azure.load_balancer_name.as_deref(), Some("lb"));
}

#[test]
fn multiple_standard_load_balancers() {
    let text = "loadBalancerBackendPoolConfigurationType: NodeIP\nmultipleStandardLoadBalancerConfigurations:\n- {name: a, primaryVMSet: x}\n- {name: b, primaryVMSet: y}\n";
    assert_eq!(loaded(text).unwrap().load_balancers, ["a", "b"]);
    let text = "multipleStandardLoadBalancerConfigurations:\n- {name: a, primaryVMSet: x}\n- {name: A, primaryVMSet: X}\n- {name: c}\n";
    let key = "f:1: multipleStandardLoadBalancerConfigurations: ";
    let expected = [
        "duplicated multiple standard load balancer configuration name A",
        "duplicated primary VMSet X in multiple standard load balancer configurations A",
        "multiple standard load balancer configuration c must have primary VMSet",
        "multiple standard load balancers cannot be used with backend pool type nodeIPConfiguration",
    ];
    let expected = expected.map(|message| format!("{key}{message}"));
    assert_eq!(loaded(text).unwrap_err(), expected);
}

#[test]
fn network_subscription_and_own_rate_limits() {
    let text = "subscriptionId: nodes\nnetworkResourceSubscriptionID: net\nnetworkResourceTenantID: t2\ntenantId: t1\nloadBalancerResourceGroup: LBs\n\
        resourceGroup: RG\ncloudProviderRateLimit: false\nloadBalancerRateLimit: {cloudProviderRateLimit: true, cloudProviderRateLimitQPSWrite: 0.5}\n\
        cloudProviderRateLimitBucket: 7\n";
    let azure = loaded(text).unwrap();
    assert_eq!(azure.load_balancers_group(), Some("LBs"));
    assert_eq!(azure.subscription_id.as_deref(), Some("net"));
    assert_eq!(azure.compute_subscription_id.as_deref(), Some("nodes"));
    assert_eq!(azure.tenant_id.as_deref(), Some("t2"));
    let limits = azure.rate_limits.unwrap();
    assert_eq!(limits.read, RateLimit { qps: 1.0, bucket: 7 });
    assert_eq!(limits.write, RateLimit { qps: 0.5, bucket: 5 });
}

#[test]
fn pools_of_pods_and_basic_load_balancers_are_refused() {
    let pool_type = "loadBalancerBackendPoolConfigurationType";
    for (key, value, allowed) in [
        (pool_type, "PodIP", "nodeIPConfiguration or nodeIP"),
        ("loadBalancerSku", "Basic", "standard"),
    ] {
        let violation = format!("f:1: {key}: \"{value}\" is not allowed; allowed: {allowed}");
        assert_eq!(loaded(&format!("{key}: {value}")).unwrap_err(), [violation]);
    }
    for text in ["{}", "loadBalancerSku: ''", "loadBalancerSku: Standard"] {
        assert!(loaded(text).is_ok(), "{text}");
    }
}
