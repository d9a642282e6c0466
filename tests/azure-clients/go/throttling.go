package main

import (
	"net/http"
	"time"
)

var throttling = []step{
	{"a 429 is waited out", a429IsWaitedOut},
	{"a 429 on a PUT is waited out", a429OnAPutIsWaitedOut},
	{"a 429 that would take too long is told", aLong429IsTold},
	{"a 409 is told, and recovered by a fresh read", a409IsTold},
	{"errors of the server are tried again", serverErrorsAreTriedAgain},
	{"a real bucket runs dry and fills again", aRealBucketRunsDry},
}

func tooMany(retryAfter string) object {
	return object{"answer": object{
		"status": 429, "headers": object{"Retry-After": retryAfter},
		"body": object{"error": object{"code": "RetryableError", "message": "A retryable error occurred.", "details": []any{}}},
	}}
}

func a429IsWaitedOut(w *world) {
	w.wire.answers = nil
	w.fault(http.MethodGet, 1, tooMany("1"))
	started := time.Now()
	w.pool(web, nodes)
	took := time.Since(started)
	same(w.wire.statuses(http.MethodGet), []int{429, 200}, "what the client met")
	check(took > 900*time.Millisecond && took < 15*time.Second, "a Retry-After of a second took %v", took)
}

func a429OnAPutIsWaitedOut(w *world) {
	w.fault(http.MethodPut, 1, tooMany("1"))
	end(w.put(background(), web, setState(w.pool(web, nodes), "node-1", down)))
	same(w.wire.statuses(http.MethodPut), []int{429, 200}, "what the client met")
	same(states(w.pool(web, nodes))["node-1"], "Down", "the state")
}

func aLong429IsTold(w *world) {
	w.fault(http.MethodGet, 1, tooMany("61"))
	_, err := w.pools.Get(background(), group, web, nodes, nil)
	same(refused(err, 429, "RetryableError").RawResponse.Header.Get("Retry-After"), "61", "when to come again")
}

func a409IsTold(w *world) {
	conflict := object{"error": object{"code": "AnotherOperationInProgress", "message": "Another operation is in progress."}}
	w.fault(http.MethodPut, 1, object{"answer": object{"status": 409, "body": conflict}})
	pool := w.pool(web, nodes)
	_, err := w.put(ifMatch(*pool.Etag), web, setState(pool, "node-2", down))
	refused(err, 409, "AnotherOperationInProgress")
	pool = w.pool(web, nodes)
	end(w.put(ifMatch(*pool.Etag), web, setState(pool, "node-2", down)))
	same(states(w.pool(web, nodes))["node-2"], "Down", "the state")
}

func serverErrorsAreTriedAgain(w *world) {
	w.wire.answers = nil
	w.fault(http.MethodGet, 1, object{"answer": object{"status": 503}})
	w.pool(web, nodes)
	same(w.wire.statuses(http.MethodGet), []int{503, 200}, "what the client met")
}

func aRealBucketRunsDry(w *world) {
	w.wire.answers = nil
	w.ask("PUT", "settings", object{"throttle": object{"reads": object{"capacity": 3, "refillPerSecond": 3}}})
	throttled := 0
	for range 8 {
		w.pool(web, nodes)
	}
	for _, answer := range w.wire.answers {
		if answer.StatusCode == 429 {
			throttled++
			same(answer.Header.Get("Retry-After"), "1", "when to come again")
		}
	}
	check(throttled > 0, "eight reads of a bucket of three were never throttled")
}
