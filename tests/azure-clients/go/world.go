package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v9"
)

// As in seed.json.
const (
	subscription = "5b0c0de0-0000-4000-8000-000000000005"
	group        = "traffic"
	network      = "/subscriptions/" + subscription + "/resourceGroups/" + group + "/providers/Microsoft.Network"
	web          = "web"
	nodes        = "nodes"
	poolID       = network + "/loadBalancers/" + web + "/backendAddressPools/" + nodes
)

const (
	// Timeout of a request, longer than any step.
	requestTimeout = time.Minute
	// The address at which azure-identity requests the machine's managed identity.
	linkLocal = "169.254.169.254:80"
)

// world is an emulator, and clients for it with Microsoft's defaults.
type world struct {
	arm, armTLS, control string
	transport            *http.Client
	wire                 *wire
	loadBalancers        *armnetwork.LoadBalancersClient
	pools                *armnetwork.LoadBalancerBackendAddressPoolsClient
	interfaces           *armnetwork.InterfacesClient
}

func newWorld(addressesFile, caFile string) *world {
	var addresses struct{ Arm, ArmTLS, Control string }
	unmarshal(must(os.ReadFile(addressesFile)), &addresses)
	authorities := x509.NewCertPool()
	check(authorities.AppendCertsFromPEM(must(os.ReadFile(caFile))), "no certificate in %s", caFile)

	dialer := net.Dialer{Timeout: 10 * time.Second}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, kind, address string) (net.Conn, error) {
			if address == linkLocal {
				address = addresses.Arm
			}
			return dialer.DialContext(ctx, kind, address)
		},
	}
	w := &world{
		arm:       "http://" + addresses.Arm,
		armTLS:    "https://" + addresses.ArmTLS,
		control:   "http://" + addresses.Control + "/emulator/v1",
		transport: &http.Client{Transport: transport},
		wire:      &wire{},
	}
	identity := must(azidentity.NewManagedIdentityCredential(&azidentity.ManagedIdentityCredentialOptions{
		ClientOptions: policy.ClientOptions{Transport: w.transport},
	}))
	clients := w.clients(w.arm, identity)
	w.loadBalancers = clients.NewLoadBalancersClient()
	w.pools = clients.NewLoadBalancerBackendAddressPoolsClient()
	w.interfaces = clients.NewInterfacesClient()
	return w
}

// clients makes clients for the emulator behind a URL.
func (w *world) clients(url string, credential azcore.TokenCredential) *armnetwork.ClientFactory {
	return must(armnetwork.NewClientFactory(subscription, credential, &arm.ClientOptions{
		ClientOptions: policy.ClientOptions{
			Cloud: cloud.Configuration{
				ActiveDirectoryAuthorityHost: w.armTLS,
				Services: map[cloud.ServiceName]cloud.ServiceConfiguration{
					cloud.ResourceManager: {Endpoint: url, Audience: "https://management.azure.com"},
				},
			},
			InsecureAllowCredentialWithHTTP: true,
			Transport:                       w.transport,
			PerRetryPolicies:                []policy.Policy{w.wire},
		},
	}))
}

// wire records every answer that a client got, including retried ones.
type wire struct {
	lock    sync.Mutex
	answers []*http.Response
}

func (w *wire) Do(request *policy.Request) (*http.Response, error) {
	answer, err := request.Next()
	if err == nil {
		w.lock.Lock()
		defer w.lock.Unlock()
		w.answers = append(w.answers, answer)
	}
	return answer, err
}

func (w *wire) statuses(method string) []int {
	var found []int
	for _, answer := range w.answers {
		if answer.Request.Method == method {
			found = append(found, answer.StatusCode)
		}
	}
	return found
}

func (w *wire) last(method string) *http.Response {
	var found *http.Response
	for _, answer := range w.answers {
		if answer.Request.Method == method {
			found = answer
		}
	}
	check(found != nil, "no %s was answered", method)
	return found
}

type object = map[string]any

// callControl sends a request to the control API.
func (w *world) callControl(method, path string, body any) {
	request := must(http.NewRequest(method, w.control+"/"+path, bytes.NewReader(must(json.Marshal(body)))))
	request.Header.Set("Content-Type", "application/json")
	answer := must(w.transport.Do(request))
	defer answer.Body.Close()
	text := must(io.ReadAll(answer.Body))
	check(answer.StatusCode < 300, "%s %s: %s: %s", method, path, answer.Status, text)
}

