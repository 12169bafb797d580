"""Response headers and bodies for decisions, and the client's IP address. Needs no framework and no socket.

Modules:
    headers         header fields of a decision
    refusal_body    the response to a refused call
    upstream_limits reads the rate limit fields of somebody else's responses
    client_ip       the client's address behind trusted proxies
"""
