"""Response headers and bodies for decisions, and the client's IP address. Needs no framework and no socket."""
