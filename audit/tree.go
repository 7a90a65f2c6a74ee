package audit

import (
	"crypto/sha256"
	"hash"

	"golang.org/x/mod/sumdb/tlog"
)

// tree is the right edge of an RFC 6962 Merkle tree: enough to add leaves and to
// compute the root, in memory that grows with the logarithm of the size.
type tree struct {
	size  uint64
	edge  []tlog.Hash // complete subtrees, largest first
	level []int       // their heights

	leaf   hash.Hash // scratch of hashLeaf; nil before its first use
	prefix [1]byte   // of a leaf: 0 (RFC 6962 §2.1)
	sum    []byte
}

// add appends the leaf whose data is line, the record's bytes without the newline.
func (t *tree) add(line []byte) { t.addHash(t.hashLeaf(line)) }

// hashLeaf is tlog.RecordHash without a new state for each. It leaves the tree as it is.
func (t *tree) hashLeaf(line []byte) tlog.Hash {
	if t.leaf == nil {
		t.leaf = sha256.New()
		t.sum = make([]byte, 0, tlog.HashSize)
	}
	t.leaf.Reset()
	t.leaf.Write(t.prefix[:])
	t.leaf.Write(line)
	t.sum = t.leaf.Sum(t.sum[:0])
	return tlog.Hash(t.sum)
}

func (t *tree) addHash(h tlog.Hash) {
	height := 0
	for n := len(t.edge); n > 0 && t.level[n-1] == height; n-- {
		h = tlog.NodeHash(t.edge[n-1], h)
		t.edge, t.level = t.edge[:n-1], t.level[:n-1]
		height++
	}
	t.edge, t.level = append(t.edge, h), append(t.level, height)
	t.size++
}

// root is tlog.TreeHash of the leaves so far.
func (t *tree) root() tlog.Hash {
	n := len(t.edge)
	if n == 0 {
		h, _ := tlog.TreeHash(0, nil) // of the empty tree; reads nothing, cannot fail
		return h
	}
	h := t.edge[n-1]
	for i := n - 2; i >= 0; i-- {
		h = tlog.NodeHash(t.edge[i], h)
	}
	return h
}
