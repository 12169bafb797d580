"""Reads a project's files for `headgate init`: as text, without importing or running anything.

files             finds the files that are worth reading
application       FoundApplication, Route: what was found in Python files
python_names      resolves names in a Python file to the modules that they come from
find_applications finds applications of web frameworks, settings of Django, and Celery
find_routes       finds routes, and sorts out those that check passwords, make accounts or report health
find_services     finds Redis and Valkey in compose files, .env files and settings; and nginx
proposed_rules    writes a rulebook in shadow mode for what was found
proposed_lines    writes the lines to add to each application, as a unified diff
"""
