package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// perftestFlags are the options of perftest 6.06's tests, without those of raw Ethernet, GPUs,
// encryption and other transports (perftest_parameters.c).
var perftestFlags = []string{
	"-a all", "-A atomic_type", "-b bidirectional", "-c connection", "-C report-cycles",
	"-d ib-dev", "-D duration", "-e events", "-f margin", "-F CPU-freq", "-g mcg",
	"-H report-histogrm", "-i ib-port", "-I inline_size", "-l post_list", "-L hop_limit", "-m mtu",
	"-M MGID", "-n iters", "-N noPeak", "-o outs", "-O dualport", "-p port", "-q qp", "-Q cq-mod",
	"-r rx-depth", "-R rdma_cm", "-s size", "-S sl", "-t tx-depth", "-T tos", "-u qp-timeout",
	"-U report-unsorted", "-w limit_bw", "-W report-counters", "-x gid-index", "-X vector",
	"-y limit_msgrate", "-z comm_rdma_cm",
	"burst_size", "cpu_util", "dlid", "dont_xchg_versions", "flow_label", "flows", "flows_burst",
	"inline_recv", "ipv6", "latency_gap", "mmap", "mmap-offset", "mr_per_qp", "odp", "out_json",
	"out_json_file", "output", "perform_warm_up", "pkey_index", "rate_limit", "rate_limit_type",
	"rate_units", "recv_post_list", "report-both", "report-per-port", "report_gbits", "retry_count",
	"run_infinitely", "source_ip", "use-srq", "use_hugepages", "use_old_post_send",
}

// flagTable says which of perftest's options roxie perf takes, as the README shows it.
func flagTable(c *cobra.Command) string {
	var works, idle, missing []string
	for _, f := range perftestFlags {
		short, long, hasShort := strings.Cut(f, " ")
		if !hasShort {
			short, long = "", f
		}
		name := "`" + short + "`"
		if short == "" {
			name = "`--" + long + "`"
		}
		flag := c.Flags().Lookup(long)
		switch {
		case flag == nil || "-"+flag.Shorthand != short && short != "":
			missing = append(missing, name)
		case strings.HasPrefix(flag.Usage, "accepted for perftest's sake"):
			idle = append(idle, name)
		default:
			works = append(works, name)
		}
	}
	var b strings.Builder
	b.WriteString("| perftest 6.06 | `roxie perf` |\n|---|---|\n")
	for _, row := range []struct {
		what  string
		flags []string
	}{{"works", works}, {"is taken, and changes nothing", idle}, {"is not there", missing}} {
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(row.flags, " "), row.what)
	}
	return b.String()
}

// Marks around the table in the README.
const (
	flagsBegin = "<!-- perftest's flags: TestPerftestFlags keeps them -->\n"
	flagsEnd   = "<!-- end of perftest's flags -->"
)

// TestPerftestFlags compares the README's table with the flags there are.
func TestPerftestFlags(t *testing.T) {
	var test *cobra.Command
	for _, c := range newPerfCommand().Commands() {
		if c.Name() == "write_bw" {
			test = c
		}
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(readme), flagsBegin)
	got, _, closed := strings.Cut(rest, flagsEnd)
	if !found || !closed {
		t.Fatalf("README.md has no table between %q and %q", flagsBegin, flagsEnd)
	}
	if want := flagTable(test); got != want {
		t.Errorf("README.md's table is\n%s\nwant\n%s", got, want)
	}
}
