"""Rulebooks: which limits apply to a call, under which keys, and how a refusal is answered.

The rules:
    rule                    a rule and a rulebook: immutable values
    condition, pattern      tests on attributes, joined by all, any and not; path templates and globs
    ip_networks, keys       client addresses; the dimensions of a key, and its text

Matching a call:
    attributes              the attributes of a call, in one normal form
    match                   which rules apply, with key, limits and cost; matching/ has the parts

Reading and writing:
    load, serialization, json_schema    parsing/ has the parts
    find_rule               rules by name, attributes from a key text
    imports/                translates the configurations of other rate limiters

Keeping up to date:
    distribution/           published versions, sources, the watcher, the disk cache

Everything here is a value or a pure function, except in distribution/. Nothing here decides: attributes go in,
matches come out, and an engine decides elsewhere.
"""
