"""Distributes rulebooks to running processes.

rulebook_version     one published rulebook
published_versions   all that are stored; publishes and rolls back
memory_versions      those of a service that counts in memory
source               where a rulebook comes from: a file, or the published versions on a server
watcher              a thread that polls a source and hands over new rulebooks
disk_cache           the last good rulebook on disk
envoy_descriptors    the files of envoyproxy/ratelimit as a source
"""
