"""An operator's actions, used by the command line and by the service's admin API.

publish_rulebook   validates, publishes and rolls back rulebooks, with the bundle and scripts for gateways
compare_rulebooks  compares two rulebooks by their meaning
find_counters      finds the counters of a rule and a key
manual_calls       takes, peeks, refunds and resets those counters
scan_counters      lists the counters by rule, and the keys that use most of their limit
audit_trail        keeps who changed what, when and why
edit_rule_mode     changes the mode of a rule in the text of a rulebook
append_rule        adds a rule to the text of a rulebook
rule_report        a rule against its shadow and its candidate
finding            the result of a check of `headgate doctor`
server_findings    judges what a server reported of itself
rulebook_findings  finds rules that decide nothing
shared_key_findings  finds clients that are counted as one

Actions of several steps are flows, or take an engine that blocks. Nothing here prints, logs or depends on HTTP.
"""
