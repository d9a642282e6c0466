// Microsoft's Go client against the emulator: scenarios of steps with assertions.
//
//	azure-clients -addresses FILE -ca-file FILE SCENARIO
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"time"
)

// A step checks one behaviour, and panics if an assertion fails.
type step struct {
	name string
	run  func(*world)
}

var scenarios = map[string][]step{
	"reading":     reading,
	"writing":     writing,
	"operations":  operations,
	"throttling":  throttling,
	"credentials": credentials,
	"interfaces":  interfaces,
	"concurrency": concurrency,
}

func main() {
	addresses := flag.String("addresses", "", "the emulator's addresses file")
	caFile := flag.String("ca-file", "", "the emulator's CA")
	flag.Parse()
	steps, known := scenarios[flag.Arg(0)]
	if !known || flag.NArg() != 1 {
		fmt.Fprintf(os.Stderr, "usage: azure-clients -addresses FILE -ca-file FILE SCENARIO; there is no scenario %q\n", flag.Arg(0))
		os.Exit(2)
	}
	world := newWorld(*addresses, *caFile)
	for _, step := range steps {
		started := time.Now()
		if !runStep(step, world) {
			fmt.Printf("FAILED: %s: %s\n", flag.Arg(0), step.name)
			os.Exit(1)
		}
		fmt.Printf("ok: %s: %s (%.1f s)\n", flag.Arg(0), step.name, time.Since(started).Seconds())
	}
}

// runStep runs a step; if it panics, it prints the panic and returns false.
func runStep(step step, world *world) (good bool) {
	defer func() {
		if reason := recover(); reason != nil {
			fmt.Printf("%v\n%s", reason, debug.Stack())
		}
	}()
	step.run(world)
	return true
}
