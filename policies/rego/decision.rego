# METADATA
# title: Composition of egress decisions
# description: |
#   Reads the entries that authors contribute to package warder.egress and
#   composes one decision. A deny wins over everything, an unapproved ask holds
#   the request, and only then does an allow let it through. Every entry is
#   checked key by key first: one malformed entry makes the decision a
#   policy-error, whatever the other entries say. Where the operator has set a
#   floor (package warder.floor, active), its deny and ask entries count as if
#   they were the authors', and a request must also be allowed there.
package warder

# METADATA
# title: The decision of one request or connection
# entrypoint: true
default decision := {
	"verdict": "deny",
	"reason": "policy-error",
	"rule": "",
	"rules": [],
	"credential": "",
	"limits": [],
	"message": "the policy could not judge this",
	"hint": "",
	"detail": "input.stage is neither request nor connection",
}

decision := request_decision if input.stage == "request"

decision := connection_decision if input.stage == "connection"

# ---- stage request ----

request_decision := error_decision(malformed_request) if {
	count(malformed_request) > 0
} else := {
	"verdict": "deny",
	"reason": "denied",
	"rule": min(deny_rules),
	"rules": sort(deny_rules),
	"credential": "",
	"limits": [],
	"message": text(denies, min(deny_rules), "message"),
	"hint": text(denies, min(deny_rules), "hint"),
} if {
	count(deny_rules) > 0
} else := {
	"verdict": "ask",
	"reason": "approval-pending",
	"rule": min(pending_rules),
	"rules": sort(pending_rules),
	"credential": "",
	"limits": [],
	"message": text(asks, min(pending_rules), "message"),
	"hint": "",
	"scope": text(asks, min(pending_rules), "scope"),
	"timeout": text(asks, min(pending_rules), "timeout"),
} if {
	count(pending_rules) > 0
} else := {
	"verdict": "deny",
	"reason": "no-rule",
	"rule": "",
	"rules": [],
	"credential": "",
	"limits": [],
	"message": "",
	"hint": "",
} if {
	count(allow_rules) == 0
} else := {
	"verdict": "deny",
	"reason": "no-rule",
	"rule": "",
	"rules": [],
	"credential": "",
	"limits": [],
	"message": "the operator's floor does not allow this",
	"hint": "",
} if {
	floored
	count(floor_allows) == 0
} else := {
	"verdict": "deny",
	"reason": "ambiguous-credential",
	"rule": min(allow_rules),
	"rules": sort(allow_rules),
	"credential": "",
	"limits": [],
	"message": sprintf("matching rules name more than one credential: %s", [concat(", ", sort(named_credentials))]),
	"hint": "",
} if {
	count(named_credentials) > 1
} else := {
	"verdict": "deny",
	"reason": "credential-binding",
	"rule": min(allow_rules),
	"rules": sort(allow_rules),
	"credential": "",
	"limits": [],
	"message": sprintf("credential %s is not offered to this run", [concat(", ", unoffered_credentials)]),
	"hint": "",
} if {
	count(unoffered_credentials) > 0
} else := {
	"verdict": "deny",
	"reason": "credential-binding",
	"rule": min(allow_rules),
	"rules": sort(allow_rules),
	"credential": "",
	"limits": [],
	"message": sprintf("the operator's floor does not allow credential %s here", [concat(", ", unpermitted_credentials)]),
	"hint": "",
} if {
	count(unpermitted_credentials) > 0
} else := {
	"verdict": "allow",
	"reason": "",
	"rule": min(allow_rules),
	"rules": sort(allow_rules),
	"credential": concat("", named_credentials),
	"limits": all_limits,
	"message": "",
	"hint": text(allows, min(allow_rules), "hint"),
	"encoded_slash": encoded_slash,
}

# ---- stage connection ----

connection_decision := error_decision(malformed_connection) if {
	count(malformed_connection) > 0
} else := connection_verdict("intercept", set()) if {
	count(deny_rules) > 0
} else := connection_verdict("passthrough", passthrough_rules) if {
	count(passthrough_rules) > 0
	floor_passes
} else := connection_verdict("tunnel", tunnel_rules) if {
	count(tunnel_rules) > 0
	floor_tunnels
} else := connection_verdict("intercept", set())

