"""make demo-dashboard: a service that counts in memory, a simulated shop that calls it, and the dashboard.

The shop has a flash sale: customers look around, log in, search and buy; now and then everybody comes at once, and
a few programs never stop clicking. It runs until Ctrl-C.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import time

RULEBOOK = """\
# The rules of the demo shop. Change them and look at the preview: nothing happens before you publish.
name: shop
defaults:
  overrides: true
  missing: skip
rules:
  - name: login
    when: {method: POST, path: /login}
    key: address
    limit: 5/minute

  - name: buy
    when: {method: POST, path: /buy}
    key: user
    limit: 2/s burst 5
    candidate: 1/s burst 3    # would this be enough?

  - name: search
    when: {path: /search}
    key: address
    limit: 3/s burst 10
    mode: shadow              # looks, and refuses nobody yet

  - name: checkout
    when: {path: /checkout}
    limit: 12/s queue 20      # one after the other: the payment service is slow

  - name: everybody
    key: address
    limit: 20/s burst 60
"""
CUSTOMERS = 120
BOTS = ("203.0.113.7", "203.0.113.99", "198.51.100.23")
RUSH_EVERY_S, RUSH_S = 45.0, 12.0
CALM, RUSH = 30.0, 170.0  # calls a second


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=math.inf, help="ends after so long")
    parser.add_argument("--token", default=secrets.token_urlsafe(18), help="the operators' token")
    parser.add_argument("--admin", default=f"127.0.0.1:{free_port()}", help="the address of the page")
    args = parser.parse_args()
    api = f"127.0.0.1:{free_port()}"
    words = ["serve", "--http", api, "--grpc", "off", "--admin", args.admin, "--log-level", "warning"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    service = subprocess.Popen(
        [sys.executable, "-m", "headgate", *words],
        env=environment | {"HEADGATE_ADMIN_TOKEN": args.token},
        stdout=subprocess.DEVNULL,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        wait_until_ready(args.admin, args.token)
        publish(args.admin, args.token)
        print(f"The dashboard   http://{args.admin}/\nThe token       {args.token}\nCtrl-C ends it.", flush=True)
        run_shop(api, args.seconds)
    except KeyboardInterrupt:
        print()
    finally:
        service.terminate()
        service.wait(20)
    return 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def send_request(address: str, method: str, path: str, token: str, body: bytes | None = None) -> int:
    connection = http.client.HTTPConnection(address, timeout=10)
    fields = {"Authorization": f"Bearer {token}", "X-Headgate-Author": "demo", "Content-Type": "application/yaml"}
    try:
        connection.request(method, path, body, fields)
        return connection.getresponse().status
    finally:
        connection.close()


def wait_until_ready(address: str, token: str) -> None:
    for _ in range(200):
        try:
            if send_request(address, "GET", "/status", token) == 200:
                return
        except OSError:
            pass
        time.sleep(0.15)
    raise SystemExit("The service did not start; its messages are above.")


def publish(address: str, token: str) -> None:
    status = send_request(address, "PUT", "/rules?note=the%20rules%20of%20the%20shop", token, RULEBOOK.encode())
    if status != 200:
        raise SystemExit(f"The rulebook of the shop was not published: {status}.")


def run_shop(address: str, seconds: float) -> None:
    """Sends the calls of the shop's customers, at a rate that changes as in a sale."""
    chance = random.Random(7)
    connection = http.client.HTTPConnection(address, timeout=10)
    began = time.monotonic()
    due = began
    while (now := time.monotonic()) - began < seconds:
        if now < due:
            time.sleep(due - now)
        in_rush = (now - began) % RUSH_EVERY_S > RUSH_EVERY_S - RUSH_S
        due = max(due, now - 0.5) + chance.expovariate(RUSH if in_rush else CALM)
        body = json.dumps({"attributes": customer_call(chance, in_rush)}).encode()
        connection.request("POST", "/v1/check", body, {"Content-Type": "application/json"})
        connection.getresponse().read()


def customer_call(chance: random.Random, in_rush: bool) -> dict[str, str]:
    """Returns the attributes of one call: of a bot, or of a customer."""
    if chance.random() < 0.16:
        bot = chance.choice(BOTS)
        path = "/login" if bot == BOTS[0] else "/buy" if in_rush else "/search"
        method = "GET" if path == "/search" else "POST"
        return {"method": method, "path": path, "address": bot, "user": f"bot-{BOTS.index(bot)}"}
    number = int(chance.paretovariate(1.1)) % CUSTOMERS
    paths = ("/buy", "/checkout", "/", "/search") if in_rush else ("/", "/item/7", "/search", "/buy", "/login")
    path = chance.choice(paths)
    method = "POST" if path in ("/buy", "/checkout", "/login") else "GET"
    address = f"192.0.2.{number}"
    return {"method": method, "path": path, "address": address, "user": f"customer-{number}"}


if __name__ == "__main__":
    sys.exit(main())
