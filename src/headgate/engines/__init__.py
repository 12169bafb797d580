"""Engines make decisions atomic.

They do not know rules, HTTP or frameworks, and never will: a charge arrives complete. If you need more here, the
charge is missing a field.

Modules:
    port                     the protocols that every engine implements
    stack                    the innermost engine, and the layers around it
    async_stack, sync_stack  put the layers around an engine
    url                      opens an engine, with its layers, by URL
    url_schemes              the schemes of engine URLs
    url_options              the options of engine URLs
    memory                   decides in this process
    redis                    decides inside Redis and Valkey
    layers                   engines around an engine: denial cache, prefetch, fallback
    charge_options           what a rule passes to an engine in addition to its limit
    deadlines                deadlines of requests to an engine
    bound_charges            charges that are decided again and again, quicker
    overrides                limits of single keys
    quota_ledger             ledgers of the quota granted to each Envoy
    pending_cancellations    cancelled places in queues that could not be given back yet
    fork_reset               resets locks, threads and connections in a forked child
"""
