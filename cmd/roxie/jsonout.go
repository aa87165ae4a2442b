package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// jsonOutput is where a command with --json FILE writes its result for programs: nowhere, to a file,
// or to standard output, as "-", where nothing else is written then.
type jsonOutput struct {
	name   string
	stdout io.Writer
}

// declare makes the flag; what is what it writes.
func (j *jsonOutput) declare(fs *pflag.FlagSet, what string) {
	fs.Var(j, "json", "write "+what+" to this `file`; -: to standard output, and all else to standard error")
}

// Set takes the flag's value.
func (j *jsonOutput) Set(name string) error {
	if name == "" {
		return errors.New("say which file, or - for standard output")
	}
	j.name = name
	return nil
}

// String is the flag's value.
func (j *jsonOutput) String() string { return j.name }

// Type is the name of the flag's type.
func (*jsonOutput) Type() string { return "file" }

// write writes v where it belongs.
func (j *jsonOutput) write(v any) error {
	return j.writeBy(func(w io.Writer) error { return indentJSON(w, v) })
}

// writeBy writes what a function does, all of it or nothing, but for a full disk.
func (j *jsonOutput) writeBy(do func(io.Writer) error) error {
	if j.name == "" {
		return nil
	}
	var b bytes.Buffer
	if err := do(&b); err != nil {
		return err
	}
	if j.name == "-" {
		_, err := j.stdout.Write(b.Bytes())
		return err
	}
	return os.WriteFile(j.name, b.Bytes(), 0o666)
}

// indentJSON writes v for people to read too.
func indentJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// readyFiles makes a command with flags of files that it writes see to them before it does its work,
// which may take minutes: the file of --json can be written, or standard output is kept for it.
func readyFiles(c *cobra.Command) {
	inner := c.RunE
	if inner == nil {
		return
	}
	var out *jsonOutput
	if flag := c.Flags().Lookup("json"); flag != nil {
		out, _ = flag.Value.(*jsonOutput)
	}
	pcap := c.Flags().Lookup("pcap")
	if out == nil && pcap == nil {
		return
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if pcap != nil && pcap.Value.String() == "-" {
			return usagef("--pcap writes a file, not standard output; a FIFO (mkfifo) passes it on")
		}
		if out == nil || out.name == "" {
			return inner(c, args)
		}
		if out.name == "-" {
			out.stdout = c.OutOrStdout()
			c.SetOut(c.ErrOrStderr())
			return inner(c, args)
		}
		release, err := reserve(out.name)
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
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return func(error) {}, nil // a FIFO's reader would take that for the end
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
