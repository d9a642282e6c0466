//! References between the children of a load balancer: what they may name, what a GET derives from them, and what a deletion
//! leaves of them.

use serde_json::{Value, json};

use super::{Client, lb_path, lb1, lb1_pool, load_balancer, pool_path};

/// Kinds of children that refer to others.
const REFERRING: [&str; 3] = ["loadBalancingRules", "outboundRules", "inboundNatRules"];

fn reference(kind: &str, name: &str) -> Value {
    json!({"id": format!("{}/{kind}/{name}", lb1())})
}

/// A load balancer whose pools `a` and `b` have a rule for both, `a` one alone, and `b` an outbound rule.
fn client() -> Client {
    let mut document = load_balancer("lb1", &[("a", &["n1"]), ("b", &["n1"])]);
    let frontend = reference("frontendIPConfigurations", "frontend");
    let [a, b] = ["a", "b"].map(|name| reference("backendAddressPools", name));
    // A GET of Azure shows the pool of a rule in both fields.
    document["properties"]["loadBalancingRules"][0]["properties"]["backendAddressPools"] = json!([a]);
    let both =
        json!({"name": "both", "properties": {"frontendIPConfiguration": frontend, "backendAddressPools": [a, b]}});
    let rules = document["properties"]["loadBalancingRules"].as_array_mut().unwrap();
    rules.push(both);
    document["properties"]["outboundRules"] = json!([{"name": "out", "properties": {"protocol": "All",
        "frontendIPConfigurations": [frontend], "backendAddressPool": b}}]);
    document["properties"]["inboundNatRules"] =
        json!([{"name": "ssh", "properties": {"frontendIPConfiguration": frontend, "frontendPort": 22}}]);
    Client::new(&[document])
}

/// For each frontend, pool and probe of the load balancer, what it shows of the children that refer to it.
async fn shown(client: &Client) -> Value {
    let whole = client.read(&lb1()).await;
    let name = |id: &Value| {
        let id = id["id"].as_str().unwrap().to_owned();
        id.trim_start_matches(&format!("{}/", lb1())).to_owned()
    };
    let referring = |child: &Value| -> Vec<String> {
        let lists = REFERRING.iter().filter_map(|kind| child["properties"][kind].as_array());
        let one = child["properties"].get("outboundRule");
        let one = one.map(|rule| format!("alone: {}", name(rule)));
        lists.flatten().map(name).chain(one).collect()
    };
    ["frontendIPConfigurations", "backendAddressPools", "probes"]
        .iter()
        .flat_map(|kind| whole["properties"][kind].as_array().unwrap())
        .map(|child| (child["name"].as_str().unwrap().to_owned(), json!(referring(child))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[tokio::test(start_paused = true)]
async fn each_child_shows_once_who_refers_to_it_and_none_of_that_is_stored() {
    let client = client();
    let [http, both, out] = [
        "loadBalancingRules/http",
        "loadBalancingRules/both",
        "outboundRules/out",
    ];
    assert_eq!(
        shown(&client).await,
        json!({
            "frontend": [http, both, out, "inboundNatRules/ssh"],
            "a": [http, both],
            "b": [both, out, format!("alone: {out}")],
            "healthz": [http],
        })
    );
    let mut sent = client.read(&lb1()).await;
    for kind in ["loadBalancingRules", "outboundRules"] {
        sent["properties"][kind] = json!([]);
    }
    sent["properties"]["inboundNatRules"][0]["properties"]["backendIPConfiguration"] = json!({"id": "x"});
    let written = client.put(&lb1(), &sent).await;
    assert_eq!(written.status, 200, "{}", written.body);
    assert_eq!(
        shown(&client).await,
        json!({"frontend": ["inboundNatRules/ssh"], "a": [], "b": [], "healthz": []})
    );
    let rule = &written.body["properties"]["inboundNatRules"][0]["properties"];
    assert_eq!(rule.get("backendIPConfiguration"), None, "its interface states that");
}

#[tokio::test(start_paused = true)]
async fn references_are_to_children_of_the_right_kind_in_the_same_load_balancer() {
    let client = client();
    for (id, status) in [
        (lb1_pool("A"), 200),
        (pool_path("other", "a"), 400),
        (format!("{}/probes/a", lb1()), 400),
        (format!("{}/x/y/backendAddressPools/a", lb1()), 400),
        (lb1_pool("c"), 400),
        (lb_path("a"), 400),
    ] {
        let sent = json!({"properties": {"backendAddressPools": [{"name": "a"}],
            "loadBalancingRules": [{"name": "http", "properties": {"backendAddressPool": {"id": id}}}]}});
        let answer = client.put(&lb1(), &sent).await;
        assert_eq!(answer.status, status, "{id}: {}", answer.body);
    }
}

#[tokio::test(start_paused = true)]
async fn a_child_in_use_stays_and_a_pool_that_goes_leaves_its_rules() {
    let client = client();
    for child in [
        "probes/healthz",
        "frontendIPConfigurations/frontend",
        "backendAddressPools/b",
    ] {
        let refused = client.delete(&format!("{}/{child}", lb1())).await;
        assert_eq!(
            (refused.status, refused.code()),
            (400, "InUseResourceCannotBeDeleted"),
            "{child}"
        );
    }
    let deleted = client.delete(&lb1_pool("a")).await;
    let during = client.read(&lb1()).await;
    let states = ["/backendAddressPools/0", "/backendAddressPools/1", "/probes/0"];
    let states = states.map(|child| {
        let state = during.pointer(&format!("/properties{child}/properties/provisioningState"));
        state.unwrap().clone()
    });
    assert_eq!(states, ["Deleting", "Updating", "Updating"]);
    client.wait_for_operation(&deleted).await;
    let rules = client.read(&lb1()).await["properties"]["loadBalancingRules"].clone();
    let pools = |rule: usize| {
        let properties = &rules[rule]["properties"];
        (
            properties.get("backendAddressPool").cloned(),
            properties["backendAddressPools"].clone(),
        )
    };
    assert_eq!(pools(0), (None, json!([])));
    assert_eq!(pools(1), (None, json!([reference("backendAddressPools", "b")])));
}
