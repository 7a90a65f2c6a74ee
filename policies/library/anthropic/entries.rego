package warder.egress

import data.library.anthropic

# METADATA
# title: See which models Anthropic has
allow contains {"rule": "anthropic-models", "credential": "anthropic"} if anthropic.read

# METADATA
# title: Use the listed models of Anthropic, with tools of the caller alone
allow contains {"rule": "anthropic-use", "credential": "anthropic"} if anthropic.use
