// Package image turns an image reference into a folder that can be the root file
// system of a sandbox: fetched, verified, unpacked without root, and cached.
//
// Sources: a registry (OCI distribution specification), an OCI image layout as
// a folder or a tar archive, the archive that `docker save` writes, and a plain
// folder, which is used where it is.
//
// Invariants:
//   - Bytes are believed only after their digest: manifest, configuration, each
//     layer as it was stored (OCI digest) and as it is unpacked (OCI diff id).
//   - Unpacking writes inside one os.Root. No name, link or hard link leads out
//     of it; nothing is ever written through a link or into an existing file.
//   - A tree holds folders, regular files and symbolic links only: no device, no
//     set-id bit, nothing that others than its owner may write.
//   - What is in the cache is complete: it appears by a rename, under a lock that
//     other processes respect.
//   - Nothing of the environment has a say, such as a proxy variable. A stored login
//     is used from the one file that the store is given; no program is started for it.
package image
