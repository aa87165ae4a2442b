package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/roxie-rdma/roxie/internal/qemu"
)

// flags are the command line.
type flags struct {
	roxie    string
	json     string
	only     string
	captures string
	full     bool
	list     bool
	shell    bool
	bench    bool
	resume   bool
	again    bool
	limit    time.Duration
	document string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	var f flags
	flag.StringVar(&f.roxie, "roxie", "bin/roxie", "the roxie `program` to test")
	flag.StringVar(&f.json, "json", "", "write the table as JSON to this `file`")
	flag.StringVar(&f.only, "only", "", "run only cells whose description matches this `regexp`")
	flag.StringVar(&f.captures, "captures", "", "keep the captures in this `directory`, of good cells too")
	flag.BoolVar(&f.full, "full", false, "run the cross product instead of a pairwise cover")
	flag.BoolVar(&f.resume, "resume", false, "keep what -json has already, and write it after each cell")
	flag.BoolVar(&f.again, "again", false, "with -resume, run again what failed")
	flag.DurationVar(&f.limit, "for", 0, "begin no cell after this `time`; 0: go on")
	flag.StringVar(&f.document, "doc", "", "write what -json has as this Markdown `file`, and run nothing")
	flag.BoolVar(&f.list, "list", false, "print the cells and do nothing else")
	flag.BoolVar(&f.shell, "shell", false, "boot the guest and run what standard input says")
	flag.BoolVar(&f.bench, "bench", false, "measure roxie and rxe inside the guest instead")
	flag.Parse()
	err := f.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(1)
	}
}

// cells are those that the flags ask for: of the matrix, then the scenarios.
func (f *flags) cells() ([]*scenario, error) {
	only, err := regexp.Compile(f.only)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	var chosen []Cell
	if f.full {
		chosen = full()
	} else {
		chosen = cover()
	}
	var cells []*scenario
	for _, c := range chosen {
		cells = append(cells, &scenario{Cell: c, play: stock(nil, nil), matrix: true})
	}
	cells = append(cells, scenarios()...)
	return slices.DeleteFunc(cells, func(s *scenario) bool { return !only.MatchString(s.String()) }), nil
}

