"""Fuzzing: malformed HTTP, JSON and protobuf, by the thousand, against a running service.

    make fuzz                                     120,000 inputs of all kinds, and 100,000 sequences of frames
    python -m tests.fuzz --kind json --inputs 500 --seed 7 --engine redis
    python -m tests.fuzz --kind json --only 42 --seed 7          one input again

Input n of a kind under a seed is always the same bytes, so whatever fails is told with the command that repeats
it. `mutate` spoils what was valid. `frames` are HTTP/2 by hand. The kinds are `raw` (bytes on the HTTP port),
`documents` (JSON of every verb, and the reference service's), `gateways` (sub-requests) and `envoy` (RLS, RLQS).
`judge` runs the service and looks at it after every batch; `run` is the batches. `http2_sequences`
are frames for the state machine of the gRPC server, which needs no service.
"""
