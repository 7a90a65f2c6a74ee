package warder.egress

import data.library.npm

# METADATA
# title: Install packages from npm
allow contains {"rule": "npm-read", "encoded_slash": true} if npm.read

# METADATA
# title: Publish the listed packages to npm
allow contains {"rule": "npm-publish", "credential": "npm-publish", "encoded_slash": true} if npm.publish
