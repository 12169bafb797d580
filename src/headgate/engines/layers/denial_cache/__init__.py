"""The denial cache: repeats a refusal without a request to the engine, for at most a second.

engines         the layer, sync and async
denial_table    the cached refusals; pure
"""
