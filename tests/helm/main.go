// The real helm, and a program that puts a packaged chart into an OCI image layout on disk, as one binary: most of their
// code is the same.
//
// Called as chart-oci-layout (a symlink), or with that as its first argument, it writes a layout; otherwise it is helm.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	helm "helm.sh/helm/v4/pkg/cmd"
	"helm.sh/helm/v4/pkg/kube"
)

const layoutProgram = "chart-oci-layout"

func main() {
	arguments := os.Args[1:]
	isLayout := filepath.Base(os.Args[0]) == layoutProgram
	if !isLayout && len(arguments) > 0 && arguments[0] == layoutProgram {
		isLayout, arguments = true, arguments[1:]
	}
	if !isLayout {
		os.Exit(runHelm(arguments))
	}
	if len(arguments) != 2 {
		fmt.Fprintf(os.Stderr, "usage: %s CHART.tgz DIRECTORY\n", layoutProgram)
		os.Exit(2)
	}
	reference, err := writeLayout(context.Background(), arguments[0], arguments[1])
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", layoutProgram, err)
		os.Exit(1)
	}
	fmt.Println(reference)
}

// runHelm is cmd/helm's main without its plugins for authentication, and returns the exit code.
func runHelm(arguments []string) int {
	kube.ManagedFieldsManager = "helm"
	command, err := helm.NewRootCmd(os.Stdout, arguments, helm.SetupLogging)
	if err != nil {
		fmt.Fprintln(os.Stderr, "helm:", err)
		return 1
	}
	if command.Execute() != nil {
		return 1
	}
	return 0
}
