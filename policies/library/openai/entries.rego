package warder.egress

import data.library.openai

# METADATA
# title: See which models OpenAI has
allow contains {"rule": "openai-models", "credential": "openai"} if openai.read

# METADATA
# title: Use the listed models of OpenAI, with tools of the caller alone
allow contains {"rule": "openai-use", "credential": "openai"} if openai.use
