"""A gRPC server for unary and streaming calls, on asyncio and HTTP/2, in the worker's event loop.

It is small because it does only what rate limit clients need, and strict because anybody may connect. Bytes go
in and bytes come out of connection.py, which knows neither sockets nor an event loop; the time is passed in.

    frames             HTTP/2 frames: their numbers, and those that we send
    header_blocks      header blocks of responses; which fields of requests are malformed
    request_heads      parses the head of a request, and caches it by its bytes
    frame_budget       bounds frames that cost work and bring none: resets, pings, settings
    flow_control       sends responses within the peer's windows
    streams            one stream of a connection, before it is known what it carries
    connection         the state machine of a connection: frames in, frames out
    methods            handlers of methods, and the statuses of calls
    messages           gRPC's message framing
    unary_calls        calls with one request and one response, without a task of their own
    streaming_calls    calls with several, in a task
    refused_calls      calls that are refused by their head
    server             accepts connections, closes idle ones, drains

docs/decisions/0024-grpc-server.md says why it is our own.
"""
