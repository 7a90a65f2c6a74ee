package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the build (-X main.version=…).
var version = "dev"

type versionInfo struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	GVisor  string `json:"gvisor"`
	OPA     string `json:"opa"`
}

func newVersionCmd() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  warder version -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versionInfo{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
			if bi, ok := debug.ReadBuildInfo(); ok {
				for _, m := range bi.Deps {
					switch m.Path {
					case "gvisor.dev/gvisor":
						v.GVisor = m.Version
					case "github.com/open-policy-agent/opa":
						v.OPA = m.Version
					}
				}
			}
			switch output {
			case "json":
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			case "text":
				fmt.Fprintf(cmd.OutOrStdout(), "warder %s (%s, %s/%s, gVisor %s, OPA %s)\n", v.Version, v.Go, v.OS, v.Arch, v.GVisor, v.OPA)
				return nil
			}
			return fmt.Errorf("version: -o %q; hint: use text or json", output)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}
