"""The denial cache: repeats a refusal without asking again, for at most a second.

engines         the layer, sync and async
denial_table    the refusals that are remembered; pure
"""
