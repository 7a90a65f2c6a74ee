package warder_test

import data.warder

offered := ["github-read", "other"]

request := {"stage": "request", "approvals": [], "credentials": offered}

connection := {"stage": "connection", "approvals": [], "credentials": offered}

read := {"rule": "read", "credential": "github-read", "hint": "reading is free"}

# ---- a request ----

test_nothing_is_no_rule if {
	d := warder.decision with input as request
	d.verdict == "deny"
	d.reason == "no-rule"
	d.rule == ""
}

test_other_stage_is_policy_error if {
	every stage in ["", "Request", 1, null] {
		d := warder.decision with input as {"stage": stage} with data.warder.egress.allow as {read}
		d.verdict == "deny"
		d.reason == "policy-error"
	}
}

test_no_input_is_policy_error if {
	d := warder.decision with data.warder.egress.allow as {read}
	d.reason == "policy-error"
}

test_allow if {
	d := warder.decision with input as request with data.warder.egress.allow as {read}
	d == {
		"verdict": "allow",
		"reason": "",
		"rule": "read",
		"rules": ["read"],
		"credential": "github-read",
		"limits": [],
		"message": "",
		"hint": "reading is free",
		"encoded_slash": false,
	}
}

test_smallest_name_is_the_rule if {
	allows := {{"rule": "c"}, {"rule": "b", "hint": "of b"}, {"rule": "d", "hint": "of d"}}
	d := warder.decision with input as request with data.warder.egress.allow as allows
	d.rule == "b"
	d.rules == ["b", "c", "d"]
	d.hint == "of b"
	d.credential == ""
}

test_deny_wins_over_everything if {
	denies := {{"rule": "z", "message": "of z"}, {"rule": "n", "message": "of n", "hint": "ask"}}
	d := warder.decision with input as request
		with data.warder.egress.allow as {read}
		with data.warder.egress.ask as {{"rule": "a"}}
		with data.warder.egress.deny as denies
	d.verdict == "deny"
	d.reason == "denied"
	d.rule == "n"
	d.rules == ["n", "z"]
	d.message == "of n"
	d.hint == "ask"
	d.credential == ""
}

test_ask_holds_until_approved if {
	asks := {{"rule": "risky", "message": "is risky", "scope": "1h30m", "timeout": "5m"}}
	held := warder.decision with input as request
		with data.warder.egress.allow as {read}
		with data.warder.egress.ask as asks
	held.verdict == "ask"
	held.reason == "approval-pending"
	held.rule == "risky"
	held.message == "is risky"
	held.scope == "1h30m"
	held.timeout == "5m"
	held.credential == ""

	approved := warder.decision with input as object.union(request, {"approvals": ["risky"]})
		with data.warder.egress.allow as {read}
		with data.warder.egress.ask as asks
	approved.verdict == "allow"
}

test_approved_ask_grants_nothing if {
	d := warder.decision with input as object.union(request, {"approvals": ["risky"]})
		with data.warder.egress.ask as {{"rule": "risky"}}
	d.reason == "no-rule"
}

test_one_of_two_asks_approved_still_holds if {
	d := warder.decision with input as object.union(request, {"approvals": ["a"]})
		with data.warder.egress.allow as {read}
		with data.warder.egress.ask as {{"rule": "a"}, {"rule": "b"}}
	d.verdict == "ask"
	d.rule == "b"
	d.rules == ["b"]
}

test_one_distinct_credential if {
	d := warder.decision with input as request
		with data.warder.egress.allow as {read, {"rule": "also", "credential": "github-read"}, {"rule": "plain"}}
	d.verdict == "allow"
	d.credential == "github-read"
}

test_two_credentials_are_ambiguous if {
	d := warder.decision with input as request
		with data.warder.egress.allow as {read, {"rule": "also", "credential": "other"}}
	d.verdict == "deny"
	d.reason == "ambiguous-credential"
	d.rule == "also"
	d.credential == ""
}

test_credential_that_is_not_offered if {
	d := warder.decision with input as object.union(request, {"credentials": ["other"]})
		with data.warder.egress.allow as {read}
	d.verdict == "deny"
	d.reason == "credential-binding"
	d.credential == ""
}

