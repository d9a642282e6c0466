//! How the process that has the right to count gets its orders and gives its reports: two routes of the agent's Unix socket, which only
//! containers of the same Pod reach. The agent that faces the network has no right to read the connection table.
//!
//! Each answer with an order numbers it, and only the report of the last one is taken, so two counters at once, or one that was restarted,
//! confirm nothing twice. An order is held back until there is something to count, [`POLL_TIMEOUT`] at most.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::count::{ConnectionCount, CountOrder};
use headgate_core::publish_if_changed;

/// The route of orders.
pub const ORDER_PATH: &str = "/connections/order";
/// The route of reports.
pub const REPORT_PATH: &str = "/connections/report";
/// How long a request for an order waits for one: half of what the listener allows an answer.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest report: some 10,000 Services.
const MAX_REPORT_BYTES: usize = 4 * 1024 * 1024;

/// An order, as the counter gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedOrder {
    /// Counts the orders of one agent process.
    pub number: u64,
    /// What to count.
    pub order: CountOrder,
}

/// What the counter reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CountReport {
    /// The order's number.
    pub number: u64,
    /// The count, or why there is none.
    pub outcome: Result<ConnectionCount, String>,
}

/// The outcome of a count, and when its order was issued.
#[derive(Clone, Debug)]
pub(super) struct Counted {
    pub(super) began_at: Instant,
    pub(super) outcome: Result<ConnectionCount, String>,
}

/// Between the agent and its counter. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct CountExchange {
    orders: watch::Sender<Option<Arc<CountOrder>>>,
    /// The number of the last order, and when it was issued, until its report comes.
    issued: watch::Sender<(u64, Option<Instant>)>,
    counted: watch::Sender<Option<Counted>>,
}

impl CountExchange {
    /// Replaces what is to be counted, `None` for nothing; returns whether that is something else than before.
    pub(super) fn order(&self, order: Option<CountOrder>) -> bool {
        publish_if_changed(&self.orders, order.map(Arc::new))
    }

    pub(super) fn counted(&self) -> watch::Receiver<Option<Counted>> {
        self.counted.subscribe()
    }

    /// The two routes. Requests for an order end when `stop` is cancelled.
    pub fn router(self, stop: CancellationToken) -> Router {
        Router::new()
            .route(ORDER_PATH, get(issue))
            .route(REPORT_PATH, post(report))
            .layer(DefaultBodyLimit::max(MAX_REPORT_BYTES))
            .with_state((self, stop))
    }
}

async fn issue(State((exchange, stop)): State<(CountExchange, CancellationToken)>) -> Response {
    let mut orders = exchange.orders.subscribe();
    let wanted = timeout(POLL_TIMEOUT, orders.wait_for(Option::is_some));
    let has_order = tokio::select! {
        wanted = wanted => wanted.is_ok(),
        () = stop.cancelled() => false,
    };
    // Before the order is read: one that is replaced in between was issued before that.
    let issued_at = Instant::now();
    let order = exchange.orders.borrow().clone().filter(|_| has_order);
    let Some(order) = order else {
        return StatusCode::NO_CONTENT.into_response();
    };
    let mut number = 0;
    exchange.issued.send_modify(|(last, at)| {
        *last += 1;
        *at = Some(issued_at);
        number = *last;
    });
    let order = CountOrder::clone(&order);
    Json(IssuedOrder { number, order }).into_response()
}

async fn report(
    State((exchange, _)): State<(CountExchange, CancellationToken)>,
    Json(report): Json<CountReport>,
) -> StatusCode {
    let mut began_at = None;
    exchange.issued.send_if_modified(|(number, at)| {
        began_at = at.take_if(|_| *number == report.number);
        false
    });
    let Some(began_at) = began_at else {
        return StatusCode::CONFLICT;
    };
    exchange.counted.send_replace(Some(Counted {
        began_at,
        outcome: report.outcome,
    }));
    StatusCode::NO_CONTENT
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use axum::http::header::CONTENT_TYPE;
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;

    async fn send(exchange: &CountExchange, stop: &CancellationToken, request: Request<Body>) -> (StatusCode, String) {
        let router = exchange.clone().router(stop.clone());
        let response = router.oneshot(request).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn ask() -> Request<Body> {
        Request::get(ORDER_PATH).body(Body::empty()).unwrap()
    }

    fn answer(report: &CountReport) -> Request<Body> {
        let body = serde_json::to_string(report).unwrap();
        let request = Request::post(REPORT_PATH).header(CONTENT_TYPE, "application/json");
        request.body(Body::from(body)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_report_of_the_last_order_is_taken_and_once() {
        let (exchange, stop) = (CountExchange::default(), CancellationToken::new());
        let start = Instant::now();
        assert_eq!(send(&exchange, &stop, ask()).await.0, StatusCode::NO_CONTENT);
        assert_eq!(start.elapsed(), POLL_TIMEOUT);
        exchange.order(Some(CountOrder::default()));
        let issued = async || {
            let (status, body) = send(&exchange, &stop, ask()).await;
            assert_eq!(status, StatusCode::OK);
            serde_json::from_str::<IssuedOrder>(&body).unwrap().number
        };
        let (first, second) = (issued().await, issued().await);
        let report = |number| CountReport {
            number,
            outcome: Ok(ConnectionCount::default()),
        };
        let counted = exchange.counted();
        for (number, expected) in [
            (first, StatusCode::CONFLICT),
            (second, StatusCode::NO_CONTENT),
            (second, StatusCode::CONFLICT),
        ] {
            assert_eq!(send(&exchange, &stop, answer(&report(number))).await.0, expected);
        }
        assert!(counted.borrow().is_some());
        let failed = CountReport {
            number: issued().await,
            outcome: Err("no right".to_owned()),
        };
        assert_eq!(send(&exchange, &stop, answer(&failed)).await.0, StatusCode::NO_CONTENT);
        assert_eq!(counted.borrow().as_ref().unwrap().outcome, Err("no right".to_owned()));
        // A process that stops does not wait for a counter that asks.
        exchange.order(None);
        stop.cancel();
        let stopped_at = Instant::now();
        assert_eq!(send(&exchange, &stop, ask()).await.0, StatusCode::NO_CONTENT);
        assert_eq!(stopped_at.elapsed(), Duration::ZERO);
    }

    #[tokio::test]
    async fn what_is_no_report_changes_nothing() {
        let (exchange, stop) = (CountExchange::default(), CancellationToken::new());
        for body in [
            "",
            "{}",
            "[1",
            r#"{"number":-1,"outcome":{"Ok":{}}}"#,
            r#"{"number":1,"outcome":{"Ok":{"services":7}}}"#,
        ] {
            let request = Request::post(REPORT_PATH).header(CONTENT_TYPE, "application/json");
            let (status, _) = send(&exchange, &stop, request.body(Body::from(body)).unwrap()).await;
            assert!(status.is_client_error(), "{body}: {status}");
        }
        let large = "x".repeat(MAX_REPORT_BYTES + 1);
        let request = Request::post(REPORT_PATH).header(CONTENT_TYPE, "application/json");
        let (status, _) = send(&exchange, &stop, request.body(Body::from(large)).unwrap()).await;
        assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(exchange.counted().borrow().is_none());
    }
}
