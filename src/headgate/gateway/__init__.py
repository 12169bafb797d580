"""What a gateway in another language needs of us: the plate of a rulebook, and where the Lua for nginx lies.

A gateway has no YAML, no time zones and no parser of limits. All that Python knows and Lua does not is worked out
here, once for each edition, and handed over as JSON.
"""
