package main

import (
	"net/http"
	"time"
)

var throttling = []step{
	{"the client waits after a 429", aWaitAfterA429},
	{"the client waits after a 429 on a PUT", aWaitAfterA429OnAPut},
	{"a 429 with a long wait is reported", aLong429IsReported},
	{"a 409 is reported, and a new read recovers", a409IsReported},
	{"server errors are retried", serverErrorsAreRetried},
	{"a token bucket is exhausted and refills", aTokenBucketIsExhausted},
}

func tooMany(retryAfter string) object {
	return object{"answer": object{
		"status": 429, "headers": object{"Retry-After": retryAfter},
		"body": object{"error": object{"code": "RetryableError", "message": "A retryable error occurred.", "details": []any{}}},
	}}
}

func aWaitAfterA429(w *world) {
	w.wire.answers = nil
	w.fault(http.MethodGet, 1, tooMany("1"))
	started := time.Now()
	w.pool(web, nodes)
	took := time.Since(started)
	same(w.wire.statuses(http.MethodGet), []int{429, 200}, "the statuses that the client got")
	check(took > 900*time.Millisecond, "a Retry-After of a second took %v", took)
}

func aWaitAfterA429OnAPut(w *world) {
	w.fault(http.MethodPut, 1, tooMany("1"))
	end(w.put(background(), web, setState(w.pool(web, nodes), "node-1", down)))
	same(w.wire.statuses(http.MethodPut), []int{429, 200}, "the statuses that the client got")
	same(states(w.pool(web, nodes))["node-1"], "Down", "the state")
}

func aLong429IsReported(w *world) {
	w.fault(http.MethodGet, 1, tooMany("61"))
	_, err := w.pools.Get(background(), group, web, nodes, nil)
	same(refused(err, 429, "RetryableError").RawResponse.Header.Get("Retry-After"), "61", "Retry-After")
}

func a409IsReported(w *world) {
	conflict := object{"error": object{"code": "AnotherOperationInProgress", "message": "Another operation is in progress."}}
	w.fault(http.MethodPut, 1, object{"answer": object{"status": 409, "body": conflict}})
	pool := w.pool(web, nodes)
	_, err := w.put(ifMatch(*pool.Etag), web, setState(pool, "node-2", down))
	refused(err, 409, "AnotherOperationInProgress")
	pool = w.pool(web, nodes)
	end(w.put(ifMatch(*pool.Etag), web, setState(pool, "node-2", down)))
	same(states(w.pool(web, nodes))["node-2"], "Down", "the state")
}

func serverErrorsAreRetried(w *world) {
	w.wire.answers = nil
	w.fault(http.MethodGet, 1, object{"answer": object{"status": 503}})
	w.pool(web, nodes)
	same(w.wire.statuses(http.MethodGet), []int{503, 200}, "the statuses that the client got")
}

func aTokenBucketIsExhausted(w *world) {
	w.wire.answers = nil
	w.callControl("PUT", "settings", object{"throttle": object{"reads": object{"capacity": 3, "refillPerSecond": 3}}})
	throttled := 0
	for range 8 {
		w.pool(web, nodes)
	}
	for _, answer := range w.wire.answers {
		if answer.StatusCode == 429 {
			throttled++
			same(answer.Header.Get("Retry-After"), "1", "Retry-After")
		}
	}
	check(throttled > 0, "eight reads of a bucket of three were never throttled")
}
