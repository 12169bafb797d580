"""The check service: what gateways ask that cannot decide by themselves.

It composes a limiter with the borders of others: HTTP and gRPC. It makes no decisions of its own.
"""
