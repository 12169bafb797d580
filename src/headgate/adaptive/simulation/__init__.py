"""Simulates limiters in front of a server, in virtual time. The same seed gives the same result.

case        what to simulate: server, load, limiters
servers     how long calls take when several are in flight
limiters    no limit, bulkhead, rate, breaker, and the adaptive ones, with the same methods
run         one limiter, one seed: events in their order
measures    what is counted for each stage
compare     all limiters and seeds of a case, as a document
"""
