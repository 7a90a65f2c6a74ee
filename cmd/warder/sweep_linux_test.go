package main

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A process that lives on tries again what could not be taken back, until it is, and when
// there is more.
func TestWhatIsUnconfirmedIsTriedAgain_I7(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	more, calls := make(chan struct{}), make(chan int)
	n, ended := 0, make(chan struct{})
	go func() {
		defer close(ended)
		repeat(ctx, more, time.Millisecond, func() error {
			n++
			calls <- n
			if n < 3 {
				return errors.New("Vault is away")
			}
			return nil
		})
	}()
	for want := 1; want <= 3; want++ {
		if got := <-calls; got != want {
			t.Errorf("call %d, want %d", got, want)
		}
	}
	select {
	case <-calls:
		t.Error("it is done again although nothing is left")
	case <-time.After(50 * time.Millisecond):
	}
	more <- struct{}{}
	<-calls
	cancel()
	<-ended
}
