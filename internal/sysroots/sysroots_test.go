package sysroots

import "testing"

func TestTheEnvironmentHasNoSay(t *testing.T) {
	before := Pool()
	t.Setenv("SSL_CERT_FILE", "/nonexistent")
	t.Setenv("SSL_CERT_DIR", "/nonexistent")
	if !Pool().Equal(before) {
		t.Error("SSL_CERT_FILE changed whom we trust")
	}
}
