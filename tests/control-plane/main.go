// The Kubernetes control plane that headgate is tested against, as one binary, with kwok in place of kubelets. Every
// component brings most of the same code, so linked together they are a fifth of the size of the separate programs and
// take one link instead of seven.
//
// It acts as the component it is called as (a symlink named kube-apiserver), else as the one its first argument names.
package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/version" // kubernetes_build_info
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// Each runs one component with os.Args as that component expects them. The build tag `sandbox` leaves out all that
// a sandbox of an API server alone does not run, and half of the build's time.
var components = map[string]func(){
	"etcd":           func() { etcdmain.Main(os.Args) },
	"kube-apiserver": func() { run(apiserver.NewAPIServerCommand()) },
	"kubectl":        func() { run(kubectl.NewDefaultKubectlCommand()) },
}

func run(command *cobra.Command) {
	os.Exit(cli.Run(command))
}

func main() {
	component, known := components[filepath.Base(os.Args[0])]
	if !known && len(os.Args) > 1 {
		component, known = components[os.Args[1]]
		os.Args = os.Args[1:]
	}
	if !known {
		names := slices.Sorted(maps.Keys(components))
		fmt.Fprintln(os.Stderr, "usage: control-plane COMPONENT [ARGUMENT...], where COMPONENT is one of", strings.Join(names, ", "))
		os.Exit(2)
	}
	component()
}