connection_verdict(verdict, names) := {
	"verdict": verdict,
	"reason": "",
	"rule": concat("", array.slice(sort(names), 0, 1)),
	"rules": sort(names),
	"credential": "",
	"limits": [],
	"message": "",
	"hint": "",
}

# ---- entries ----

allows := entries(data.warder.egress.allow)

denies contains entry if some entry in entries(data.warder.egress.deny)

denies contains entry if some entry in floor_denies

asks contains entry if some entry in entries(data.warder.egress.ask)

asks contains entry if some entry in floor_asks

# The argument of a function has no inferred type. Without this step a policy
# in which no entry has a key would make every mention of the key an error here.
entries(values) := {value | some value in values}

allow_rules := {entry.rule | some entry in allows}

deny_rules := {entry.rule | some entry in denies}

pending_rules := {entry.rule | some entry in asks; not entry.rule in input.approvals}

passthrough_rules := {entry.rule | some entry in entries(data.warder.egress.passthrough)}

tunnel_rules := {entry.rule | some entry in entries(data.warder.egress.tunnel)}

named_credentials := {entry.credential | some entry in allows}

unoffered_credentials := {name | some name in named_credentials; not name in input.credentials}

# Each limit carries the rule that set it, because that rule's traffic is what it counts.
all_limits := [object.union({"per": "run", "rule": entry.rule}, limit) |
	some entry in (allows | floor_allows)
	some limit in entry.limits
]

default encoded_slash := false

encoded_slash if {
	every entry in allows | floor_allows {
		entry.encoded_slash == true
	}
}

# ---- the operator's floor ----

default floored := false

floored if data.warder.floor.active

floor_allows contains entry if some entry in data.warder.floor.allow

floor_denies contains entry if some entry in data.warder.floor.deny

floor_asks contains entry if some entry in data.warder.floor.ask

floor_passes if not floored

floor_passes if count(data.warder.floor.passthrough) > 0

floor_tunnels if not floored

floor_tunnels if count(data.warder.floor.tunnel) > 0

# An entry of the floor that names a credential permits only that one.
unpermitted_credentials := {name |
	floored
	some name in named_credentials
	not permitted(name)
}

permitted(_) if {
	some entry in floor_allows
	not entry.credential
}

permitted(name) if {
	some entry in floor_allows
	entry.credential == name
}

# The text of the entries of one rule; the smallest, so that the answer is stable.
text(entries, rule, key) := concat("", array.slice(
	sort({entry[key] | some entry in entries; entry.rule == rule}),
	0, 1,
))

# ---- strict entries ----

error_decision(problems) := {
	"verdict": "deny",
	"reason": "policy-error",
	"rule": concat("", array.slice(sort({name | some problem in problems; name := problem.rule}), 0, 1)),
	"rules": sort({name | some problem in problems; name := problem.rule; name != ""}),
	"credential": "",
	"limits": [],
	"message": "the policy made a malformed entry",
	"hint": "",
	"detail": concat("; ", sort({problem.detail | some problem in problems})),
}

allow_keys := {
	"rule": "string",
	"credential": "string",
	"limits": "array",
	"encoded_slash": "boolean",
	"hint": "string",
}

deny_keys := {"rule": "string", "message": "string", "hint": "string"}

ask_keys := {"rule": "string", "message": "string", "scope": "string", "timeout": "string"}

bare_keys := {"rule": "string"}

limit_keys := {
	"requests": "number",
	"bytes_out": "number",
	"bytes_in": "number",
	"cost": "number",
	"per": "string",
}

malformed_request contains problem("allow", entry, allow_keys) if {
	some entry in data.warder.egress.allow
	not well_formed_allow(entry)
}

malformed_request contains problem("ask", entry, ask_keys) if {
	some entry in data.warder.egress.ask
	not well_formed_ask(entry)
}

malformed_request contains problem("deny", entry, deny_keys) if {
	some entry in data.warder.egress.deny
	not well_formed(entry, deny_keys)
}

malformed_request contains problem("allow", entry, allow_keys) if {
	some entry in floor_allows
	not well_formed_allow(entry)
}

