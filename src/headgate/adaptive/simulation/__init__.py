"""Simulates limiters in front of a server, in virtual time and without randomness beyond a seed.

case        what to simulate: server, load, limiters
servers     how long calls take when several are in flight
limiters    no limit, bulkhead, rate, breaker, and the adaptive ones, behind one face
run         one limiter, one seed: events in their order
measures    what is counted for each stage
compare     all limiters and seeds of a case, as a document
"""
