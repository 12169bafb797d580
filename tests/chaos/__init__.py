"""Faults, shown and not claimed: real servers broken under load, and what the callers saw of it.

    make faults                 every fault, a row for each; about seven minutes
    make faults FAULT=kill      one of them

A fault is a story (one_server.py, several_servers.py): start servers, put a load on them, break something, mend
it. The load (load.py, callers.py) is several processes that ask for twice what the limits admit and write down
every call. From that, measures.py tells what the callers saw, bars.py whether it is good enough, and table.py
prints it. leaks.py breaks the link a hundred times and looks at what is left behind.
"""
