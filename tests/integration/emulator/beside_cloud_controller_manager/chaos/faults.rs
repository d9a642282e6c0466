//! Faults of ARM for headgate's requests, of which most leave open how an operation ended.

use serde_json::{Value, json};

pub(super) fn faults() -> Vec<Value> {
    let rule = |method: &str, path: &str, times: u32, action: Value| json!({"match": {"method": method, "path": path, "caller": "^headgate"}, "times": times, "action": action});
    let error = |code: &str| json!({"code": code, "message": "An error occurred.", "details": []});
    vec![
        rule(
            "GET",
            "/operations/",
            2,
            json!({"answer": {"status": 200, "text": "<html>"}}),
        ),
        rule("GET", "/operations/", 2, json!({"answer": {"status": 401}})),
        rule("GET", "/operations/", 2, json!({"answer": {"status": 410}})),
        rule("GET", "/operations/", 2, json!({"cut": "before"})),
        rule("GET", "/operations/", 1, json!({"stall": "5s"})),
        rule(
            "PUT",
            "",
            2,
            json!({"answer": {"status": 409, "body": {"error": error("ConflictingConcurrentWriteNotAllowed")}}}),
        ),
        rule("PUT", "", 2, json!({"answer": {"status": 503}})),
        rule(
            "PUT",
            "",
            1,
            json!({"operation": "fail", "effect": "lost", "error": error("OperationTimedOut")}),
        ),
        rule(
            "PUT",
            "",
            1,
            json!({"operation": "fail", "effect": "lost", "error": error("")}),
        ),
        rule("PUT", "", 1, json!({"operation": "cancel", "effect": "lost"})),
        rule("PUT", "", 1, json!({"operation": "succeed", "effect": "lost"})),
        rule("PUT", "", 1, json!({"cut": "after"})),
        rule("PUT", "", 1, json!({"answer": {"code": "PreconditionFailed"}})),
        rule("PUT", "", 1, json!({"answer": {"code": "AnotherOperationInProgress"}})),
        rule("PUT", "", 1, json!({"answer": {"status": 429}})),
        rule(
            "GET",
            "",
            2,
            json!({"answer": {"code": "SubscriptionRequestsThrottled", "retryAfter": 2}}),
        ),
        rule("GET", "/msi/token", 2, json!({"answer": {"status": 500}})),
    ]
}
