"""Limits that follow the service: computed from response times and drops, instead of set by somebody.

An algorithm computes a number and is pure: `update(state, window) -> (limit, state, reason)`. A gate counts the
calls in flight, enforces the number and gathers windows. The limiter adds a clock, a lock, and the public
verbs.

    adaptive_concurrency, adaptive_concurrency_state    the default algorithm, AdaptiveConcurrency
    offered_load   what comes, in what the service can do: tells bursts of a healthy load from an overload
    aimd, vegas, gradient2    Netflix's algorithms, to compare and to move from
    target_rate, rate_gate    a rate that holds the P90 or P99 of response times; enforces it
    target_concurrency    calls in flight that hold the P90 or P99 of response times
    window         what algorithms learn from; checks of settings
    gate           counts calls in flight, enforces the limit, gathers windows
    waiting_gate   the same for clients: calls wait, first come, first served, until there is room
    priority       refuses the least important calls first; a short queue
    overload_signals    CPU usage and event-loop lag, which lower the limit beside response times
    adaptive_limit    the adaptive limit of a rule, as a value; prediction says what it would do
    carried_state     what is kept of the state when settings or the limit change
    agreement      one limit for several processes: the median of what each has learned
    limiter, guard, call_in_flight    AdaptiveLimiter, and its guards around blocks and functions
    simulation     simulated servers and loads, in virtual time
"""