test_all_limits_apply if {
	allows := {
		{"rule": "a", "limits": [{"requests": 5, "per": "host"}, {"bytes_out": 10}]},
		{"rule": "b", "limits": [{"cost": 7, "bytes_in": 8, "per": "team-x"}]},
		{"rule": "c"},
	}
	d := warder.decision with input as request with data.warder.egress.allow as allows
	count(d.limits) == 3
	{limit | some limit in d.limits} == {
		{"requests": 5, "per": "host", "rule": "a"},
		{"bytes_out": 10, "per": "run", "rule": "a"},
		{"cost": 7, "bytes_in": 8, "per": "team-x", "rule": "b"},
	}
}

test_encoded_slash_only_when_all_say_so if {
	every case in [
		{"allows": {{"rule": "a", "encoded_slash": true}}, "want": true},
		{"allows": {{"rule": "a", "encoded_slash": true}, {"rule": "b", "encoded_slash": true}}, "want": true},
		{"allows": {{"rule": "a", "encoded_slash": true}, {"rule": "b"}}, "want": false},
		{"allows": {{"rule": "a", "encoded_slash": true}, {"rule": "b", "encoded_slash": false}}, "want": false},
	] {
		d := warder.decision with input as request with data.warder.egress.allow as case.allows
		d.verdict == "allow"
		d.encoded_slash == case.want
	}
}

# ---- strict entries ----

bad_allows := {
	"unknown key": {"rule": "x", "credentials": "github-read"},
	"no rule": {"credential": "github-read"},
	"empty rule": {"rule": ""},
	"rule of the wrong type": {"rule": 5},
	"credential of the wrong type": {"rule": "x", "credential": ["github-read"]},
	"empty credential": {"rule": "x", "credential": ""},
	"limits are no array": {"rule": "x", "limits": {"requests": 5}},
	"limit is no object": {"rule": "x", "limits": [5]},
	"limit without amount": {"rule": "x", "limits": [{"per": "run"}]},
	"limit of nothing": {"rule": "x", "limits": [{}]},
	"limit of zero": {"rule": "x", "limits": [{"requests": 0}]},
	"negative limit": {"rule": "x", "limits": [{"requests": -1}]},
	"broken limit": {"rule": "x", "limits": [{"requests": 1.5}]},
	"limit as text": {"rule": "x", "limits": [{"requests": "5"}]},
	"limit with unknown key": {"rule": "x", "limits": [{"request": 5}]},
	"limit per nothing": {"rule": "x", "limits": [{"requests": 5, "per": ""}]},
	"encoded_slash of the wrong type": {"rule": "x", "encoded_slash": "true"},
	"hint of the wrong type": {"rule": "x", "hint": null},
	"a message, which only deny and ask have": {"rule": "x", "message": "m"},
	"string": "x",
	"array": [],
	"empty object": {},
	"null": null,
	"number as key": {"rule": "x", 5: "y"},
}

test_malformed_allow_is_policy_error if {
	every bad in bad_allows {
		d := warder.decision with input as request with data.warder.egress.allow as {read, bad}
		d.verdict == "deny"
		d.reason == "policy-error"
		d.credential == ""
		d.detail != ""
	}
}

test_malformed_deny_is_policy_error if {
	every bad in [{"rule": "x", "credential": "c"}, {"message": "m"}, {"rule": "x", "message": 1}, "x", null] {
		d := warder.decision with input as request
			with data.warder.egress.allow as {read}
			with data.warder.egress.deny as {bad}
		d.reason == "policy-error"
	}
}

test_malformed_ask_is_policy_error if {
	every bad in [
		{"rule": "x", "hint": "h"}, {"message": "m"}, {"rule": "x", "scope": "for ever"},
		{"rule": "x", "scope": ""}, {"rule": "x", "timeout": "5"}, {"rule": "x", "timeout": 5},
	] {
		d := warder.decision with input as request
			with data.warder.egress.allow as {read}
			with data.warder.egress.ask as {bad}
		d.reason == "policy-error"
	}
}

test_malformed_wins_over_deny if {
	d := warder.decision with input as request
		with data.warder.egress.allow as {"x"}
		with data.warder.egress.deny as {{"rule": "d"}}
	d.reason == "policy-error"
}

