package main

import (
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v9"
)

const (
	up   = armnetwork.LoadBalancerBackendAddressAdminStateUp
	down = armnetwork.LoadBalancerBackendAddressAdminStateDown
	none = armnetwork.LoadBalancerBackendAddressAdminStateNone
)

var writing = []step{
	{"a pool is changed with If-Match", aPoolIsChangedWithIfMatch},
	{"a pool is changed without If-Match", aPoolIsChangedWithoutIfMatch},
	{"a stale etag is refused and changes nothing", aStaleEtagIsRefused},
	{"after a return to None the pool is as before", backToNone},
	{"a pool is created and deleted", aPoolIsCreatedAndDeleted},
	{"a load balancer is changed with If-Match", aLoadBalancerIsChanged},
	{"a write of an old document without If-Match reverts the writes in between", aWriteBetweenIsLost},
}

func aPoolIsChangedWithIfMatch(w *world) {
	before := *w.pool(web, nodes).Etag
	wanted := setState(w.pool(web, nodes), "node-1", down)
	written := end(w.put(ifMatch(before), web, wanted))
	after := w.pool(web, nodes)
	same(content(after), content(wanted), "the pool, but for the address set Down")
	same(content(written), content(after), "the result of the poller")
	check(*after.Etag != before, "a write has to change the etag")
	same(*w.pool(web, "nodes-ipv6").Etag, *after.Etag, "the etag of the pool beside it, which it shares")
	same(w.wire.last(http.MethodPut).StatusCode, 200, "the status of an update")
}

func aPoolIsChangedWithoutIfMatch(w *world) {
	end(w.put(background(), web, setState(w.pool(web, nodes), "node-2", up)))
	same(states(w.pool(web, nodes)), map[string]string{"node-1": "Down", "node-2": "Up", "node-3": "None"}, "the states")
}

func aStaleEtagIsRefused(w *world) {
	stale := *w.pool(web, nodes).Etag
	end(w.put(background(), web, setState(w.pool(web, nodes), "node-3", down)))
	before := w.pool(web, nodes)
	_, err := w.put(ifMatch(stale), web, setState(w.pool(web, nodes), "node-3", up))
	refusal := refused(err, 412, "PreconditionFailed")
	check(strings.Contains(refusal.Error(), "PreconditionFailedEtagMismatch"), "no such detail in %v", refusal)
	after := w.pool(web, nodes)
	same(states(after), states(before), "the admin states")
	same(*after.Etag, *before.Etag, "the etag")
}

func backToNone(w *world) {
	pool := w.pool(web, nodes)
	for name := range states(pool) {
		setState(pool, name, none)
	}
	end(w.put(background(), web, pool))
	have := content(w.pool(web, nodes))
	w.reset()
	same(have, content(w.pool(web, nodes)), "the pool as it was seeded")
}

func aPoolIsCreatedAndDeleted(w *world) {
	extra := armnetwork.BackendAddressPool{
		Name: to.Ptr("extra"), Properties: &armnetwork.BackendAddressPoolPropertiesFormat{},
	}
	made := end(w.put(background(), web, extra))
	same(w.wire.last(http.MethodPut).StatusCode, 201, "the status of a creation")
	same(*made.ID, network+"/loadBalancers/"+web+"/backendAddressPools/extra", "its id")
	deletion := must(w.pools.BeginDelete(background(), group, web, "extra", nil))
	must(deletion.PollUntilDone(background(), nil))
	_, err := w.pools.Get(background(), group, web, "extra", nil)
	refused(err, 404, "NotFound")
}

func aLoadBalancerIsChanged(w *world) {
	end(w.put(background(), web, setState(w.pool(web, nodes), "node-1", down)))
	found := must(w.loadBalancers.Get(background(), group, web, nil)).LoadBalancer
	found.Properties.Probes[0].Properties.IntervalInSeconds = to.Ptr[int32](15)
	poller := must(w.loadBalancers.BeginCreateOrUpdate(ifMatch(*found.Etag), group, web, found, nil))
	after := must(poller.PollUntilDone(background(), nil)).LoadBalancer
	same(content(after), content(found), "the load balancer, but for the probe")
	same(states(w.pool(web, nodes))["node-1"], "Down", "an admin state that was sent back")
	_, err := w.loadBalancers.BeginCreateOrUpdate(ifMatch(*found.Etag), group, web, found, nil)
	refused(err, 412, "PreconditionFailed")
	w.reset()
}

func aWriteBetweenIsLost(w *world) {
	read := w.pool(web, nodes)
	end(w.put(background(), web, setState(w.pool(web, nodes), "node-1", down)))
	end(w.put(background(), web, setState(read, "node-2", down)))
	same(states(w.pool(web, nodes)), map[string]string{"node-1": "None", "node-2": "Down", "node-3": "None"}, "the states")

	// With If-Match, and a concurrent write by a fault: the other write stays.
	w.reset()
	read = w.pool(web, nodes)
	theirs := content(setState(w.pool(web, nodes), "node-3", up))
	w.fault(http.MethodPut, 1, object{"write": object{"method": "PUT", "path": poolID, "body": theirs}})
	_, err := w.put(ifMatch(*read.Etag), web, setState(read, "node-1", down))
	refused(err, 412, "PreconditionFailed")
	same(states(w.pool(web, nodes))["node-3"], "Up", "what the other wrote")
}
