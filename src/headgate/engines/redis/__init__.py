"""The Redis engine: the model as Lua inside the server, atomic, on the server's clock.

    script      which Lua a command needs, put together once
    naming      the key that a count is kept under
    wire        questions and answers as bytes, pure
    address     one server: where it is, how one is let in
    topology    which server answers for a key: the only one, a master that sentinels name, a cluster's node
    trouble     what can go wrong, as sentences
    flows       a question that may take several steps
    publish     scripts for gateways that talk to Redis themselves

    sync:       sync_connection   one open connection
                sync_pool         the connections to one server, shared by threads
                pool_state        who uses which of them and who waits, pure
                round_trip        several callers' questions, sent together
                blocking          the engine
    async:      connection        one open connection
                channel           the way to one server, shared by tasks
                awaiting          the engine

The two shells hold connections and nothing else; what is decided, and where, is in the files they share.
"""
