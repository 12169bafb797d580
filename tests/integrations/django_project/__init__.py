"""A Django project with a view of every kind, served by real servers.

    project   the settings, the views and the URLs
    serving   serves it over WSGI and ASGI, and changes its settings

Importing `project` configures Django; `serving` imports it.
"""
