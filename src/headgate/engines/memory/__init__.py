"""The in-memory engine: exact under threads, with tables that stay bounded.

engine          MemoryEngine: states by key, one lock, no threads of its own
async_engine    the same for an event loop
take_all        decides several charges together
state_table     states by key, dropped once they equal an unused key's
slot_table      leases of slots, and the queue for them
key_scan        lists the counted keys
"""
