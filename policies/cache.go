package policies

import (
	"hash/maphash"
	"sync"
)

// Bounds of the decision cache. A shard that is full starts again empty.
const (
	cacheShards      = 64
	cacheShardSize   = 128
	maxCacheKey      = 1024 // bytes; requests with longer keys are judged afresh
	maxCacheDecision = 2048 // bytes of text in one decision
)

// decisionCache remembers decisions by all that the policy reads. It belongs
// to one engine, so a new policy starts with an empty one.
type decisionCache struct {
	seed   maphash.Seed
	keys   sync.Pool // of *[]byte, so that a hit allocates nothing
	shards [cacheShards]cacheShard
}

type cacheShard struct {
	mu        sync.RWMutex
	decisions map[string]*Decision // by cache key; never changed once here; guarded by mu
}

func newDecisionCache() *decisionCache {
	return &decisionCache{seed: maphash.MakeSeed(), keys: sync.Pool{New: func() any {
		space := make([]byte, 0, maxCacheKey)
		return &space
	}}}
}

func (c *decisionCache) shard(key []byte) *cacheShard {
	return &c.shards[maphash.Bytes(c.seed, key)%cacheShards]
}

func (c *decisionCache) get(key []byte) *Decision {
	s := c.shard(key)
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.decisions[string(key)]
}

// put keeps d unless it is a fault, which another try may not show, or large.
func (c *decisionCache) put(key []byte, d Decision) {
	if d.Reason == ReasonPolicyError || d.Reason == ReasonPolicyTimeout || d.textSize() > maxCacheDecision {
		return
	}
	s := c.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.decisions == nil || len(s.decisions) >= cacheShardSize {
		s.decisions = make(map[string]*Decision, cacheShardSize)
	}
	s.decisions[string(key)] = &d
}

// len counts what is kept.
func (c *decisionCache) len() int {
	n := 0
	for i := range c.shards {
		c.shards[i].mu.RLock()
		n += len(c.shards[i].decisions)
		c.shards[i].mu.RUnlock()
	}
	return n
}

func (d *Decision) textSize() int {
	n := len(d.Rule) + len(d.Credential) + len(d.Message) + len(d.Hint) + len(d.Scope) + len(d.Timeout) + len(d.Detail)
	for _, s := range d.Rules {
		n += len(s)
	}
	for _, l := range d.Limits {
		n += len(l.Per) + len(l.Rule) + 32
	}
	return n
}
