package runner

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/idna"
)

// The pool of stand-in addresses: 198.18.0.0/15 (RFC 2544), never routed.
var poolPrefix = netip.MustParsePrefix("198.18.0.0/15")

// resolverAddr is where the sandbox finds its resolver, on port 53.
const resolverAddr = "10.0.2.3"

// maxNames bounds the names one run may look up. A run that needs more is
// answered SERVFAIL, and the refusal is counted.
const maxNames = 16384

// dnsTTL is the lifetime of an answer in seconds. A name keeps its address for
// the whole run, so a client may cache it as long as it likes.
const dnsTTL = 60

var errTableFull = errors.New("runner: name table is full")

// names maps a name to one pool address and back. An address is never re-used
// in a run, so an address that a program kept still means the same name.
type names struct {
	mu     sync.Mutex
	byName map[string]netip.Addr
	byAddr map[netip.Addr]string
	limit  int
	full   uint64 // look-ups refused because the table was full
}

func newNames(limit int) *names {
	return &names{byName: map[string]netip.Addr{}, byAddr: map[netip.Addr]string{}, limit: limit}
}

// assign returns the address that stands for name, which must be canonical.
func (n *names) assign(name string) (netip.Addr, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a, ok := n.byName[name]; ok {
		return a, nil
	}
	if len(n.byName) >= n.limit {
		n.full++
		return netip.Addr{}, errTableFull
	}
	base := poolPrefix.Addr().As4()
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(base[:])+uint32(len(n.byName))+1)
	a := netip.AddrFrom4(b)
	n.byName[name], n.byAddr[a] = a, name
	return a, nil
}

// lookup returns the name that a pool address stands for.
func (n *names) lookup(a netip.Addr) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.byAddr[a]
	return name, ok
}

func (n *names) refused() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.full
}

// canonicalName lower-cases a queried name, drops its final dot and converts it
// with the IDNA lookup profile. Names that no host can have are refused.
func canonicalName(q string) (string, bool) {
	name := strings.ToLower(strings.TrimSuffix(q, "."))
	if name == "" || len(name) > 253 {
		return "", false
	}
	for i := range len(name) {
		c := name[i]
		if c <= ' ' || c == 0x7f || c == '/' || c == '\\' || c == ':' || c == '@' || c == '%' {
			return "", false
		}
	}
	if ascii := isASCII(name); !ascii {
		var err error
		if name, err = idna.Lookup.ToASCII(name); err != nil {
			return "", false
		}
	}
	return name, true
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// dnsHeader is the length of a message's header in bytes (RFC 1035, 4.1.1).
const dnsHeader = 12

// answer builds the reply to one query, or nil when the bytes are not a query.
// A: an address of the pool. Every other type: NOERROR with no record, which
// also keeps HTTPS/SVCB (and so ECH) away. Nothing is ever forwarded. What cannot
// be read is told so, as long as it has an identity and is not itself an answer.
func (n *names) answer(query []byte) []byte {
	if len(query) < 3 || query[2]&0x80 != 0 { // the bit QR: never answer an answer
		return nil
	}
	var p dnsmessage.Parser
	h, err := p.Start(query)
	if err != nil {
		return refuseQuery(query, dnsmessage.RCodeFormatError)
	}
	if h.OpCode != 0 {
		return refuseQuery(query, dnsmessage.RCodeNotImplemented)
	}
	q, err := p.Question()
	// Exactly one question: RFC 9619.
	if err != nil || binary.BigEndian.Uint16(query[4:]) != 1 {
		return refuseQuery(query, dnsmessage.RCodeFormatError)
	}
	reply := dnsmessage.Header{ID: h.ID, Response: true, RecursionDesired: h.RecursionDesired, RecursionAvailable: true}
	var answerA *netip.Addr
	switch {
	case q.Class != dnsmessage.ClassINET:
		reply.RCode = dnsmessage.RCodeRefused
	case q.Type == dnsmessage.TypeA:
		name, ok := canonicalName(q.Name.String())
		if !ok {
			reply.RCode = dnsmessage.RCodeNameError
			break
		}
		a, err := n.assign(name)
		if err != nil {
			reply.RCode = dnsmessage.RCodeServerFailure
			break
		}
		answerA = &a
	}
	return packReply(reply, q, answerA)
}

// refuseQuery answers with the code alone, and with what the query has of a header:
// its identity, its kind and its wish for recursion.
func refuseQuery(query []byte, code dnsmessage.RCode) []byte {
	out := make([]byte, dnsHeader)
	copy(out, query[:2])
	out[2] = 0x80 | query[2]&0x79
	out[3] = 0x80 | byte(code)
	return out
}

func packReply(h dnsmessage.Header, q dnsmessage.Question, a *netip.Addr) []byte {
	b := dnsmessage.NewBuilder(make([]byte, 0, 512), h)
	b.EnableCompression()
	if b.StartQuestions() != nil || b.Question(q) != nil {
		return nil
	}
	if a != nil {
		rh := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: dnsTTL}
		if b.StartAnswers() != nil || b.AResource(rh, dnsmessage.AResource{A: a.As4()}) != nil {
			return nil
		}
	}
	out, err := b.Finish()
	if err != nil {
		return nil
	}
	return out
}