malformed_request contains problem("ask", entry, ask_keys) if {
	some entry in floor_asks
	not well_formed_ask(entry)
}

malformed_request contains problem("deny", entry, deny_keys) if {
	some entry in floor_denies
	not well_formed(entry, deny_keys)
}

malformed_request contains not_a_set("allow") if {
	value := data.warder.egress.allow
	not is_set(value)
}

malformed_request contains not_a_set("ask") if {
	value := data.warder.egress.ask
	not is_set(value)
}

malformed_request contains not_a_set("deny") if {
	value := data.warder.egress.deny
	not is_set(value)
}

malformed_connection contains problem("deny", entry, deny_keys) if {
	some entry in data.warder.egress.deny
	not well_formed(entry, deny_keys)
}

malformed_connection contains problem("passthrough", entry, bare_keys) if {
	some entry in data.warder.egress.passthrough
	not well_formed(entry, bare_keys)
}

malformed_connection contains problem("tunnel", entry, bare_keys) if {
	some entry in data.warder.egress.tunnel
	not well_formed(entry, bare_keys)
}

malformed_connection contains problem("deny", entry, deny_keys) if {
	some entry in floor_denies
	not well_formed(entry, deny_keys)
}

malformed_connection contains problem("passthrough", entry, bare_keys) if {
	some entry in data.warder.floor.passthrough
	not well_formed(entry, bare_keys)
}

malformed_connection contains problem("tunnel", entry, bare_keys) if {
	some entry in data.warder.floor.tunnel
	not well_formed(entry, bare_keys)
}

malformed_connection contains not_a_set("deny") if {
	value := data.warder.egress.deny
	not is_set(value)
}

malformed_connection contains not_a_set("passthrough") if {
	value := data.warder.egress.passthrough
	not is_set(value)
}

malformed_connection contains not_a_set("tunnel") if {
	value := data.warder.egress.tunnel
	not is_set(value)
}

well_formed(entry, keys) if {
	is_object(entry)
	entry.rule != ""
	every key, value in entry {
		type_name(value) == keys[key]
	}
}

well_formed_allow(entry) if {
	well_formed(entry, allow_keys)
	object.get(entry, "credential", "-") != ""
	every limit in object.get(entry, "limits", []) {
		well_formed_limit(limit)
	}
}

well_formed_ask(entry) if {
	well_formed(entry, ask_keys)
	regex.match(`^(once|run|([0-9]+(\.[0-9]+)?(ms|s|m|h))+)$`, object.get(entry, "scope", "once"))
	regex.match(`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`, object.get(entry, "timeout", "1s"))
}

well_formed_limit(limit) if {
	is_object(limit)
	every key, value in limit {
		type_name(value) == limit_keys[key]
	}
	amounts := [amount | some key, amount in limit; key != "per"]
	count(amounts) > 0
	every amount in amounts {
		amount >= 1
		amount <= 9007199254740991
		floor(amount) == amount
	}
	object.get(limit, "per", "run") != ""
}

problem(kind, entry, keys) := {"kind": kind, "rule": entry.rule, "detail": detail} if {
	is_object(entry)
	is_string(entry.rule)
	unknown := object.keys(entry) - object.keys(keys)
	count(unknown) > 0
	detail := sprintf("%s entry of rule %q: unknown key %s", [kind, entry.rule, concat(", ", sort({sprintf("%v", [key]) | some key in unknown}))])
} else := {"kind": kind, "rule": entry.rule, "detail": detail} if {
	is_object(entry)
	is_string(entry.rule)
	wrong := {key | some key, value in entry; type_name(value) != keys[key]}
	detail := sprintf("%s entry of rule %q: wrong value of %s", [kind, entry.rule, key_list(wrong)])
} else := {
	"kind": kind,
	"rule": "",
	"detail": sprintf("%s entry is not an object with a rule name (%s)", [kind, type_name(entry)]),
}

key_list(keys) := concat(", ", sort(keys)) if count(keys) > 0

key_list(keys) := "a nested or constrained key" if count(keys) == 0

not_a_set(kind) := {
	"kind": kind,
	"rule": "",
	"detail": sprintf("%s is not a set of entries: write `%s contains {…} if …`", [kind, kind]),
}