func (f *flags) run(ctx context.Context) (err error) {
	cells, err := f.cells()
	if err != nil {
		return err
	}
	if f.list {
		for _, c := range cells {
			fmt.Println(c.Cell)
		}
		return nil
	}
	if len(cells) == 0 {
		return errors.New("no cell matches; -list prints them")
	}
	if f.document != "" {
		return writeDocument(f.document, f.json)
	}
	var rep Report
	if f.resume {
		if cells, err = rep.resume(f.json, cells, f.again, f.only == ""); err != nil {
			return err
		}
		if len(cells) == 0 {
			fmt.Println("all cells have run; remove", f.json, "to run them anew")
			return rep.writeJSON(f.json)
		}
	}
	if os.Getuid() != 0 {
		return errors.New("a guest needs root")
	}
	start := time.Now()
	log := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	img, err := qemu.Build(ctx, log)
	if err != nil {
		return err
	}
	g, err := qemu.Start(ctx, img, qemu.Config{Nice: priority, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	fmt.Printf("Linux %s with rdma-core %s and perftest %s answered after %.1f s\n", img.Release,
		img.Versions["ibverbs-utils"], img.Versions["perftest"], g.Booted.Seconds())
	switch {
	case f.shell:
		return shell(ctx, g)
	case f.bench:
		return bench(ctx, g, os.Stdout, f.json)
	}
	r := &rig{g: g, roxie: f.roxie, dir: f.captures}
	if r.dir == "" {
		// Captures are read, and removed, as they come, but for those of failed cells.
		if r.dir, err = os.MkdirTemp("", "roxie-interop-"); err != nil {
			return err
		}
		defer func() {
			if os.Remove(r.dir) != nil {
				fmt.Printf("captures of what failed are in %s\n", r.dir)
			}
		}()
	} else if err := os.MkdirAll(r.dir, 0o777); err != nil {
		return err
	}
	if err := r.warmUp(ctx); err != nil {
		return err
	}
	return f.report(ctx, r, cells, start, &rep)
}

// report runs the cells and reports.
func (f *flags) report(ctx context.Context, r *rig, cells []*scenario, start time.Time,
	rep *Report) (err error) {
	rep.Boot, rep.Kernel, rep.Versions = r.g.Booted.Seconds(), r.g.Image.Release, r.g.Image.Versions
	before, left := rep.Seconds, len(cells)
	p := &printer{out: os.Stdout}
	p.head()
	if f.limit > 0 {
		deadline := start.Add(f.limit)
		r.enough = func() bool { return time.Now().After(deadline) }
	}
	runAll(ctx, r, cells, f.captures != "", func(s *scenario, o *Outcome) {
		p.row(o)
		left--
		if s.matrix {
			rep.Cells = append(rep.Cells, *o)
		} else {
			rep.Scenarios = append(rep.Scenarios, *o)
		}
		if f.resume && err == nil {
			rep.Seconds = before + time.Since(start).Seconds()
			err = rep.writeJSON(f.json)
		}
	})
	rep.finish(os.Stdout, before+time.Since(start).Seconds())
	if left > 0 {
		fmt.Printf("%d are left\n", left)
	}
	if f.json != "" {
		err = errors.Join(err, rep.writeJSON(f.json))
	}
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case rep.Failed > 0:
		return fmt.Errorf("%d cells failed", rep.Failed)
	}
	return nil
}

// runAll runs cells one after the other, and looks at the captures of each while the next ones run.
// done gets each that is through, in order. When ctx ends, those that are not through are forgotten;
// when the guest dies, the cell that saw it is the last one.
func runAll(ctx context.Context, r *rig, cells []*scenario, keep bool, done func(*scenario, *Outcome)) {
	type job struct {
		*scenario
		Outcome
		looked chan struct{}
	}
	jobs := make(chan *job, len(cells))
	var finishing sync.WaitGroup
	finishing.Go(func() {
		for j := range jobs {
			if <-j.looked; ctx.Err() == nil {
				done(j.scenario, &j.Outcome)
			}
		}
	})
	defer finishing.Wait()
	defer close(jobs)
	one := make(chan struct{}, 1) // one at a time: the guest needs the other processor
	for _, s := range cells {
		if ctx.Err() != nil || r.enough != nil && r.enough() {
			return
		}
		j := &job{scenario: s, Outcome: Outcome{Cell: s.Cell}, looked: make(chan struct{})}
		start := time.Now()
		rec, note, err := r.play(ctx, s)
		j.Seconds, j.Note = time.Since(start).Seconds(), note
		gone := r.gone()
		if gone != nil {
			err = errors.Join(err, gone)
		}
		go func() {
			defer close(j.looked)
			one <- struct{}{}
			defer func() { <-one }()
			j.Outcome.judge(ctx, r.roxie, s, rec, err, keep)
		}()
		jobs <- j
		if gone != nil {
			return
		}
	}
}

// gone says why the guest is not there any more, if so.
func (r *rig) gone() error {
	select {
	case <-r.g.Exited():
		return fmt.Errorf("the guest is gone: %s", r.g.Console(20))
	default:
		return nil
	}
}

// judge looks at what a cell left, and removes the captures of a good one.
func (o *Outcome) judge(ctx context.Context, roxie string, s *scenario, rec *recorded, err error,
	keep bool) {
	if rec != nil && err == nil {
		o.findings, err = examine(ctx, roxie, rec, s)
		if err == nil && s.judge != nil {
			err = s.judge(&o.findings)
		}
	}
	o.OK = err == nil
	if err != nil {
		o.Reason = oneLine(err)
	}
	if rec != nil && !keep && o.OK {
		_ = os.Remove(rec.guest)
		_ = os.Remove(rec.roxie)
	}
}
