package proxy

import (
	"errors"
	"slices"
)

// errUnknownCaller is that of a caller who was known a moment ago.
var errUnknownCaller = errors.New("proxy: the client is no longer known")

// known are the clients as they are now. Without any there is one caller, who is nobody.
func (l *lobby) known() []Client { return *l.clients.Load() }

// knows says whether who may still come in. The caller holds l.mu, so that nobody enters
// with what take has just ended.
func (l *lobby) knows(who Client) bool {
	list := l.known()
	if len(list) == 0 {
		return who == Client{}
	}
	return slices.Contains(list, who)
}

// take puts another list of clients in force, and ends the runs of those that are no longer
// in it as they were, with whatever they have open.
func (l *lobby) take(list []Client) {
	list = slices.Clone(list)
	if len(list) == 0 && !l.local {
		l.p.log.Error("proxy: the clients stay as they were: without any only a loopback address is served")
		return
	}
	gone := map[string]*guest{}
	l.mu.Lock()
	before := l.known()
	if len(before) == 0 {
		before = []Client{{}} // who is nobody
	}
	l.clients.Store(&list)
	for _, was := range before {
		if g := l.runs[was.Name]; g != nil && !l.knows(was) {
			gone[was.Name] = g
			delete(l.runs, was.Name) // who comes from now on under this name begins another
		}
	}
	l.mu.Unlock()
	for name, g := range gone {
		l.ending.Go(func() { // as in endIdle
			ctx, done := l.endTime()
			defer done()
			l.endGuest(ctx, name, g)
		})
	}
}
