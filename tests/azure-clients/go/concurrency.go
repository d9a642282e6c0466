package main

import (
	"errors"
	"fmt"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v9"
)

// The addresses that a pool may have.
const maxAddresses = 5000

var concurrency = []step{
	{"a pool of five thousand is read as it was written", aLargePool},
	{"writers that read again after a conflict lose nothing", writersLoseNothing},
}

func aLargePool(w *world) {
	pool := w.pool(web, "nodes-ipv6")
	pool.Properties.VirtualNetwork = pool.Properties.LoadBalancerBackendAddresses[0].Properties.VirtualNetwork
	pool.Properties.LoadBalancerBackendAddresses = nil
	for number := range maxAddresses {
		address := &armnetwork.LoadBalancerBackendAddress{
			Name: to.Ptr(fmt.Sprintf("machine-%d", number)),
			Properties: &armnetwork.LoadBalancerBackendAddressPropertiesFormat{
				IPAddress: to.Ptr(fmt.Sprintf("fd00:db8::%x", number+0x100)),
			},
		}
		if number%2 == 0 {
			address.Properties.AdminState = to.Ptr(down)
		}
		pool.Properties.LoadBalancerBackendAddresses = append(pool.Properties.LoadBalancerBackendAddresses, address)
	}
	end(w.put(background(), web, pool))
	after := w.pool(web, "nodes-ipv6")
	same(content(after), content(pool), "the pool")
	end(w.put(ifMatch(*after.Etag), web, setState(after, "machine-4999", down)))
	same(states(w.pool(web, "nodes-ipv6"))["machine-4999"], "Down", "the last address")
	w.reset()
}

// Six writers, each of a different address, in two pools that share the etag of their load balancer.
func writersLoseNothing(w *world) {
	var writers sync.WaitGroup
	failures := make(chan error, 6)
	for _, pool := range []string{nodes, "nodes-ipv6"} {
		for _, name := range []string{"node-1", "node-2", "node-3"} {
			writers.Go(func() { failures <- w.writeUntilDone(pool, name) })
		}
	}
	writers.Wait()
	close(failures)
	for err := range failures {
		check(err == nil, "%v", err)
	}
	want := map[string]string{"node-1": "Down", "node-2": "Down", "node-3": "Down"}
	same(states(w.pool(web, nodes)), want, "the admin states")
	same(states(w.pool(web, "nodes-ipv6")), want, "the admin states of the other pool")
}

// writeUntilDone starts again when another writer was first or superseded it.
func (w *world) writeUntilDone(pool, name string) error {
	for range 100 {
		read, err := w.pools.Get(background(), group, web, pool, nil)
		if err != nil {
			return err
		}
		poller, err := w.put(ifMatch(*read.Etag), web, setState(read.BackendAddressPool, name, down))
		if err == nil {
			_, err = poller.PollUntilDone(background(), nil)
		}
		var refusal *azcore.ResponseError
		switch {
		case err == nil:
			return nil
		case !errors.As(err, &refusal):
			return err
		case refusal.StatusCode != 412 && refusal.ErrorCode != "Canceled":
			return err
		}
	}
	return fmt.Errorf("%s was never set Down", name)
}
