//go:build !linux

package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

const exitRunFailed = 125

func linuxOnly(use, short string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short + " (Linux only)", DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return &exitError{exitRunFailed, fmt.Errorf("%s: needs Linux, this is %s; hint: policy, audit and config work here", cmd.Name(), runtime.GOOS)}
		},
	}
}

func newRunCmd() *cobra.Command    { return linuxOnly("run", "Run a command in a fresh sandbox") }
func newProxyCmd() *cobra.Command  { return linuxOnly("proxy", "Serve the proxy on a TCP address") }
func newDemoCmd() *cobra.Command   { return linuxOnly("demo", "Show the whole of it on this machine") }
func newPsCmd() *cobra.Command     { return linuxOnly("ps", "List runs") }
func newRmCmd() *cobra.Command     { return linuxOnly("rm", "End runs") }
func newGcCmd() *cobra.Command     { return linuxOnly("gc", "Clean up after dead runs") }
func newRevokeCmd() *cobra.Command { return linuxOnly("revoke", "Stop and revoke credentials") }
func newDoctorCmd() *cobra.Command { return linuxOnly("doctor", "Check what a sandbox needs") }
