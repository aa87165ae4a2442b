package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/roxie-rdma/roxie/bench"
	"github.com/roxie-rdma/roxie/internal/lab"
)

// keysWord is the word of bench --only that measures hardware keys, which stands alone: its figures
// have no raw AF_XDP to be compared with.
const keysWord = "keys"

// wantsKeys says whether bench --only asks for the keys.
func wantsKeys(only []string) (bool, error) {
	if !slices.Contains(only, keysWord) {
		return false, nil
	}
	if len(only) > 1 {
		return false, usagef("--only %s stands alone", keysWord)
	}
	return true, nil
}

// benchKeys measures hardware keys and registrations.
func benchKeys(c *cobra.Command, quick bool, out *jsonOutput) (err error) {
	line := newStatusLine(c.ErrOrStderr())
	l, err := openLab(lab.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	k, err := bench.KeysRun(c.Context(), bench.KeysOptions{Quick: quick, Lab: l,
		Step: func(text string) { line.set("bench: " + text) }})
	line.clear()
	if err != nil {
		return fmt.Errorf("bench: %w", interrupted(err))
	}
	if err := k.Write(c.OutOrStdout()); err != nil {
		return err
	}
	return out.writeBy(k.WriteJSON)
}
