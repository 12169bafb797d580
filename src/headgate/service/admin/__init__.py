"""Operators' HTTP, on an address of its own.

app       who is let in, how often and with how much; statuses
routes    which path and method is which verb; openapi is made of it
desk      the verbs: books, on rulebooks and what was published; counts, on keys and overrides; lines, to engines
schema    what is accepted and answered, as JSON
journal   every change is a line in the log: who, what, from where
"""

from headgate.service.admin.app import Admin

__all__ = ["Admin"]
