//! Refreshes in paused time, against a token endpoint that counts requests and can be made to fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use bytes::Bytes;
use hyper::Response;
use serde_json::json;
use tokio::time::{advance, sleep};
use tower::service_fn;

use super::*;
use crate::{AzureCloud, Credential, Endpoints};

#[derive(Debug, Default)]
struct TokenEndpoint {
    requests: AtomicU32,
    /// The status of the response; 0 means 200.
    status: AtomicU16,
}

/// In place of a status: the endpoint does not respond.
const NO_ANSWER: u16 = 1;

fn tokens(lifetime: u32, endpoint: &Arc<TokenEndpoint>) -> Arc<TokenCache> {
    let endpoint = Arc::clone(endpoint);
    let transport = Transport::new(service_fn(move |_| {
        let endpoint = Arc::clone(&endpoint);
        async move {
            sleep(Duration::from_secs(1)).await;
            let number = endpoint.requests.fetch_add(1, Ordering::Relaxed) + 1;
            let status = endpoint.status.load(Ordering::Relaxed);
            if status == NO_ANSWER {
                std::future::pending::<()>().await;
            }
            let body = json!({"access_token": format!("token {number}"), "expires_in": lifetime}).to_string();
            let status = if status == 0 { 200 } else { status };
            Ok(Response::builder().status(status).body(Bytes::from(body)).unwrap())
        }
    }));
    let credential = Credential::ManagedIdentity(None);
    let endpoints = Endpoints::for_cloud(AzureCloud::Public);
    let identity = Identity::new(&credential, None, &endpoints, "http://169.254.169.254/").unwrap();
    Arc::new(TokenCache::new(identity, transport, Clock::System))
}

async fn token(tokens: &TokenCache) -> String {
    tokens.token().await.unwrap().expose().to_owned()
}

#[tokio::test(start_paused = true)]
async fn refreshed_five_minutes_before_the_end_by_one_request() {
    let endpoint = Arc::default();
    let tokens = tokens(3600, &endpoint);
    let all = futures::future::join_all((0..10).map(|_| token(&tokens))).await;
    assert!(all.iter().all(|token| token == "token 1"), "{all:?}");
    advance(Duration::from_secs(3298)).await;
    assert_eq!(token(&tokens).await, "token 1");
    advance(Duration::from_secs(1)).await;
    // One request refreshes; the others get the present token at once.
    let all = futures::future::join_all((0..3).map(|_| token(&tokens))).await;
    assert_eq!(all, ["token 2", "token 1", "token 1"]);
    assert_eq!(endpoint.requests.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn failed_refresh_keeps_the_token_until_its_end() {
    let endpoint: Arc<TokenEndpoint> = Arc::default();
    let tokens = tokens(600, &endpoint);
    assert_eq!(token(&tokens).await, "token 1");
    endpoint.status.store(400, Ordering::Relaxed);
    advance(Duration::from_secs(301)).await;
    assert_eq!(token(&tokens).await, "token 1");
    // The next request does not refresh.
    assert_eq!(token(&tokens).await, "token 1");
    assert_eq!(endpoint.requests.load(Ordering::Relaxed), 2);
    advance(REFRESH_RETRY_INTERVAL).await;
    assert_eq!(token(&tokens).await, "token 1");
    assert_eq!(endpoint.requests.load(Ordering::Relaxed), 3);
    advance(Duration::from_mins(5)).await;
    assert!(tokens.token().await.is_err(), "the token has ended");
    endpoint.status.store(0, Ordering::Relaxed);
    assert_eq!(token(&tokens).await, "token 5");
}

#[tokio::test(start_paused = true)]
async fn an_endpoint_that_does_not_answer_holds_no_request_that_has_a_token() {
    let endpoint: Arc<TokenEndpoint> = Arc::default();
    let tokens = tokens(600, &endpoint);
    assert_eq!(token(&tokens).await, "token 1");
    endpoint.status.store(NO_ANSWER, Ordering::Relaxed);
    advance(Duration::from_secs(301)).await;
    for refreshes in 1..=3 {
        let asked_at = Instant::now();
        assert_eq!(token(&tokens).await, "token 1");
        assert!(asked_at.elapsed() < Duration::from_secs(3), "{:?}", asked_at.elapsed());
        let asked_at = Instant::now();
        assert_eq!(token(&tokens).await, "token 1");
        assert_eq!(asked_at.elapsed(), Duration::ZERO, "the next refresh is due later");
        assert_eq!(endpoint.requests.load(Ordering::Relaxed), 1 + refreshes);
        advance(REFRESH_RETRY_INTERVAL).await;
    }
    // Without a valid token there is nothing to go on with: each attempt has its whole time.
    advance(Duration::from_mins(5)).await;
    let asked_at = Instant::now();
    assert!(tokens.token().await.is_err());
    assert!(asked_at.elapsed() > ATTEMPT_TIMEOUT, "{:?}", asked_at.elapsed());
}

#[tokio::test(start_paused = true)]
async fn rejected_token_is_replaced_by_one_request() {
    let endpoint: Arc<TokenEndpoint> = Arc::default();
    let tokens = tokens(3600, &endpoint);
    let first = tokens.token().await.unwrap();
    let all = futures::future::join_all((0..5).map(|_| tokens.refresh(&first))).await;
    assert!(all.iter().all(|token| token.as_ref().unwrap().expose() == "token 2"));
    assert_eq!(endpoint.requests.load(Ordering::Relaxed), 2);
    assert_eq!(token(&tokens).await, "token 2");
}

#[tokio::test(start_paused = true)]
async fn failing_endpoint_gets_four_requests() {
    let endpoint: Arc<TokenEndpoint> = Arc::default();
    endpoint.status.store(503, Ordering::Relaxed);
    let error = tokens(3600, &endpoint).token().await.unwrap_err();
    assert_eq!(error.to_string(), "no token: no reason given (503): ");
    assert_eq!(endpoint.requests.load(Ordering::Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn debug_shows_no_token() {
    let endpoint = Arc::default();
    let tokens = tokens(3600, &endpoint);
    token(&tokens).await;
    assert!(!format!("{tokens:?}").contains("token 1"));
}
