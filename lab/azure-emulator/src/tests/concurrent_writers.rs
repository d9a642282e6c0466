//! Random concurrent writers: what an operation reported as succeeded is there unless a later write replaced it, no
//! etag occurs twice, and the journal explains all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Client, TestResponse, lb1, lb1_pool, load_balancer};

/// A step of a writer.
#[derive(Clone, Debug)]
enum Step {
    /// PUT of a pool with the writer's mark, after a read; guarded by the etag of the read or not.
    Pool {
        name: usize,
        guarded: bool,
    },
    /// PUT of the load balancer as it was read, with the writer's mark in its tags.
    Whole {
        guarded: bool,
    },
    /// DELETE of a pool.
    Remove {
        name: usize,
    },
    /// Waits for the operation of the writer's last write.
    End,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let step = prop_oneof![
        4 => (0..3_usize, any::<bool>()).prop_map(|(name, guarded)| Step::Pool { name, guarded }),
        2 => any::<bool>().prop_map(|guarded| Step::Whole { guarded }),
        1 => (1..3_usize).prop_map(|name| Step::Remove { name }),
        3 => Just(Step::End),
        3 => (0..3000_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(prop::collection::vec(step, 1..8), 1..4)
}

/// The effect of an accepted write.
#[derive(Clone, Debug, PartialEq)]
enum Mark {
    Pool(usize, String),
    Whole(String, BTreeMap<String, Value>),
    Removed(usize),
}

const POOLS: [&str; 3] = ["a", "b", "c"];

/// The marks of all pools in a load balancer's document.
fn marks(whole: &Value) -> BTreeMap<String, Value> {
    let pools = whole["properties"]["backendAddressPools"].as_array().unwrap();
    pools
        .iter()
        .map(|pool| {
            (
                pool["name"].as_str().unwrap().to_owned(),
                pool["properties"]["mark"].clone(),
            )
        })
        .collect()
}

/// The accepted writes, in the order of acceptance.
type Accepted = std::rc::Rc<std::cell::RefCell<Vec<(Mark, TestResponse)>>>;

async fn writer(client: Client, number: usize, steps: Vec<Step>, accepted: Accepted) {
    let mut last: Option<TestResponse> = None;
    for (place, step) in steps.into_iter().enumerate() {
        let mark = format!("{number}.{place}");
        let (mark, answer) = match step {
            Step::Wait(wait) => {
                sleep(Duration::from_millis(wait)).await;
                continue;
            }
            Step::End => {
                if let Some(last) = last.take() {
                    client.wait_for_operation(&last).await;
                }
                continue;
            }
            Step::Pool { name, guarded } => {
                let path = lb1_pool(POOLS[name]);
                let read = client.get(&path).await;
                let etag = read.header("etag").unwrap_or("none").to_owned();
                let mut body = if read.status == 200 {
                    read.body
                } else {
                    json!({"properties": {}})
                };
                body["properties"]["mark"] = mark.as_str().into();
                // Another writer may come between the two.
                sleep(Duration::from_millis(number as u64 * 7)).await;
                let answer = if guarded {
                    client.put_if_match(&path, &etag, &body).await
                } else {
                    client.put(&path, &body).await
                };
                (Mark::Pool(name, mark), answer)
            }
            Step::Whole { guarded } => {
                let read = client.get(&lb1()).await;
                let etag = read.header("etag").unwrap().to_owned();
                let mut body = read.body;
                body["tags"] = json!({"mark": mark});
                sleep(Duration::from_millis(number as u64 * 7)).await;
                let pools = marks(&body);
                let answer = if guarded {
                    client.put_if_match(&lb1(), &etag, &body).await
                } else {
                    client.put(&lb1(), &body).await
                };
                (Mark::Whole(mark, pools), answer)
            }
            Step::Remove { name } => (Mark::Removed(name), client.delete(&lb1_pool(POOLS[name])).await),
        };
        match answer.status {
            200..=202 => {
                accepted.borrow_mut().push((mark, answer.clone()));
                last = Some(answer);
            }
            204 | 412 => {}
            _ => panic!("{}: {}", answer.status, answer.body),
        }
    }
}

/// Runs the writers, and checks the resources and the journal afterwards.
async fn run_and_check(writers: Vec<Vec<Step>>) {
    let client = Client::new(&[load_balancer("lb1", &[("a", &["n1"]), ("b", &["n1"]), ("c", &[])])]);
    let first = client.read(&lb1()).await["etag"].clone();
    let accepted = Accepted::default();
    let running = writers.into_iter().enumerate();
    let running = running.map(|(number, steps)| writer(client.clone(), number, steps, accepted.clone()));
    futures::future::join_all(running).await;

    let accepted = accepted.borrow().clone();
    let mut etags = BTreeSet::new();
    let mut pools: BTreeMap<String, Value> = POOLS.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
    let mut tag = None;
    for (mark, answer) in &accepted {
        let succeeded = client.wait_for_operation(answer).await["status"] == "Succeeded";
        if let Some(etag) = answer.body["etag"].as_str() {
            assert!(etags.insert(etag.to_owned()), "{etag} came twice");
        }
        match mark {
            Mark::Pool(name, mark) => drop(pools.insert(POOLS[*name].to_owned(), mark.as_str().into())),
            Mark::Whole(mark, whole) => {
                tag = Some(mark.clone());
                pools = whole.clone();
            }
            // A superseded deletion has removed nothing.
            Mark::Removed(name) if succeeded => drop(pools.remove(POOLS[*name])),
            Mark::Removed(_) => {}
        }
    }
    let read = client.read(&lb1()).await;
    assert!(
        !etags.contains(read["etag"].as_str().unwrap()) || accepted.is_empty(),
        "an operation's end changes the etag too"
    );
    assert_eq!(marks(&read), pools, "{accepted:?}");
    assert_eq!(read["tags"]["mark"].as_str(), tag.as_deref());
    assert_eq!(read["properties"]["provisioningState"], "Succeeded");
    check_journal(&client, first.as_str().unwrap(), read["etag"].as_str().unwrap());
}

/// Checks that the changes in the journal lead from the first etag of the load balancer to the last, each etag once.
fn check_journal(client: &Client, first: &str, last: &str) {
    let (mut now, mut after, mut seen) = (first.to_owned(), 0, BTreeSet::from([first.to_owned()]));
    loop {
        let page = client
            .control("GET", &format!("journal?limit=1000&after={after}"), &Value::Null)
            .body;
        let entries = page["entries"].as_array().unwrap();
        assert_eq!(page["dropped"], 0);
        let mut changes: Vec<&Value> = entries
            .iter()
            .flat_map(|entry| entry["changes"].as_array().into_iter().flatten())
            .collect();
        // An entry has the position of its request's arrival, and changes that it made later.
        while let Some(place) = changes.iter().position(|change| change["etagBefore"] == now.as_str()) {
            now = changes.remove(place)["etagAfter"].as_str().unwrap().to_owned();
            assert!(seen.insert(now.clone()), "{now} came twice");
        }
        assert!(changes.is_empty(), "no change leads on from {now}: {changes:?}");
        after = page["next"].as_u64().unwrap();
        if entries.is_empty() {
            break;
        }
    }
    assert_eq!(now, last);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn accepted_writes_stay_until_a_later_one_replaces_them(writers in steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(run_and_check(writers));
    }
}
