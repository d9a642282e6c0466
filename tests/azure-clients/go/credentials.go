package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
)

const (
	// The accounts of seed.json: an application and a machine's.
	tenant   = "7e4a0000-0000-4000-8000-000000000001"
	clientID = "c11e0000-0000-4000-8000-000000000002"
	machine  = "ac41e000-0000-4000-8000-000000000003"
)

var credentials = []step{
	{"a custom cloud is described", aCustomCloudIsDescribed},
	{"a client secret", aClientSecret},
	{"a wrong client secret is refused", aWrongClientSecret},
	{"a workload identity", aWorkloadIdentity},
	{"a managed identity of the machine", aManagedIdentityOfTheMachine},
	{"a managed identity by its client id", aManagedIdentityByItsClientID},
	{"a managed identity of App Service", aManagedIdentityOfAppService},
	{"a token for another audience is refused", aWrongAudience},
}

// reads checks that this credential can read over plain HTTP and TLS.
func (w *world) reads(credential azcore.TokenCredential) {
	for _, url := range []string{w.arm, w.armTLS} {
		clients := w.clients(url, credential)
		found := must(clients.NewLoadBalancersClient().Get(background(), group, web, nil))
		same(*found.Name, web, "what was read from "+url)
	}
}

// entra has the options for the credentials that use Entra, which require TLS.
func (w *world) entra() policy.ClientOptions {
	return policy.ClientOptions{
		Transport: w.transport, Cloud: cloud.Configuration{ActiveDirectoryAuthorityHost: w.armTLS},
	}
}

func aCustomCloudIsDescribed(w *world) {
	answer := must(w.transport.Get(w.arm + "/metadata/endpoints?api-version=2019-05-01"))
	defer answer.Body.Close()
	same(answer.StatusCode, 200, "the status of the endpoints, which need no token")
	var clouds []struct {
		ResourceManager string
		Authentication  struct {
			LoginEndpoint string
			Audiences     []string
		}
	}
	check(json.NewDecoder(answer.Body).Decode(&clouds) == nil, "not a list of clouds")
	check(len(clouds) > 0, "no cloud")
	check(clouds[0].ResourceManager != "" && clouds[0].Authentication.LoginEndpoint != "", "no endpoints: %+v", clouds[0])
	check(len(clouds[0].Authentication.Audiences) > 0, "no audience: %+v", clouds[0])
}

func aClientSecret(w *world) {
	w.reads(w.secret("a secret"))
}

func aWrongClientSecret(w *world) {
	_, err := w.secret("another").GetToken(background(), policy.TokenRequestOptions{
		Scopes: []string{"https://management.azure.com/.default"},
	})
	check(err != nil && strings.Contains(err.Error(), "AADSTS7000215"), "not refused as it should be: %v", err)
}

func (w *world) secret(secret string) azcore.TokenCredential {
	return must(azidentity.NewClientSecretCredential(tenant, clientID, secret,
		&azidentity.ClientSecretCredentialOptions{ClientOptions: w.entra(), DisableInstanceDiscovery: true}))
}

func aWorkloadIdentity(w *world) {
	directory := must(os.MkdirTemp("", "workload"))
	defer os.RemoveAll(directory)
	file := filepath.Join(directory, "token")
	// A projected service account token; such files may end with a newline.
	now := time.Now().Unix()
	payload := object{
		"aud": []string{"api://AzureADTokenExchange"}, "exp": now + 3600, "iat": now, "iss": "https://issuer.example",
		"sub": "system:serviceaccount:kube-system:headgate",
	}
	encoded := base64.RawURLEncoding.EncodeToString
	token := encoded([]byte(`{"alg":"RS256"}`)) + "." + encoded(must(json.Marshal(payload))) + ".c2lnbmF0dXJl\n"
	check(os.WriteFile(file, []byte(token), 0o600) == nil, "cannot write %s", file)
	w.reads(must(azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{
		ClientOptions: w.entra(), DisableInstanceDiscovery: true,
		TenantID: tenant, ClientID: clientID, TokenFilePath: file,
	})))
}

func (w *world) managedIdentity(id azidentity.ManagedIDKind) azcore.TokenCredential {
	return must(azidentity.NewManagedIdentityCredential(&azidentity.ManagedIdentityCredentialOptions{
		ClientOptions: policy.ClientOptions{Transport: w.transport}, ID: id,
	}))
}

func aManagedIdentityOfTheMachine(w *world) {
	w.reads(w.managedIdentity(nil))
}

func aManagedIdentityByItsClientID(w *world) {
	w.reads(w.managedIdentity(azidentity.ClientID(machine)))
}

func aManagedIdentityOfAppService(w *world) {
	for name, value := range map[string]string{"IDENTITY_ENDPOINT": w.arm + "/msi/token", "IDENTITY_HEADER": "emulator"} {
		check(os.Setenv(name, value) == nil, "cannot set %s", name)
		defer os.Unsetenv(name)
	}
	w.reads(w.managedIdentity(nil))
}

// elsewhere requests tokens for another audience than ARM.
type elsewhere struct{ azcore.TokenCredential }

func (e elsewhere) GetToken(ctx context.Context, options policy.TokenRequestOptions) (azcore.AccessToken, error) {
	options.Scopes = []string{"https://vault.azure.net/.default"}
	return e.TokenCredential.GetToken(ctx, options)
}

func aWrongAudience(w *world) {
	clients := w.clients(w.arm, elsewhere{w.managedIdentity(nil)})
	_, err := clients.NewLoadBalancersClient().Get(background(), group, web, nil)
	refusal := refused(err, http.StatusUnauthorized, "InvalidAuthenticationTokenAudience")
	check(refusal.RawResponse.Header.Get("WWW-Authenticate") != "", "a 401 without WWW-Authenticate")
}