test_what_is_not_a_set_is_policy_error if {
	every kind in ["allow", "deny", "ask"] {
		every value in [true, {"rule": "x"}, [{"rule": "x"}], "x", null] {
			d := warder.decision with input as request with data.warder.egress as {kind: value}
			d.reason == "policy-error"
			contains(d.detail, kind)
		}
	}
}

test_detail_names_key_and_rule if {
	d := warder.decision with input as request with data.warder.egress.allow as {{"rule": "x", "hnit": "h"}}
	d.rule == "x"
	d.rules == ["x"]
	contains(d.detail, "hnit")
	wrong := warder.decision with input as request with data.warder.egress.allow as {{"rule": "x", "hint": 1}}
	contains(wrong.detail, "wrong value of hint")
	nested := warder.decision with input as request with data.warder.egress.allow as {{"rule": "x", "limits": [1]}}
	contains(nested.detail, "nested")
}

# ---- a connection ----

test_connection_without_rule_is_intercepted if {
	d := warder.decision with input as connection
	d.verdict == "intercept"
	d.reason == ""
}

test_connection_ignores_allow_and_ask if {
	d := warder.decision with input as connection
		with data.warder.egress.allow as {read}
		with data.warder.egress.ask as {{"rule": "a"}}
	d.verdict == "intercept"
	d.credential == ""
}

test_passthrough_and_tunnel if {
	passed := warder.decision with input as connection
		with data.warder.egress.passthrough as {{"rule": "p"}}
		with data.warder.egress.tunnel as {{"rule": "t"}}
	passed.verdict == "passthrough"
	passed.rule == "p"
	tunnelled := warder.decision with input as connection with data.warder.egress.tunnel as {{"rule": "t"}, {"rule": "s"}}
	tunnelled.verdict == "tunnel"
	tunnelled.rule == "s"
	tunnelled.rules == ["s", "t"]
}

test_deny_prevents_passthrough_and_tunnel if {
	every kind in ["passthrough", "tunnel"] {
		d := warder.decision with input as connection
			with data.warder.egress as {kind: {{"rule": "p"}}, "deny": {{"rule": "d"}}}
		d.verdict == "intercept"
		d.rule == ""
	}
}

test_malformed_entry_at_connection_is_policy_error if {
	every kind in ["passthrough", "tunnel", "deny"] {
		d := warder.decision with input as connection
			with data.warder.egress as {kind: {{"rule": "p", "credential": "c"}}}
		d.verdict == "deny"
		d.reason == "policy-error"

		e := warder.decision with input as connection with data.warder.egress as {kind: true}
		e.reason == "policy-error"
	}
}

test_passthrough_and_tunnel_allow_no_request if {
	d := warder.decision with input as request
		with data.warder.egress as {"passthrough": {{"rule": "p"}}, "tunnel": {{"rule": "t"}}}
	d.reason == "no-rule"
}

# ---- the operator's floor ----

floored(entries) := object.union({"active": true, "allow": set(), "deny": set(), "ask": set(), "passthrough": set(), "tunnel": set()}, entries)

any_floor := floored({"allow": {{"rule": "ceiling"}}})

test_floor_is_a_ceiling if {
	d := warder.decision with input as request with data.warder.egress.allow as {read} with data.warder.floor as floored({})
	d.verdict == "deny"
	d.reason == "no-rule"
	contains(d.message, "floor")

	under := warder.decision with input as request with data.warder.egress.allow as {read} with data.warder.floor as any_floor
	under.verdict == "allow"
	under.rule == "read"
	under.rules == ["read"]
	under.credential == "github-read"
}

test_floor_grants_nothing if {
	d := warder.decision with input as request with data.warder.floor as any_floor
	d.verdict == "deny"
	d.reason == "no-rule"
	d.message == ""
}

test_floor_denies if {
	floor := floored({"allow": {{"rule": "ceiling"}}, "deny": {{"rule": "floor-no", "message": "never", "hint": "ask the operator"}}})
	d := warder.decision with input as request with data.warder.egress.allow as {read} with data.warder.floor as floor
	d.reason == "denied"
	d.rule == "floor-no"
	d.message == "never"
	d.hint == "ask the operator"
}

