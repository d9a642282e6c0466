//! Renewals, in paused time, by somebody who counts and may refuse.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use hyper::Response;
use serde_json::json;
use tokio::time::{advance, sleep};
use tower::service_fn;

use super::super::super::endpoints::Endpoints;
use super::*;
use crate::{AzureCloud, Credential};

/// How whoever gives tokens behaves.
#[derive(Debug, Default)]
struct Giver {
    asked: AtomicU32,
    /// Refuses with this status where it is not 0.
    status: AtomicU32,
}

fn tokens(good_for: u32, giver: &Arc<Giver>) -> Arc<TokenCache> {
    let giver = Arc::clone(giver);
    let transport = Transport::new(service_fn(move |_| {
        let giver = Arc::clone(&giver);
        async move {
            sleep(Duration::from_secs(1)).await;
            let number = giver.asked.fetch_add(1, Ordering::Relaxed) + 1;
            let status = giver.status.load(Ordering::Relaxed);
            let body = json!({"access_token": format!("token {number}"), "expires_in": good_for}).to_string();
            let status = if status == 0 {
                200
            } else {
                u16::try_from(status).unwrap()
            };
            Ok(Response::builder().status(status).body(Bytes::from(body)).unwrap())
        }
    }));
    let credential = Credential::ManagedIdentity(None);
    let account = Identity::new(
        &credential,
        None,
        &Endpoints::for_cloud(AzureCloud::Public),
        "http://169.254.169.254/",
    )
    .unwrap();
    Arc::new(TokenCache::new(account, transport, Clock::System))
}

async fn token(tokens: &TokenCache) -> String {
    tokens.token().await.unwrap().expose().to_owned()
}

#[tokio::test(start_paused = true)]
async fn renewed_five_minutes_before_the_end_and_once_for_all() {
    let giver = Arc::default();
    let tokens = tokens(3600, &giver);
    let all = futures::future::join_all((0..10).map(|_| token(&tokens))).await;
    assert!(all.iter().all(|token| token == "token 1"), "{all:?}");
    advance(Duration::from_secs(3298)).await;
    assert_eq!(token(&tokens).await, "token 1");
    advance(Duration::from_secs(1)).await;
    // One renews; the others have the old one at once.
    let all = futures::future::join_all((0..3).map(|_| token(&tokens))).await;
    assert_eq!(all, ["token 2", "token 1", "token 1"]);
    assert_eq!(giver.asked.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn a_failed_renewal_leaves_the_old_one_while_it_lasts() {
    let giver: Arc<Giver> = Arc::default();
    let tokens = tokens(600, &giver);
    assert_eq!(token(&tokens).await, "token 1");
    giver.status.store(400, Ordering::Relaxed);
    advance(Duration::from_secs(301)).await;
    assert_eq!(token(&tokens).await, "token 1");
    // Not each request asks again.
    assert_eq!(token(&tokens).await, "token 1");
    assert_eq!(giver.asked.load(Ordering::Relaxed), 2);
    advance(PAUSE).await;
    assert_eq!(token(&tokens).await, "token 1");
    assert_eq!(giver.asked.load(Ordering::Relaxed), 3);
    advance(Duration::from_mins(5)).await;
    assert!(tokens.token().await.is_err(), "it is over");
    giver.status.store(0, Ordering::Relaxed);
    assert_eq!(token(&tokens).await, "token 5");
}

#[tokio::test(start_paused = true)]
async fn a_refused_token_is_replaced_once_for_all_who_had_it() {
    let giver: Arc<Giver> = Arc::default();
    let tokens = tokens(3600, &giver);
    let first = tokens.token().await.unwrap();
    let all = futures::future::join_all((0..5).map(|_| tokens.renewed(&first))).await;
    assert!(all.iter().all(|token| token.as_ref().unwrap().expose() == "token 2"));
    assert_eq!(giver.asked.load(Ordering::Relaxed), 2);
    assert_eq!(token(&tokens).await, "token 2");
}

#[tokio::test(start_paused = true)]
async fn a_giver_in_trouble_is_asked_four_times() {
    let giver: Arc<Giver> = Arc::default();
    giver.status.store(503, Ordering::Relaxed);
    let error = tokens(3600, &giver).token().await.unwrap_err();
    assert_eq!(error.to_string(), "no token: no reason given (503): ");
    assert_eq!(giver.asked.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn a_token_is_not_shown() {
    let giver = Arc::default();
    let tokens = tokens(3600, &giver);
    token(&tokens).await;
    assert!(!format!("{tokens:?}").contains("token 1"));
}
