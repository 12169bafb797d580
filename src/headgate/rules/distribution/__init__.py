"""A rulebook that lives: published, watched, kept.

edition, editions   one published rulebook; all that are kept, and how one is published or rolled back
source              where a rulebook comes from while a program runs: a file, or what was pushed
watch               one thread that looks at a source and hands over what is new
keep                the last good rulebook on disk
"""
