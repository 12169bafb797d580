"""A flash sale at two real nginx: `make demo-gateway`, and a test of the whole gateway (tests/nginx/test_demo.py).

shop_servers    starts Redis, a backend and two nginx
flash_sale      sends the requests of the sale, and counts what happened
log_counts      counts the access logs
expectations    checks the results
text_report     prints them
shop.yaml       the rulebook; buyers.lua makes the buyers' requests for wrk
"""
