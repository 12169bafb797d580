"""The Redis engine: the model as Lua inside the server, atomic, on the server's clock.

    script_assembly      the Lua script of each command, assembled once
    keys                 the Redis keys of counts
    protocol             requests and replies as bytes, pure
    take_all             those of several charges
    take_together        the same, faster, for charges of one algorithm: in a cluster, and in calendar windows
    joint_takes          the same for calls on the same limits that travel together: one run decides them all
    server_address       one server: its host and port, TLS, login
    topology             which server owns a key: the only one, a master that sentinels name, a cluster's node
    errors               what can fail, and how to tell users
    redirects            requests that may take several steps
    cross_slot           charges in several slots of a cluster
    server_engine        what both engines share
    round_trip_metrics   how long round trips take, and how many requests share one
    published_scripts    scripts for gateways that talk to Redis themselves
    overrides, quota_ledger, rulebook_versions, recent_records_store, adaptive_limits_store, audit_stream,
    node_table, staged_plan, key_scan      other state on the server
    counts_store         counts of decisions, shared by all processes
    server_probe         probes a server for `headgate doctor`: version, rights, memory, clock, round trips

    sync:       sync_connection      one open connection
                sync_pool            the connections to one server, shared by threads
                pool_state           which caller uses which of them, and which wait, pure
                sync_batch           several callers' requests, sent together
                sync_late_replies    undoes replies to threads that have left
                sync_engine          the engine
    async:      async_connection     one open connection
                async_batcher        the requests to one server, shared by tasks
                async_batch          several tasks' requests, sent together
                async_single_take    the fast path of a take that comes alone
                async_late_replies   undoes replies to tasks that have left
                async_engine         the engine

The two engines hold connections and nothing else; the decisions, and where they are sent, are in the shared files.

Also:
    cancel_replies        reads the replies to cancelled reservations, pure
    silent_connections    keeps reading connections that fell silent
    signal_safe_thread    starts threads that no signal handler can break
"""
