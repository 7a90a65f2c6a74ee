package warder.egress

import data.library.github

# METADATA
# title: Read repositories of the listed owners through GitHub's REST API
allow contains {"rule": "github-rest-read", "credential": "github-api"} if github.rest_read

# METADATA
# title: Change what is listed in repositories of the listed owners
allow contains {"rule": "github-rest-write", "credential": "github-api"} if github.rest_write

# METADATA
# title: Workflows are changed by people
deny contains {"rule": "github-no-workflows", "message": "workflows are changed by people"} if github.workflow

# METADATA
# title: Ask the listed queries of GitHub's GraphQL API
allow contains {"rule": "github-graphql-read", "credential": "github-api"} if github.graphql_read

# METADATA
# title: Run the listed mutations of GitHub's GraphQL API
allow contains {"rule": "github-graphql-write", "credential": "github-api"} if github.graphql_write

# METADATA
# title: Clone repositories of the listed owners
allow contains {"rule": "github-clone", "credential": "github-git"} if github.clone

# METADATA
# title: Push to the listed references
allow contains {"rule": "github-push", "credential": "github-git"} if github.push
