"""The Redis engine: the model as Lua inside the server, atomic, on the server's clock.

    script    which Lua a command needs, put together once
    naming    the key that a count is kept under
    wire      questions and answers as bytes, pure
    trouble   what can go wrong, as sentences
    flows     a question that may take several steps
    blocking  the sync shell           awaiting  the async shell

The two shells hold connections and nothing else; everything that could be wrong is in the files they share.
"""
