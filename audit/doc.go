// Package audit writes and proves Warder's log: one JSON object a line, each line
// chained to the one before it, in one stream per writing process.
//
// Writers call [Open] once, [Log.Append] for every record, and wait on the returned
// [Future] before they act on it: it resolves only when fdatasync(2) has returned.
// [Log.Close] seals the stream. Auditors call [Verify] and [Read], which need a copy
// of the directory and nothing else.
//
//	DIR/registry.jsonl           which streams exist; chained and signed
//	DIR/streams/<id>/<n>.jsonl   the records; n counts from 1
//	DIR/streams/<id>/checkpoint  the stream's latest signed checkpoint
//	DIR/keys/                    signing.key (private, 0600) and <name>.pub
//	DIR/tmp/                     files on their way to a stream; of no meaning
//
// Invariants:
//
//   - A future resolves to nil only for a line that a later Open finds again, whatever
//     dies in between (for AppendRelaxed: whatever but the kernel or the power).
//   - A failed write leaves nothing behind: the next batch continues the chain after
//     the last durable line.
//   - A reserved line has exactly one closing line, completed or interrupted, in the
//     same stream, before that stream is sealed.
//   - Only the holder of a stream's lock writes in the stream; only the holder of the
//     registry's lock writes in the registry. Lock order: registry, then stream; no
//     stream's lock is ever waited for.
//   - No string of a record holds a control or formatting character, invalid UTF-8, or
//     more than its cap; what was cut says so.
//   - Verify, Read and recovery find lines by themselves; nothing the writer holds in
//     memory is needed to judge what it wrote.
package audit
