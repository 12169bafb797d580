"""Envoy's rate limit services: its messages, and the gRPC services that use them.

    messages   the protocol buffers, in a descriptor pool of our own
    request    parses a request's descriptors; cross_descriptor_options: options that look across all of them
    response   decisions as statuses, headers and metadata; fast_response: the commonest response, quicker
    cached_request   requests that come again, quicker
    rls        the Rate Limit Service, v3, and the reference service's POST /json
    rlqs       the Rate Limit Quota Service, v3
    services   all of them on one gRPC server

Envoy's words (descriptor, domain, hits, quota) end here: behind this border they are attributes, costs and limits.
"""
