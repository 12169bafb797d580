"""Limiters that follow a rulebook.

rule_limiter     the verbs of RuleLimiter and AsyncRuleLimiter
rulebook_follower
                 the rulebook that both decide by, and what a call is charged by it
call_plan        a compiled rulebook: the charges of a call, the order in which they are decided, the decision
repeated_calls   a fast path for calls with the attributes of an earlier one
check_together   several calls decided as one
rule_decision    the decision: the rule that decided, the verdict of each rule, the shadow verdicts
stored_decision  receipts, from which another process restores a decision
adaptive_rules   the adaptive limits of rules, by key; calls in flight, and how they end
adaptive_agreement
                 exchanges them with other processes through Redis
held_slots       renews and releases the slots of a decision
open_rulebook    loads a rulebook from code, a file or a server, and watches it
split_limits     the share of a split limit for each process, and limits that cannot be split
paused_keys      finds the key of a rule to pause; waits for a turn while keys can be paused
override_checks  refuses overrides that would have no effect
"""