test_floor_asks if {
	floor := floored({"allow": {{"rule": "ceiling"}}, "ask": {{"rule": "floor-ask", "scope": "run"}}})
	d := warder.decision with input as request with data.warder.egress.allow as {read} with data.warder.floor as floor
	d.verdict == "ask"
	d.rule == "floor-ask"
	d.scope == "run"

	approved := object.union(request, {"approvals": ["floor-ask"]})
	after := warder.decision with input as approved with data.warder.egress.allow as {read} with data.warder.floor as floor
	after.verdict == "allow"
}

test_floor_permits_credentials if {
	one := floored({"allow": {{"rule": "ceiling", "credential": "other"}}})
	d := warder.decision with input as request with data.warder.egress.allow as {read} with data.warder.floor as one
	d.reason == "credential-binding"
	contains(d.message, "floor")
	d.credential == ""

	without := warder.decision with input as request with data.warder.egress.allow as {{"rule": "x"}} with data.warder.floor as one
	without.verdict == "allow"
	without.credential == ""

	two := floored({"allow": {{"rule": "a", "credential": "other"}, {"rule": "b", "credential": "github-read"}}})
	named := warder.decision with input as request with data.warder.egress.allow as {read} with data.warder.floor as two
	named.verdict == "allow"

	any := floored({"allow": {{"rule": "a", "credential": "other"}, {"rule": "b"}}})
	open := warder.decision with input as request with data.warder.egress.allow as {read} with data.warder.floor as any
	open.verdict == "allow"
}

test_limits_of_the_floor_apply if {
	floor := floored({"allow": {{"rule": "ceiling", "limits": [{"requests": 7}]}}})
	d := warder.decision with input as request with data.warder.egress.allow as {read} with data.warder.floor as floor
	d.limits == [{"requests": 7, "per": "run", "rule": "ceiling"}]
}

test_encoded_slash_needs_the_floor_too if {
	team := {{"rule": "x", "encoded_slash": true}}
	d := warder.decision with input as request with data.warder.egress.allow as team with data.warder.floor as any_floor
	d.encoded_slash == false

	both := floored({"allow": {{"rule": "ceiling", "encoded_slash": true}}})
	open := warder.decision with input as request with data.warder.egress.allow as team with data.warder.floor as both
	open.encoded_slash == true
}

test_malformed_floor_is_policy_error if {
	every floor in [
		floored({"allow": {{"rule": "c"}, {"rule": "x", "other": 1}}}),
		floored({"allow": {{"rule": "c"}}, "deny": {{"message": "no rule"}}}),
		floored({"allow": {{"rule": "c"}}, "ask": {{"rule": "x", "scope": "always"}}}),
	] {
		d := warder.decision with input as request with data.warder.egress.allow as {read} with data.warder.floor as floor
		d.reason == "policy-error"
	}
	every floor in [floored({"deny": {1}}), floored({"passthrough": {{"rule": ""}}}), floored({"tunnel": {{"rule": "t", "x": 1}}})] {
		d := warder.decision with input as connection with data.warder.floor as floor
		d.reason == "policy-error"
	}
}

test_floor_opens_connections if {
	pass := {{"rule": "p"}}
	shut := warder.decision with input as connection with data.warder.egress.passthrough as pass with data.warder.floor as any_floor
	shut.verdict == "intercept"

	floor := floored({"passthrough": {{"rule": "f"}}})
	open := warder.decision with input as connection with data.warder.egress.passthrough as pass with data.warder.floor as floor
	open.verdict == "passthrough"
	open.rule == "p"

	alone := warder.decision with input as connection with data.warder.floor as floor
	alone.verdict == "intercept"

	tunnelled := warder.decision with input as connection with data.warder.egress.tunnel as pass with data.warder.floor as floor
	tunnelled.verdict == "intercept"

	denied := floored({"passthrough": {{"rule": "f"}}, "deny": {{"rule": "d"}}})
	never := warder.decision with input as connection with data.warder.egress.passthrough as pass with data.warder.floor as denied
	never.verdict == "intercept"
}
