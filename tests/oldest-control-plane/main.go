// The Kubernetes components of the oldest version that headgate supports, as one binary: docs/concepts/limits.md. etcd is not
// among them; it comes from ../control-plane, because the two versions of its modules do not fit into one program.
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
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics on every component's /metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // kubernetes_build_info
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// Each makes one component's command, which reads os.Args as that component expects them.
var components = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          newSchedulerCommand,
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

// The scheduler takes options, of which there are none here.
func newSchedulerCommand() *cobra.Command { return scheduler.NewSchedulerCommand() }

func main() {
	component, known := components[filepath.Base(os.Args[0])]
	if !known && len(os.Args) > 1 {
		component, known = components[os.Args[1]]
		os.Args = os.Args[1:]
	}
	if !known {
		names := slices.Sorted(maps.Keys(components))
		fmt.Fprintln(os.Stderr, "usage: oldest-control-plane COMPONENT [ARGUMENT...], where COMPONENT is one of", strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(cli.Run(component()))
}
