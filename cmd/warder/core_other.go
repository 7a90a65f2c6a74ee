//go:build !linux

package main

func noCore() {} // only what needs no secret runs here
