"""The admin API: operators' HTTP, on an address of its own.

app                 authentication, rate limit, size limit; statuses
routes              maps path and method to a handler; openapi is made from it
find_handlers       finds the handlers that routes names
rulebook_handlers   rulebooks and versions
counter_handlers    keys and overrides
stats_handlers      counts by rule, hot keys, the report on a candidate
request             a request after all checks, and the errors of handlers
schema              the JSON of requests and responses
unlayered_engines   engines without caches, for an operator's reads
audit_log           one log line for every change: who, what, from where
"""

from headgate.service.admin.app import Admin

__all__ = ["Admin"]
