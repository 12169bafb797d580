"""What a gateway in another language needs: the bundle of a rulebook, and the Lua library for nginx.

A gateway has no YAML, no time zones and no parser of limits. All that Python knows and Lua does not is worked out
here, once for each version of a rulebook, and written as JSON.
"""
