"""Engines make decisions atomic.

They do not know rules, HTTP or frameworks, and never will: a charge arrives complete. If you need more here, the
charge is missing a field.
"""
