package main

import (
	"slices"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v9"
)

// The emulator's pages must have one item.
var reading = []step{
	{"lists are paged", listsArePaged},
	{"a load balancer has its children", aLoadBalancerHasItsChildren},
	{"a pool by itself is the one in its load balancer", aPoolByItself},
	{"three kinds of not found", threeKindsOfNotFound},
}

func names(found []*armnetwork.LoadBalancer) []string {
	var names []string
	for _, loadBalancer := range found {
		names = append(names, *loadBalancer.Name)
	}
	return names
}

func listsArePaged(w *world) {
	var pages [][]string
	for pager := w.loadBalancers.NewListPager(group, nil); pager.More(); {
		pages = append(pages, names(must(pager.NextPage(background())).Value))
	}
	same(pages, [][]string{{"machines"}, {web}}, "the pages of the group's list")

	var all []string
	for pager := w.loadBalancers.NewListAllPager(nil); pager.More(); {
		all = append(all, names(must(pager.NextPage(background())).Value)...)
	}
	slices.Sort(all)
	same(all, []string{"machines", "spare", web}, "the subscription's list")

	count := 0
	for pager := w.pools.NewListPager(group, web, nil); pager.More(); count++ {
		same(len(must(pager.NextPage(background())).Value), 1, "the length of a page of pools")
	}
	same(count, 2, "the pages of pools")
}

func aLoadBalancerHasItsChildren(w *world) {
	found := must(w.loadBalancers.Get(background(), group, web, nil)).LoadBalancer
	same(*found.ID, network+"/loadBalancers/"+web, "its id")
	same(w.wire.last("GET").Header.Get("ETag"), *found.Etag, "the ETag header of a GET")
	children := map[string]*string{}
	for _, child := range found.Properties.FrontendIPConfigurations {
		children[*child.ID] = child.Etag
	}
	for _, child := range found.Properties.BackendAddressPools {
		children[*child.ID] = child.Etag
		same(*child.Properties.ProvisioningState, armnetwork.ProvisioningStateSucceeded, "the state of a pool")
	}
	for _, child := range found.Properties.LoadBalancingRules {
		children[*child.ID] = child.Etag
	}
	for _, child := range found.Properties.Probes {
		children[*child.ID] = child.Etag
	}
	for _, path := range []string{
		"frontendIPConfigurations/front-ipv4", "frontendIPConfigurations/front-ipv6",
		"backendAddressPools/nodes", "backendAddressPools/nodes-ipv6",
		"loadBalancingRules/http", "loadBalancingRules/https", "loadBalancingRules/http-ipv6", "probes/healthz",
	} {
		etag, there := children[*found.ID+"/"+path]
		check(there && etag != nil, "%s is missing, or has no etag", path)
		same(*etag, *found.Etag, "the etag of "+path)
	}
	same(len(children), 8, "the number of children")
	same(*found.Properties.LoadBalancingRules[0].Properties.BackendAddressPool.ID, poolID, "the pool of a rule")
	same(len(found.Properties.BackendAddressPools[0].Properties.LoadBalancingRules), 2, "the rules of a pool")
}

func aPoolByItself(w *world) {
	found := must(w.loadBalancers.Get(background(), group, web, nil)).LoadBalancer
	pool := w.pool(strings.ToUpper(web), nodes)
	same(w.wire.last("GET").Header.Get("ETag"), *pool.Etag, "the ETag header of a GET")
	same(content(pool), content(found.Properties.BackendAddressPools[0]), "the pool")
}

func threeKindsOfNotFound(w *world) {
	_, err := w.pools.Get(background(), group, web, "nothing", nil)
	refused(err, 404, "NotFound")
	_, err = w.pools.Get(background(), group, "nothing", nodes, nil)
	refused(err, 404, "ResourceNotFound")
	_, err = w.loadBalancers.Get(background(), group, "nothing", nil)
	refused(err, 404, "ResourceNotFound")
	_, err = w.loadBalancers.Get(background(), "nowhere", web, nil)
	refused(err, 404, "ResourceGroupNotFound")
}
