"""The rulebook: which limits a call meets, under which keys, and what is done when one refuses.

What a book says:
    rule                    a rule and a rulebook: values, made once, replaced whole
    condition, pattern      tests on attributes, joined by all, any and not; paths as templates, texts as globs
    network, keys           addresses; the dimensions of a key, and its text

What it means for a call:
    attributes              what is known of a call, in one normal form
    match                   which rules apply, with key, limits and cost; matching/ is how

How it is read and written:
    load, write, schema     reading/ is how; imports/ has other programs' configurations as rulebooks

How it stays up to date:
    living/                 editions, sources, the watch, the last good book on disk

A room of values and pure functions, but for living/. It decides nothing: attributes come in, matches go out, and
an engine is asked elsewhere.
"""
