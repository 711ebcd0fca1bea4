// Package scenario is shared by the programs in Go: names, waits, and how a scenario ends (as in scenario.py).
package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"time"
)

const (
	// Max bounds the wait for any one thing.
	Max        = 40 * time.Second
	notOffered = 3
)

// Play plays a scenario with the node at an address, and returns what went wrong.
type Play func(ctx context.Context, address string) error

// NewName returns a name that nothing else bears.
func NewName(kind string) string {
	return fmt.Sprintf("interop-%s-%08x", kind, rand.Uint32())
}

// Same returns an error that says both, unless they are equal.
func Same(found, expected any, what string) error {
	if reflect.DeepEqual(found, expected) {
		return nil
	}
	return fmt.Errorf("%s: %.200s instead of %.200s", what, fmt.Sprint(found), fmt.Sprint(expected))
}

// Numbers returns the decimals from first to below end.
func Numbers(first, end int) []string {
	var numbers []string
	for number := first; number < end; number++ {
		numbers = append(numbers, fmt.Sprint(number))
	}
	return numbers
}

// Run is the program: it plays the scenario that is named, and ends the process.
func Run(plays map[string]Play) {
	play, found := plays[os.Args[1]]
	if !found {
		os.Exit(notOffered)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*Max)
	defer cancel()
	if err := play(ctx, os.Args[2]); err != nil {
		fmt.Println(strings.ReplaceAll(err.Error(), "\n", " "))
		os.Exit(1)
	}
}
