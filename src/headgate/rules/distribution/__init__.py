"""How rulebooks reach running processes.

version, versions    one published rulebook; all that are kept, and how to publish and roll back
source               where a rulebook comes from: a file, or the published versions on a server
watcher              a thread that polls a source and hands over new rulebooks
disk_cache           the last good rulebook on disk
envoy_descriptors    the files of envoyproxy/ratelimit as a source
"""
