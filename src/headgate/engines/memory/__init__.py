"""The in-memory engine: exact under threads, with tables that stay bounded.

engine          MemoryEngine: states by key, one lock, no threads of its own
async_engine    the same engine for an event loop
take_all        decides several charges together
fast_decide     the fast path of one charge
fast_take_all   the fast path of several charges that their limits alone decide
state_table     states by key; a state is dropped once it equals that of an unused key
pause_table     pauses by key, and when they are forgotten
slot_table      leases of slots, and the queue for them
key_scan        lists the counted keys
"""
