"""A flash sale at two real nginx: `make demo-gateway`, and a test of the whole gateway (tests/nginx/test_demo.py).

shop_servers    the servers              sale    the play       tally   what the logs say
bars    what must hold           page    the screen     shop.yaml, buyers.lua   the rulebook, the buyers
"""
