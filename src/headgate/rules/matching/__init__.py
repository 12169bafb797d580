"""How it is found out in microseconds which rules a call meets.

    index       which rules may concern a call at all
    plain       conditions as closures
    judging     what a rule whose condition holds makes of the call
    replacing   rules that take others out
    used        which attributes a rule looks at
    narrate     the same told for every rule, by the plain meaning of its conditions: why, and why not

match.py puts them together.
"""
