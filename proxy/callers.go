package proxy

import (
	"context"
	"errors"
	"net"
	"net/http"
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
	for _, was := range before {
		if !l.stillKnows(was) {
			l.places.turnOut(was)
		}
	}
	l.endGuests(gone)
}

func (l *lobby) stillKnows(who Client) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.knows(who)
}

// turnAway refuses a caller whom the list has just lost.
func (l *lobby) turnAway(raw net.Conn) *refusal {
	l.places.unsettle(raw)
	return refuse(reasonUnauthenticated, "the proxy does not know this client any more")
}

// bound has a request end with its run, which is not that of the connection it came over.
func (x *exchange) bound(r *http.Request) (*http.Request, func()) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(x.run.ctx, cancel)
	return r.WithContext(ctx), func() { stop(); cancel() }
}
