use bytes::Bytes;
use tokio::sync::mpsc;

use super::*;
use crate::document::{AdminState, Pool, PoolDraft, etag_of};

const GROUP: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/loadBalancers";

type Entry = (Option<String>, Option<std::net::IpAddr>, Option<AdminState>);

fn entry(address: BackendAddress<'_>) -> Entry {
    let name = address.name().map(str::to_owned);
    (name, address.ip_address(), address.admin_state())
}

fn lb() -> LoadBalancerId {
    LoadBalancerId::parse(&format!("{GROUP}/lb")).unwrap()
}

/// A body in memory.
fn body(text: &str) -> BodyReader {
    BodyReader::whole(Bytes::copy_from_slice(text.as_bytes()))
}

/// The same as it arrives.
fn arriving(text: &str) -> BodyReader {
    let (_, queue) = mpsc::channel(1);
    BodyReader::arriving(Bytes::copy_from_slice(text.as_bytes()), queue)
}

/// A load balancer without its pools, and those: as their documents have them.
fn whole(document: &Value) -> Option<(LoadBalancerId, Option<Etag>, Vec<Pool>)> {
    let id = LoadBalancerId::parse(document.get("id")?.as_str()?).ok()?;
    let etag = etag_of(document);
    let pool = |document: &Value| {
        let id = id.pool(document.get("name")?.as_str()?).ok()?;
        let pool = Pool::from_document(id, document.clone(), None).ok()?;
        let etag = pool.etag.clone().or_else(|| etag.clone());
        Some(Pool { etag, ..pool })
    };
    let pools = document.pointer("/properties/backendAddressPools");
    let pools = pools
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(pool)
        .collect();
    Some((id, etag, pools))
}

/// The summary by way of the whole document, as writes read it.
fn expected(document: &Value) -> Option<LoadBalancerSummary<Entry>> {
    let (id, etag, pools) = whole(document)?;
    let value = |name: &str| match document.pointer(&format!("/properties/{name}")) {
        None => Value::Null,
        Some(list) => list.as_array().cloned().unwrap_or_default().into(),
    };
    let pools = pools.into_iter().map(|pool| PoolSummary {
        provisioning_state: pool.provisioning_state(),
        addresses: pool.addresses().map(entry).collect(),
        are_addresses_missing: {
            let list = |name: &str| pool.document.pointer(&format!("/properties/{name}"))?.as_array();
            let configurations = list("backendIPConfigurations").is_some_and(|list| !list.is_empty());
            configurations && list("loadBalancerBackendAddresses").is_none()
        },
        has_own_etag: etag_of(&pool.document).is_some(),
        etag: pool.etag,
        id: pool.id,
    });
    Some(LoadBalancerSummary {
        provisioning_state: ProvisioningState::from_document(document),
        rules: json!({"loadBalancingRules": value("loadBalancingRules"), "probes": value("probes")}),
        pools: pools.collect(),
        etag,
        id,
    })
}

/// Values in the place of each part of a document, from a seed.
fn document(random: &mut fastrand::Rng, number: usize) -> Value {
    fn odd(random: &mut fastrand::Rng, usual: Value) -> Value {
        let others = json!([null, 7, -1.5, true, "text", [], {}, [1, {}], {"a": [null]}]);
        if random.u8(..20) == 0 {
            others[random.usize(..9)].clone()
        } else {
            usual
        }
    }
    let mut part = |usual: Value| odd(random, usual);
    let mut address = |number: usize| {
        let state = part(json!("Down"));
        let ip = part(json!(format!("10.0.0.{number}")));
        let name = part(json!(format!("n{number}")));
        let properties = part(json!({"ipAddress": ip, "adminState": state, "future": {"x": [1, "y"]}}));
        part(json!({"name": name, "properties": properties}))
    };
    let addresses: Vec<Value> = (0..4).map(&mut address).collect();
    let addresses = part(json!(addresses));
    let state = part(json!("Updating"));
    let properties = part(
        json!({"provisioningState": state, "loadBalancerBackendAddresses": addresses, "backendIPConfigurations": [{"id": "x"}]}),
    );
    let (name, etag) = (part(json!("pool")), part(json!("W/\"2\"")));
    let pool = part(json!({"name": name, "etag": etag, "properties": properties}));
    let pools = part(json!([pool, {"name": "second"}, {}]));
    let rules = part(json!([{"name": "r", "properties": {"probe": {"id": "p"}}}]));
    let state = part(json!("Succeeded"));
    let properties = part(
        json!({"provisioningState": state, "backendAddressPools": pools, "loadBalancingRules": rules,
        "probes": [{"name": "p"}], "frontendIPConfigurations": [{"name": "f"}]}),
    );
    let etag = part(json!("W/\"1\""));
    let id = part(json!(format!("{GROUP}/lb-{number}")));
    part(json!({"id": id, "etag": etag, "location": "eastus", "properties": properties}))
}

