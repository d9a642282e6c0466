// Microsoft's own Go client against the emulator: one story, told in steps, each of which asserts what it needs.
//
//	story -addresses FILE -ca-file FILE CHAPTER
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"time"
)

// A step proves one thing; it panics where that does not hold.
type step struct {
	name string
	run  func(*world)
}

var chapters = map[string][]step{
	"reading":     reading,
	"writing":     writing,
	"operations":  operations,
	"throttling":  throttling,
	"credentials": credentials,
	"interfaces":  interfaces,
	"crowds":      crowds,
}

func main() {
	addresses := flag.String("addresses", "", "the emulator's addresses file")
	caFile := flag.String("ca-file", "", "the emulator's CA")
	flag.Parse()
	steps, known := chapters[flag.Arg(0)]
	if !known || flag.NArg() != 1 {
		fmt.Fprintf(os.Stderr, "usage: story -addresses FILE -ca-file FILE CHAPTER; no chapter is called %q\n", flag.Arg(0))
		os.Exit(2)
	}
	world := newWorld(*addresses, *caFile)
	for _, step := range steps {
		started := time.Now()
		if !told(step, world) {
			fmt.Printf("FAILED: %s: %s\n", flag.Arg(0), step.name)
			os.Exit(1)
		}
		fmt.Printf("ok: %s: %s (%.1f s)\n", flag.Arg(0), step.name, time.Since(started).Seconds())
	}
}

// told runs a step; false where it panicked, which is printed.
func told(step step, world *world) (good bool) {
	defer func() {
		if reason := recover(); reason != nil {
			fmt.Printf("%v\n%s", reason, debug.Stack())
		}
	}()
	step.run(world)
	return true
}
