package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// printTables writes the result for a person; the JSON has the same numbers.
func printTables(w io.Writer, r result) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer t.Flush()
	fmt.Fprintf(t, "%s/%s, %d CPUs, Linux %s, %s, medians of interleaved rounds\n\n", r.Machine.OS, r.Machine.Arch, r.Machine.CPUs, r.Machine.Kernel, r.Machine.Go)
	for _, cells := range [][]startCell{r.Start, r.Image} {
		if len(cells) == 0 {
			continue
		}
		fmt.Fprintln(t, "start to finish of "+trueCmd+"\twall ms\tfastest ms\tCPU ms\t")
		for _, c := range cells {
			fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t\n", c.Name, c.WallMS, c.MinMS, c.CPUMS)
		}
		fmt.Fprintln(t)
	}
	if len(r.Phases) > 0 {
		fmt.Fprintln(t, "a start, by phase\tms from the start\tms of it\t")
		before := 0.0
		for _, c := range r.Phases {
			fmt.Fprintf(t, "%s\t%.1f\t%.1f\t\n", c.Phase, c.MS, c.MS-before)
			before = c.MS
		}
		fmt.Fprintln(t)
	}
	if len(r.Alive) > 0 {
		fmt.Fprintln(t, "one more, beside\talive\twall ms\tCPU ms\tidle MiB of one\t")
		for _, c := range r.Alive {
			fmt.Fprintf(t, "%s\t%d\t%.1f\t%.1f\t%.1f\t\n", c.Name, c.Alive, c.WallMS, c.CPUMS, c.MiB)
		}
		fmt.Fprintln(t)
	}
	if len(r.Link) > 0 {
		fmt.Fprintln(t, "a client inside, over\tCPU s/GB\tCPU us/request\tGB/s\trequests/s\t")
		for _, c := range r.Link {
			fmt.Fprintf(t, "%s\t%.2f\t%.0f\t%.2f\t%.0f\t\n", c.Name, c.CPUSecGB, c.CPUUSEach, c.RateGB, c.RateSecond)
		}
		fmt.Fprintln(t)
	}
	if len(r.Proxy) > 0 {
		fmt.Fprintln(t, "the proxy\tload\tconnections\tper second\tCPU us each\tp50 us\tp99 us\tMB\trefused\t")
		for _, c := range r.Proxy {
			fmt.Fprintf(t, "%s\t%s\t%d\t%.0f\t%.1f\t%.0f\t%.0f\t%.0f\t%.0f\t\n", c.Name, c.Load, c.Concurrency, c.Rate, c.CPUUS, c.P50US, c.P99US, c.RSSMB, c.Refused)
		}
		fmt.Fprintln(t)
	}
	if len(r.Credentials) > 0 {
		fmt.Fprintln(t, "credentials\tbroker: kept us\tfetched us\tfirst of a run us\trequest without us\tkept adds us\tfetched adds us\tVault calls/1000 requests\t")
		for _, c := range r.Credentials {
			fmt.Fprintf(t, "%s\t%.1f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t\n", c.Kind, c.HitUS, c.MissUS, c.FirstUS, c.BareUS, c.ProxiedHitUS, c.ProxiedMissUS, c.Calls)
		}
		fmt.Fprintln(t)
	}
	if len(r.Audit) > 0 {
		fmt.Fprintln(t, "the log\twriters\trecords/s\tCPU us/record\tp50 us\tp99 us\t")
		for _, c := range r.Audit {
			fmt.Fprintf(t, "%s\t%d\t%.0f\t%.1f\t%.0f\t%.0f\t\n", c.Name, c.Writers, c.RPS, c.CPUUS, c.P50US, c.P99US)
		}
		fmt.Fprintln(t)
	}
	if len(r.Policy) > 0 {
		fmt.Fprintln(t, "a decision\tus\tfastest us\tallocations\t")
		for _, c := range r.Policy {
			fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.0f\t\n", c.Name, c.US, c.MinUS, c.Allocs)
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintln(t, "what is compared\tvalue\tgoal\t\t")
	for _, x := range r.Ratios {
		fmt.Fprintf(t, "%s\t%.2f\t%s\t%s\t\n", x.Name, x.Value, x.Goal, x.Met)
	}
}