// fault adds a fault for the next requests of a method for pools.
func (w *world) fault(method string, times int, action object) {
	w.callControl("POST", "faults", object{
		"match": object{"method": method, "path": "/backendAddressPools/"}, "times": times, "action": action,
	})
}

// reset returns to the seed and removes all faults.
func (w *world) reset() {
	w.callControl("POST", "reset", object{})
	w.wire.answers = nil
}

func background() context.Context {
	// Bounded by the process, which ends with its scenario.
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	time.AfterFunc(requestTimeout, cancel)
	return ctx
}

// ifMatch makes the next request through this context a conditional one.
func ifMatch(etag string) context.Context {
	return policy.WithHTTPHeader(background(), http.Header{"If-Match": {etag}})
}

// pool reads a pool.
func (w *world) pool(loadBalancer, name string) armnetwork.BackendAddressPool {
	return must(w.pools.Get(background(), group, loadBalancer, name, nil)).BackendAddressPool
}

type poolPoller = runtime.Poller[armnetwork.LoadBalancerBackendAddressPoolsClientCreateOrUpdateResponse]

// put starts the write of a pool.
func (w *world) put(ctx context.Context, loadBalancer string, pool armnetwork.BackendAddressPool) (*poolPoller, error) {
	return w.pools.BeginCreateOrUpdate(ctx, group, loadBalancer, *pool.Name, pool, nil)
}

// end polls a write until it ends.
func end(poller *poolPoller, err error) armnetwork.BackendAddressPool {
	return must(must(poller, err).PollUntilDone(background(), nil)).BackendAddressPool
}

// setState sets the admin state of one address, and returns the pool.
func setState(
	pool armnetwork.BackendAddressPool, name string, state armnetwork.LoadBalancerBackendAddressAdminState,
) armnetwork.BackendAddressPool {
	for _, address := range pool.Properties.LoadBalancerBackendAddresses {
		if *address.Name == name {
			address.Properties.AdminState = &state
			return pool
		}
	}
	panic(fmt.Sprintf("no address is named %s", name))
}

// states are the admin states by address; an absent one counts as None.
func states(pool armnetwork.BackendAddressPool) map[string]string {
	found := map[string]string{}
	for _, address := range pool.Properties.LoadBalancerBackendAddresses {
		state := armnetwork.LoadBalancerBackendAddressAdminStateNone
		if address.Properties.AdminState != nil {
			state = *address.Properties.AdminState
		}
		found[*address.Name] = string(state)
	}
	return found
}

// content is a document without etags at any level; "adminState": "None" counts as no admin state.
func content(document any) any {
	var value any
	unmarshal(must(json.Marshal(document)), &value)
	return stripped(value)
}

func stripped(value any) any {
	switch value := value.(type) {
	case object:
		delete(value, "etag")
		if value["adminState"] == "None" {
			delete(value, "adminState")
		}
		for key, inner := range value {
			value[key] = stripped(inner)
		}
	case []any:
		for index, inner := range value {
			value[index] = stripped(inner)
		}
	}
	return value
}

func unmarshal(text []byte, into any) {
	err := json.Unmarshal(text, into)
	check(err == nil, "%v: %s", err, text)
}

func must[T any](value T, err error) T {
	check(err == nil, "%v", err)
	return value
}

func check(holds bool, format string, arguments ...any) {
	if !holds {
		panic(fmt.Sprintf(format, arguments...))
	}
}

func same(have, want any, what string) {
	check(reflect.DeepEqual(have, want), "%s:\n  have %#v\n  want %#v", what, have, want)
}

// refused returns the error of a request that must fail with this status (0: any) and code.
func refused(err error, status int, code string) *azcore.ResponseError {
	var refusal *azcore.ResponseError
	check(errors.As(err, &refusal), "%d %s was expected, not: %v", status, code, err)
	if status != 0 {
		same(refusal.StatusCode, status, "the status of "+refusal.Error())
	}
	same(refusal.ErrorCode, code, "the code of "+refusal.Error())
	return refusal
}
