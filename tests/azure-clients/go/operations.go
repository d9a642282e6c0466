package main

import (
	"net/http"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v9"
)

// The emulator's operations must take a second.
var operations = []step{
	{"an operation is polled until it ends", anOperationIsPolled},
	{"a poller can be resumed elsewhere", aPollerIsResumed},
	{"a failed operation is reported", aFailedOperation},
	{"a canceled operation is reported", aCanceledOperation},
	{"a newer write of the pool supersedes the older", aNewerWriteSupersedes},
	{"a write of the load balancer supersedes one of its pool", aWriteOfTheLoadBalancerSupersedes},
}

// downAfter starts a write that sets one address Down, with another time that its operation takes.
func downAfter(w *world, delay, name string) *poolPoller {
	w.callControl("PUT", "settings", object{"operationDelay": delay})
	poller := must(w.put(background(), web, setState(w.pool(web, nodes), name, down)))
	w.callControl("PUT", "settings", object{"operationDelay": "1s"})
	return poller
}

func anOperationIsPolled(w *world) {
	before := *w.pool(web, nodes).Etag
	started := time.Now()
	// The first poll has to come within this time.
	poller := downAfter(w, "3s", "node-1")
	answer := w.wire.last(http.MethodPut)
	check(!poller.Done(), "an operation of three seconds was done at once")
	url := answer.Header.Get("Azure-AsyncOperation")
	check(strings.HasPrefix(url, w.arm) && len(url) > 1024, "not absolute, or not long: %s", url)
	for _, header := range []string{"Location", "ETag"} {
		same(answer.Header.Get(header), "", "the PUT's header "+header)
	}
	same(answer.Header.Get("Retry-After"), "1", "the PUT's Retry-After")
	// PollUntilDone waits first, for as long as the operation takes.
	must(poller.Poll(background()))
	after := must(poller.PollUntilDone(background(), nil)).BackendAddressPool
	took := time.Since(started)
	same(*after.Properties.ProvisioningState, armnetwork.ProvisioningStateSucceeded, "the state at the end")
	same(states(after)["node-1"], "Down", "the admin state at the end")
	check(*after.Etag != before, "a write has to change the etag")
	check(took > 2900*time.Millisecond, "an operation of three seconds took %v", took)
	var waits []string
	for _, answer := range w.wire.answers {
		if answer.Request.URL.String() == url {
			waits = append(waits, answer.Header.Get("Retry-After"))
		}
	}
	check(len(waits) >= 2, "the operation's URL was polled %d times", len(waits))
	for _, wait := range waits[:len(waits)-1] {
		same(wait, "1", "the Retry-After while in progress")
	}
}

func aPollerIsResumed(w *world) {
	poller := must(w.put(background(), web, setState(w.pool(web, nodes), "node-2", down)))
	token := must(poller.ResumeToken())
	resumed := must(w.pools.BeginCreateOrUpdate(background(), group, web, nodes, armnetwork.BackendAddressPool{},
		&armnetwork.LoadBalancerBackendAddressPoolsClientBeginCreateOrUpdateOptions{ResumeToken: token}))
	after := must(resumed.PollUntilDone(background(), nil))
	same(states(after.BackendAddressPool)["node-2"], "Down", "the result of the resumed poller")
}

func aFailedOperation(w *world) {
	w.fault(http.MethodPut, 1, object{"operation": "fail"})
	poller := must(w.put(background(), web, setState(w.pool(web, nodes), "node-3", down)))
	_, err := poller.PollUntilDone(background(), nil)
	refused(err, 0, "InternalServerError")
	end(w.put(background(), web, setState(w.pool(web, nodes), "node-3", down)))
}

func aCanceledOperation(w *world) {
	w.fault(http.MethodPut, 1, object{"operation": "cancel"})
	poller := must(w.put(background(), web, setState(w.pool(web, nodes), "node-3", up)))
	_, err := poller.PollUntilDone(background(), nil)
	refused(err, 0, "Canceled")
}

func aNewerWriteSupersedes(w *world) {
	w.reset()
	// Not over before the second write, however long that takes to begin.
	first := downAfter(w, "1m", "node-1")
	second := must(w.put(background(), web, setState(setState(w.pool(web, nodes), "node-1", none), "node-2", down)))
	want := map[string]string{"node-1": "None", "node-2": "Down", "node-3": "None"}
	same(states(must(second.PollUntilDone(background(), nil)).BackendAddressPool), want, "the second write")
	_, err := first.PollUntilDone(background(), nil)
	refusal := refused(err, 0, "Canceled")
	check(strings.Contains(refusal.Error(), "CanceledAndSupersededDueToAnotherOperation"), "no such detail in %v", refusal)
	same(states(w.pool(web, nodes)), want, "the pool")
}

func aWriteOfTheLoadBalancerSupersedes(w *world) {
	found := must(w.loadBalancers.Get(background(), group, web, nil)).LoadBalancer
	first := downAfter(w, "1m", "node-3")
	found.Properties.Probes[0].Properties.ProbeThreshold = to.Ptr[int32](3)
	second := must(w.loadBalancers.BeginCreateOrUpdate(background(), group, web, found, nil))
	after := must(second.PollUntilDone(background(), nil)).LoadBalancer
	same(*after.Properties.Probes[0].Properties.ProbeThreshold, int32(3), "the second write")
	_, err := first.PollUntilDone(background(), nil)
	refusal := refused(err, 0, "Canceled")
	check(strings.Contains(refusal.Error(), "superseded by operation PutLoadBalancerOperation"), "another error: %v", refusal)
	same(states(w.pool(web, nodes))["node-3"], "None", "the state that was superseded")
}
