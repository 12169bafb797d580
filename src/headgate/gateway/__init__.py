"""Prepares rulebooks for gateways in other languages: bundles, and the Lua library for nginx.

A gateway has no YAML, no time zones and no parser of limits. All that Python knows and Lua does not is worked out
here, once for each version of a rulebook, and written as JSON.

Modules:
    bundle              compiles a rulebook into a bundle
    nginx_conf          writes an nginx.conf for a rulebook
    nginx_init_check_conf    runs the init_by_lua code of an nginx.conf
    lua_library         finds and copies the Lua for nginx
    atomic_file         writes a file completely or not at all
"""
