package image

// Limits bound what an image may ask of this machine.
type Limits struct {
	Layers   int   // layers of one image
	Entries  int   // entries of all layers together
	Bytes    int64 // of all unpacked files together
	Blob     int64 // bytes of one layer as it is stored
	Document int64 // bytes of a manifest, an index or a configuration
	Path     int   // bytes of one name
	Depth    int   // folders above an entry
}

// DefaultLimits are far above what images of programs and libraries need.
func DefaultLimits() Limits {
	return Limits{
		Layers: 128, Entries: 2_000_000, Bytes: 64 << 30, Blob: 16 << 30,
		Document: 8 << 20, Path: 4096, Depth: 255,
	}
}
