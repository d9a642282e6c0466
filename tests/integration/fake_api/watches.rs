//! Lists and watches: what they tell, from which version on, and how they end.

use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use headgate_test_kubernetes::FakeApi;
use headgate_test_kubernetes::{control_plane, own_control_plane};
use kube::api::{DeleteParams, ListParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::{by_name, config_map, config_maps, resource_version};

async fn a_list_by_name_and_by_pages(client: Client, name: &str) {
    let maps = config_maps(client);
    let named = ListParams::default().fields(&format!("metadata.name={name}-1"));
    assert!(maps.0.list(&named).await.unwrap().items.is_empty());
    for number in 0..3 {
        maps.create(config_map(&format!("{name}-{number}"), "1")).await.unwrap();
    }
    let list = maps.0.list(&named).await.unwrap();
    assert_eq!(list.items.len(), 1);
    assert_eq!(list.items[0].name_any(), format!("{name}-1"));
    assert!(list.metadata.resource_version.is_some());
    let mut params = ListParams::default().limit(2);
    let mut paged = Vec::new();
    loop {
        let page = maps.0.list(&params).await.unwrap();
        assert!(page.items.len() <= 2);
        paged.extend(page.items.into_iter().map(|map| map.name_any()));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => break,
        }
    }
    paged.retain(|other| other.starts_with(&format!("{name}-")));
    assert_eq!(paged, [0, 1, 2].map(|number| format!("{name}-{number}")));
}

async fn a_watch_tells_what_happens_to_the_one(client: Client, name: &str) {
    let maps = config_maps(client);
    let params = by_name(name).disable_bookmarks();
    let version = maps.0.list(&ListParams::default()).await.unwrap();
    let version = version.metadata.resource_version.unwrap();
    let watch = maps.watched(&params, &version, 3);
    let change = async {
        maps.create(config_map(&format!("{name}-other"), "1")).await.unwrap();
        let one = maps.create(config_map(name, "1")).await.unwrap();
        let two = maps.merge(name, json!({"data": {"text": "2"}})).await.unwrap();
        maps.delete(name, &DeleteParams::default()).await.unwrap();
        [one, two].map(|map| resource_version(&map))
    };
    let (seen, [one, two]) = tokio::join!(watch, change);
    assert_eq!(seen[..2], [("added", one.clone()), ("modified", two.clone())]);
    // A deletion has a version of its own, by which a watch goes on.
    assert_eq!(seen[2].0, "deleted");
    let number = |version: &str| version.parse::<u64>().unwrap();
    assert!(number(&seen[2].1) > number(&two) && number(&two) > number(&one));
    // From an older version: all since.
    let resumed = maps.watched(&params, &one, 2).await;
    assert_eq!(resumed, seen[1..]);
}

async fn a_watch_from_nowhere_begins_with_what_there_is(client: Client, name: &str) {
    let maps = config_maps(client);
    let made = maps.create(config_map(name, "1")).await.unwrap();
    for version in ["0", ""] {
        let seen = maps.watched(&by_name(name), version, 1).await;
        assert_eq!(seen, [("added", resource_version(&made))], "{version:?}");
    }
}

async fn a_watch_ends_in_time(client: Client, name: &str) {
    let maps = config_maps(client);
    let made = maps.create(config_map(name, "1")).await.unwrap();
    let params = by_name(name).timeout(1);
    let seen = maps.watched(&params, &resource_version(&made), 1).await;
    assert_eq!(seen, [], "it ends without a word");
}

/// Two versions of an object, then the API server goes and comes back.
async fn after_a_restart_what_was_is_forgotten(client: Client, stop: impl AsyncFnOnce(), start: impl AsyncFnOnce()) {
    let name = "restarted";
    let maps = config_maps(client);
    let old = maps.create(config_map(name, "1")).await.unwrap();
    let new = maps.merge(name, json!({"data": {"text": "2"}})).await.unwrap();
    let version = resource_version(&new);
    let mut events = pin!(
        maps.0
            .watch(&by_name(name).disable_bookmarks(), &version)
            .await
            .unwrap()
    );
    stop().await;
    let end = timeout(Duration::from_secs(10), events.try_next()).await;
    assert!(matches!(end, Ok(Err(_) | Ok(None))), "a watch ends: {end:?}");
    let refused = maps.0.get(name).await.unwrap_err();
    assert!(!matches!(refused, kube::Error::Api(_)), "{refused}");
    start().await;
    assert_eq!(maps.0.get(name).await.unwrap(), new);
    let params = by_name(name).timeout(2);
    let seen = maps.watched(&params, &resource_version(&old), 2).await;
    assert_eq!(seen, [("error", "410".to_owned())], "and it ends");
}

#[tokio::test(start_paused = true)]
async fn a_restart_of_the_fake() {
    let fake = FakeApi::default();
    let away = Duration::from_secs(5);
    let stop = async || fake.restart(away);
    let start = async || sleep(away).await;
    after_a_restart_what_was_is_forgotten(fake.client().0, stop, start).await;
}

#[tokio::test]
async fn a_restart_of_kube_apiserver() {
    let control_plane = Mutex::new(own_control_plane().await);
    let client = Client::try_from(control_plane.lock().await.client_config()).unwrap();
    let stop = async || control_plane.lock().await.stop_apiserver().await;
    let start = async || control_plane.lock().await.start_apiserver().await.unwrap();
    after_a_restart_what_was_is_forgotten(client, stop, start).await;
    control_plane.into_inner().stop().await;
}

on_both! {
    a_list_by_name_and_by_pages
    a_watch_tells_what_happens_to_the_one
    a_watch_from_nowhere_begins_with_what_there_is
    a_watch_ends_in_time
}
