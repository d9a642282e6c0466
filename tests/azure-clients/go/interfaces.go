package main

import (
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v9"
)

const (
	machines = "machines"
	members  = "members"
	alone    = group + "_alone-nicipconfig1"
)

var interfaces = []step{
	{"members come from their interfaces", membersComeFromInterfaces},
	{"only admin states are written", onlyAdminStates},
	{"a pool write cannot change the members", aPoolWriteCannotChangeMembers},
	{"an interface that returns has no state", anInterfaceLeavesAndReturns},
}

func membersComeFromInterfaces(w *world) {
	pool := w.pool(machines, members)
	same(len(pool.Properties.BackendIPConfigurations), 2, "the number of configurations")
	kinds := map[string]string{}
	for _, address := range pool.Properties.LoadBalancerBackendAddresses {
		id := *address.Properties.NetworkInterfaceIPConfiguration.ID
		kinds[strings.Split(id, "/")[7]] = *address.Name
	}
	same(kinds["networkInterfaces"], alone, "the name of a single machine's member")
	same(len(kinds["virtualMachineScaleSets"]), 36, "the length of a scale set member's name, a GUID")
}

func onlyAdminStates(w *world) {
	wanted := w.pool(machines, members)
	for name := range states(wanted) {
		setState(wanted, name, down)
	}
	end(w.put(ifMatch(*wanted.Etag), machines, wanted))
	same(content(w.pool(machines, members)), content(wanted), "the pool, but for its admin states")
	for name := range states(wanted) {
		setState(wanted, name, none)
	}
	end(w.put(background(), machines, wanted))
	have := content(w.pool(machines, members))
	w.reset()
	same(have, content(w.pool(machines, members)), "the pool as it was seeded")
}

func aPoolWriteCannotChangeMembers(w *world) {
	before := w.pool(machines, members)
	changed := w.pool(machines, members)
	changed.Properties.LoadBalancerBackendAddresses = changed.Properties.LoadBalancerBackendAddresses[:1]
	_, err := w.put(background(), machines, changed)
	refused(err, 400, "ModificationOfNICIpConfigBackendPoolNotSupported")
	same(content(w.pool(machines, members)), content(before), "the pool")
	same(*w.pool(machines, members).Etag, *before.Etag, "its etag")
}

func anInterfaceLeavesAndReturns(w *world) {
	end(w.put(background(), machines, setState(w.pool(machines, members), alone, down)))
	nic := must(w.interfaces.Get(background(), group, "alone-nic", nil)).Interface
	configuration := nic.Properties.IPConfigurations[0].Properties
	pools := configuration.LoadBalancerBackendAddressPools
	write := func(pools []*armnetwork.BackendAddressPool) {
		configuration.LoadBalancerBackendAddressPools = pools
		poller := must(w.interfaces.BeginCreateOrUpdate(background(), group, "alone-nic", nic, nil))
		must(poller.PollUntilDone(background(), nil))
	}
	write([]*armnetwork.BackendAddressPool{})
	same(len(states(w.pool(machines, members))), 1, "the members that are left")
	write(pools)
	same(states(w.pool(machines, members))[alone], "None", "the state of the member that returned")
}
