"""What an operator does, whoever asks for it: the command line at a prompt, or the service's admin address.

publishing   a rulebook is judged, published and rolled back, with what gateways need beside it
compare      two rulebooks, by what they mean
counts       which counts are meant by a rule and a key
verbs        those counts asked, given back, forgotten
standing     what is counted, and whose counts are fullest
overrides    whether a limit of a key's own would decide anything

What takes several steps is a flow, or is handed an engine that blocks. Nothing here prints, logs or knows HTTP.
"""
