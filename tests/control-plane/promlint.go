//go:build !sandbox

package main

import (
	"fmt"
	"io"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Checks metrics in Prometheus' text format with the linter behind `promtool check metrics`; `--lint=off` only parses
// them. Returns the exit code: 0 for nothing to complain of, 1 for text that does not parse or any problem, 2 for a
// mistake in the arguments.
func lintMetrics(arguments []string, input io.Reader, output, diagnostics io.Writer) int {
	lint := true
	for _, argument := range arguments {
		switch argument {
		case "--lint=off":
			lint = false
		case "--lint=all":
			lint = true
		default:
			fmt.Fprintf(diagnostics, "promlint: unknown argument %q; usage: promlint [--lint=all|off] < metrics.txt\n", argument)
			return 2
		}
	}

	if !lint {
		parser := expfmt.NewTextParser(model.LegacyValidation) // as the linter's decoder does
		if _, err := parser.TextToMetricFamilies(input); err != nil {
			fmt.Fprintln(diagnostics, "promlint:", err)
			return 1
		}
		return 0
	}

	problems, err := promlint.New(input).Lint()
	if err != nil {
		fmt.Fprintln(diagnostics, "promlint:", err)
		return 1
	}
	for _, problem := range problems {
		fmt.Fprintln(output, problem.Metric, problem.Text)
	}
	if len(problems) > 0 {
		return 1
	}
	return 0
}
