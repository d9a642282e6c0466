// The cloud-controller-manager of Azure as its own main has it, built from modules: what judges the emulator.
package main

import (
	"os"

	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics on /metrics

	"sigs.k8s.io/cloud-provider-azure/cmd/cloud-controller-manager/app"
	"sigs.k8s.io/cloud-provider-azure/pkg/log"
	_ "sigs.k8s.io/cloud-provider-azure/pkg/provider"
)

func main() {
	defer log.Flush()
	if err := app.NewCloudControllerManagerCommand().Execute(); err != nil {
		os.Exit(1)
	}
}
