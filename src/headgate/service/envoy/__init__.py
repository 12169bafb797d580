"""Envoy as it likes to be served: its messages, and the services that speak them.

    messages   what is on the wire, in a descriptor pool of our own
    asked      a request's descriptors as asks; across: what is looked at across all of them
    told       decisions as statuses, headers and metadata; plain: the commonest of them, quicker
    rls        the Rate Limit Service, v3, and the reference service's POST /json

Envoy's words (descriptor, domain, hits, quota) end here: behind this border they are attributes, costs and limits.
"""
