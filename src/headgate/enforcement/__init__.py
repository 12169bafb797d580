"""Limiters that follow a rulebook.

decision   what was decided: the rule that spoke, how each stands, what was decided beside
ruling     one rulebook at work: charges, the order in which they are asked, the decision
dividing   what a split limit is for each process, and which cannot be split
opening    where a rulebook comes from, and how it stays up to date
limiter    the verbs, in two spellings
"""