#[test]
fn summaries_are_those_of_the_whole_documents() {
    let mut random = fastrand::Rng::with_seed(12);
    let mut shown = 0;
    for number in 0..2000 {
        let document = document(&mut random, number);
        let text = document.to_string();
        let read = read_load_balancer(body(&text), &entry).ok();
        assert_eq!(read, expected(&document), "{document}");
        assert_eq!(read_load_balancer(arriving(&text), &entry).ok(), read);
        assert_eq!(LoadBalancerSummary::from_document(&document, entry).ok(), read);
        shown += u32::from(read.is_some());
    }
    assert!(shown > 1000, "{shown}");
}

#[test]
fn pools_whose_entries_stay_text_are_changed_and_written_as_whole_documents() {
    let mut random = fastrand::Rng::with_seed(56);
    let mut changed = 0;
    for number in 0..2000 {
        let document = document(&mut random, number);
        let text = document.to_string();
        let Some((id, _, pools)) = whole(&document) else {
            continue;
        };
        let mut drafts = PoolDraft::all_of(&text.clone().into(), &id, None).unwrap();
        assert_eq!(drafts.len(), pools.len(), "{text}");
        for (mut pool, draft) in pools.into_iter().zip(&mut drafts) {
            let written = |draft: &PoolDraft| serde_json::to_value(draft.put_body()).unwrap();
            assert_eq!(written(draft), serde_json::to_value(pool.put_body()).unwrap(), "{text}");
            for (index, state) in (0..).zip([AdminState::Down, AdminState::None, AdminState::Up]) {
                let is_changed = draft.set_admin_state(index, state);
                assert_eq!(is_changed, pool.set_admin_state(index, state), "{text}");
                changed += usize::from(is_changed);
            }
            assert_eq!(written(draft), serde_json::to_value(pool.put_body()).unwrap(), "{text}");
            assert_eq!(*draft.pool(), pool);
        }
    }
    assert!(changed > 1000, "{changed}");
    assert!(PoolDraft::all_of(&Bytes::from_static(b"{"), &lb(), None).is_err());
}

#[test]
fn a_draft_has_the_etag_of_its_pool_or_of_the_headers_or_of_the_load_balancer() {
    let id = lb();
    let text = json!({"etag": "W/\"lb\"", "properties": {"backendAddressPools": [{"name": "p", "etag": "W/\"p\""}, {"name": "q"}]}});
    let etags = |header: Option<&str>| {
        let header = header.and_then(Etag::new);
        let mut drafts = PoolDraft::all_of(&text.to_string().into(), &id, header.as_ref()).unwrap();
        let etag = |draft: &mut PoolDraft| draft.pool().etag.take().unwrap().as_str().to_owned();
        drafts.iter_mut().map(etag).collect::<Vec<_>>()
    };
    assert_eq!(etags(None), ["W/\"p\"", "W/\"lb\""]);
    assert_eq!(etags(Some("W/\"header\"")), ["W/\"p\"", "W/\"header\""]);
}

/// Names with escapes, and what has read-only fields at other places.
#[test]
fn texts_are_written_without_read_only_fields() {
    let entry = r#"{"na\u006de":"n","etag":"x","\u0074ype":"t","note":{"etag":"kept"},
        "properties":{ "provisioningState":"Succeeded","ipAddress":"10.0.0.1","networkInterfaceIPConfiguration":{"id":"i"}}}"#;
    let text = format!(
        r#"{{"properties":{{"backendAddressPools":[{{"name":"p","properties":{{"loadBalancerBackendAddresses":[{entry},7,"s",null]}}}}]}}}}"#
    );
    let id = lb();
    let drafts = PoolDraft::all_of(&text.into(), &id, None).unwrap();
    let expected = json!({"name": "p", "properties": {"loadBalancerBackendAddresses": [
        {"name": "n", "note": {"etag": "kept"}, "properties": {"ipAddress": "10.0.0.1"}}, 7, "s", null]}});
    assert_eq!(serde_json::to_value(drafts[0].put_body()).unwrap(), expected);
}

