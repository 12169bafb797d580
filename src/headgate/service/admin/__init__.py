"""The admin API: operators' HTTP, on an address of its own.

app                 authentication, rate limit, size limit; statuses
routes              maps path and method to a handler; openapi is made from it
handlers            rule_handlers: rulebooks and versions; counter_handlers: keys and overrides; unlayered_engines
schema              the JSON of requests and responses
audit_log           one log line for every change: who, what, from where
"""

from headgate.service.admin.app import Admin

__all__ = ["Admin"]
