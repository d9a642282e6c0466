//go:build !sandbox

package main

import (
	"os"

	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go's metrics on every component's /metrics
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// What only tests, drills and a sandbox with workloads run.
func init() {
	components["kube-controller-manager"] = func() { run(controllermanager.NewControllerManagerCommand()) }
	components["kube-proxy"] = func() { run(proxy.NewProxyCommand()) }
	components["kube-scheduler"] = func() { run(scheduler.NewSchedulerCommand()) }
	components["kwok"] = func() { os.Exit(runKwok()) }
	components["promlint"] = func() { os.Exit(lintMetrics(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
}