#[test]
fn list_has_the_selected_load_balancers_and_the_names_of_the_others() {
    let mut random = fastrand::Rng::with_seed(34);
    for _ in 0..200 {
        let documents: Vec<Value> = (0..5).map(|number| document(&mut random, number)).collect();
        let text = json!({"value": documents, "nextLink": "https://next", "other": {"value": []}}).to_string();
        let select = |id: &LoadBalancerId| matches!(id.name(), "lb-1" | "lb-3");
        let page = read_page(body(&text), &select, &entry).unwrap();
        let all: Vec<_> = documents.iter().filter_map(expected).collect();
        let (selected, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|found| select(&found.id));
        assert_eq!(page.load_balancers, selected);
        let others: Vec<_> = others.into_iter().map(|other| other.id).collect();
        assert_eq!(page.others, others);
        assert_eq!(page.next_link.as_deref(), Some("https://next"));
        let again = read_page(arriving(&text), &select, &entry).unwrap();
        assert_eq!((again.load_balancers, again.others), (page.load_balancers, page.others));
    }
}

#[test]
fn properties_before_the_id_are_read() {
    let properties = r#""properties": {"backendAddressPools": [{"name": "p"}]}"#;
    let text = format!(r#"{{"value": [{{{properties}, "id": "{GROUP}/lb"}}, {{{properties}, "id": "{GROUP}/x"}}]}}"#);
    let page = read_page(body(&text), &|id| id.name() == "lb", &entry).unwrap();
    assert_eq!((page.load_balancers.len(), page.others.len()), (1, 1));
    assert_eq!(page.load_balancers[0].pools[0].id.name(), "p");
}

#[test]
fn malformed_lists_are_errors() {
    for text in [
        "",
        "[]",
        "7",
        "{",
        "{}",
        r#"{"value": 1}"#,
        r#"{"value": []"#,
        r#"{"value": []} x"#,
    ] {
        for body in [body(text), arriving(text)] {
            assert!(read_page(body, &|_| true, &entry).is_err(), "{text}");
        }
    }
    for text in ["{}", r#"{"id": "/x"}"#, "null", r#"{"id": 7}"#] {
        for body in [body(text), arriving(text)] {
            assert!(read_load_balancer(body, &entry).is_err(), "{text}");
        }
    }
}

#[test]
fn pool_entries_of_one_response_are_bounded() {
    let addresses = vec!["{}"; MAX_ADDRESSES / 2 + 1].join(",");
    let pool = format!(r#"{{"name": "p", "properties": {{"loadBalancerBackendAddresses": [{addresses}]}}}}"#);
    let read = |pools: &str| {
        let text = format!(r#"{{"id": "{GROUP}/lb", "properties": {{"backendAddressPools": [{pools}]}}}}"#);
        read_load_balancer(body(&text), &|_| ())
    };
    assert!(read(&pool).is_ok());
    let error = read(&format!("{pool},{pool}")).unwrap_err();
    assert!(error.contains("500000 pool entries"), "{error}");
}

#[test]
fn parts_of_a_load_balancer_make_its_summary() {
    let mut random = fastrand::Rng::with_seed(56);
    let mut shown = 0;
    for number in 0..2000 {
        let document = document(&mut random, number);
        let Some(expected) = expected(&document) else { continue };
        let list = |name: &str| {
            let items = document.pointer(&format!("/properties/{name}"));
            json!({"value": items.cloned().unwrap_or(json!([])), "nextLink": ""}).to_string()
        };
        let values = |name: &str| parts::read_values_page(body(&list(name)));
        let (rules, probes) = (values("loadBalancingRules"), values("probes"));
        let pools = parts::read_pools_page(body(&list("backendAddressPools")), &expected.id, &entry);
        // A list without an array is an error.
        let (Ok(rules), Ok(probes), Ok(pools)) = (rules, probes, pools) else {
            continue;
        };
        // A pool without entries is one of a list that does not show them.
        let has_entries = |pool: &PoolSummary<Entry>| {
            let all = document["properties"]["backendAddressPools"].as_array().unwrap();
            let found = all.iter().find(|found| found["name"] == pool.id.name()).unwrap();
            found["properties"]["loadBalancerBackendAddresses"].is_array()
        };
        let shown_pools = pools.items.into_iter().filter_map(|pool| match pool {
            parts::ListedPool::Shown(pool) => Some(pool),
            parts::ListedPool::WithoutEntries(_) => None,
        });
        let mut expected_pools = expected.pools.clone();
        expected_pools.retain(has_entries);
        assert!(rules.next_link.is_none());
        let state = parts::read_state(body(&document.to_string())).unwrap();
        let pools = shown_pools.collect();
        let found = LoadBalancerSummary::assemble(&expected.id, state, rules.items, probes.items, pools);
        shown += 1;
        assert_eq!(found.provisioning_state, expected.provisioning_state, "{document}");
        assert_eq!((found.etag, found.id), (expected.etag, expected.id), "{document}");
        assert_eq!(found.pools, expected_pools, "{document}");
    }
    assert!(shown > 1000, "{shown}");
}

#[test]
fn nothing_after_the_provisioning_state_is_needed() {
    let after_others = r#"{"properties":{"more":[1,{"a":2}],"provisioningState":"Failed"}}"#;
    for (text, expected) in [
        (r#"{"id":"x","properties":{"provisioningState":"S","more":["#, Some("S")),
        (after_others, Some("Failed")),
        (r#"{"properties":{"provisioningState":null}}"#, Some("")),
        (r#"{"properties":[]}"#, None),
        ("[]", None),
        ("a proxy", None),
        ("", None),
    ] {
        for body in [body(text), arriving(text)] {
            assert_eq!(parts::read_provisioning_state(body).as_deref(), expected, "{text}");
        }
    }
}

#[test]
fn state_is_read_from_the_beginning_of_a_document() {
    let text = format!(
        r#"{{"name":"lb","id":"{GROUP}/lb","etag":"W/\"1\"","tags":{{"a":"b"}},"properties":{{"provisioningState":"Updating","backendAddressPools":[{{"na"#
    );
    let state = parts::read_state(body(&text)).unwrap();
    let id = LoadBalancerId::parse(&format!("{GROUP}/LB")).unwrap();
    let found = LoadBalancerSummary::<()>::assemble(&id, state, vec![], vec![], vec![]);
    assert_eq!(found.provisioning_state, ProvisioningState::Busy);
    assert_eq!(found.id.name(), "lb");
    assert_eq!(found.etag, Etag::new("W/\"1\""));
    // Without the state nothing may be written.
    for text in [
        r#"{"id":"x","properties":{"backendAddressPools":[{"na"#,
        r#"{"id":"x","prop"#,
        "",
        "<html>",
    ] {
        let error = parts::read_state(body(text)).unwrap_err();
        assert!(error.contains("provisioningState"), "{error}");
    }
    let whole = parts::read_state(body(r#"{"properties":{"backendAddressPools":[]}}"#)).unwrap();
    let found = LoadBalancerSummary::<()>::assemble(&lb(), whole, vec![], vec![], vec![]);
    assert_eq!(found.provisioning_state, ProvisioningState::Settled);
}

#[test]
fn pools_of_rules_are_those_of_the_same_load_balancer() {
    let id = lb();
    let pool = |name: &str| json!({"id": format!("{}/backendAddressPools/{name}", id.to_string().to_uppercase())});
    let rules = [
        json!({"properties": {"backendAddressPool": pool("a"), "backendAddressPools": [pool("A"), pool("b"), null, 7]}}),
        json!({"properties": {"backendAddressPool": {"id": format!("{GROUP}/other/backendAddressPools/c")}}}),
        json!({"properties": {"backendAddressPool": null, "backendAddressPools": {}}}),
        json!(null),
    ];
    let found = parts::pools_of_rules(&rules, &id);
    let found: Vec<_> = found.iter().map(|pool| pool.name().to_lowercase()).collect();
    assert_eq!(found, ["a", "b"]);
    let read = |text: &str| parts::read_pool(body(text), &id.pool("a").unwrap(), &entry);
    let pool = read(r#"{"name":"A","properties":{"loadBalancerBackendAddresses":[{"name":"n"}]}}"#);
    assert_eq!(pool.unwrap().addresses.len(), 1);
    for text in [r#"{"name":"b"}"#, r#"{"properties":{}}"#, "[]", "x"] {
        assert!(read(text).is_err(), "{text}");
    }
}
