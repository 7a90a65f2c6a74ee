package warder.egress

import data.library.debian

# METADATA
# title: Install packages from Debian's archive
allow contains {"rule": "debian-read"} if debian.read
