package main

import (
	"errors"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
)

// reserveJSON makes a command with a --json flag see to it that the file can be written before it
// does its work, which may take minutes.
func reserveJSON(c *cobra.Command) {
	flag, inner := c.Flags().Lookup("json"), c.RunE
	if flag == nil || flag.Value.Type() != "string" || inner == nil {
		return
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		release, err := reserve(flag.Value.String())
		if err != nil {
			return err
		}
		err = inner(c, args)
		release(err)
		return err
	}
}

// reserve makes sure that a file can be written. What it makes for that, release takes away if
// nothing was written to it, or not all.
func reserve(name string) (release func(error), err error) {
	if name == "" {
		return func(error) {}, nil
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	made := err == nil
	if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(name, os.O_WRONLY, 0)
	}
	if err != nil {
		return nil, err
	}
	release = func(err error) {
		var failed *fs.PathError
		info, statErr := os.Stat(name)
		partial := errors.As(err, &failed) && failed.Path == name
		if made && statErr == nil && (info.Size() == 0 || partial) {
			_ = os.Remove(name)
		}
	}
	return release, f.Close()
}
