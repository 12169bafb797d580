"""The check service: decides calls over HTTP and gRPC, for gateways that cannot decide by themselves.

It connects a limiter with other programs' protocols. It makes no decisions of its own.
"""
