package warder.egress

import data.library.golang

# METADATA
# title: Fetch the listed Go modules and their checksums
allow contains {"rule": "golang-read"} if golang.read
