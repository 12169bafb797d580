"""The in-memory engine: exact under threads, bounded as it goes.

engine          MemoryEngine: states by key, one lock, no threads of its own
async_engine    the same for an event loop
take_all        several charges decided together
state_table     states by key, dropped once they say nothing
slot_table      leases of slots, and the queue for them
key_scan        lists what is counted
"""
