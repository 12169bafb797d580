"""Compiles a rulebook so that matching a call takes microseconds.

    rule_index          finds the rules that may apply to a call
    compile_condition   conditions as closures
    compile_rule        a rule as a closure: attributes and cost in, a Match out
    replaced_rules      rules that replace other rules
    used_attributes     the attributes that a rule uses
    explain_match       explains for every rule why it applies or not, without index and closures

match.py puts them together.
"""
