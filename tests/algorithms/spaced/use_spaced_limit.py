"""Takes a spaced limit through a limiter, explain, headers, a share, Envoy's units, rules, overrides and nginx."""

import sys

from headgate import Limiter, ManualClock, parse
from headgate.engines.layers.fallback.limit_share import equal_share
from headgate.http.headers import headers
from headgate.service.envoy.response import rate
from tests.nginx.gateway_harness import NginxGateway
from tests.nginx.pure_modules_process import bundle_entry, start_twins

limit = parse("2/minute spaced")
lines = [repr(limit)]
lines.append(Limiter(limit).explain().splitlines()[2].strip())
lines.append(f"{equal_share(limit, 3)} {rate(limit)}")
for engine in ("memory://", sys.argv[1]):
    clock = ManualClock() if engine == "memory://" else None
    rules = {"rules": [{"name": "slow", "key": "user", "missing": "one", "limit": limit.text, "overrides": True}]}
    with Limiter.from_rules(rules, engine, clock=clock) as limiter:
        first, second = limiter.check({}), limiter.check({})
        lines.append(f"{first.allowed} {second.allowed} {second.rule} {headers(second)[0]}")
        limiter.overrides("slow").set("user=ann", "6/minute spaced")
        lines.append(f"{limiter.check({'user': 'ann'}).limit} {limiter.check({'user': 'ann'}).limit}")
lua = start_twins()
share_in_lua, share = (
    lua.call_driver("share", limit=bundle_entry(limit), count=3, rank=None),
    equal_share(limit, 3),
)
assert share is not None
lines.append(f"{share_in_lua['numbers']} {share_in_lua['window']} {[str(number) for number in share.args]}")
lua.close()
for redis in (None, sys.argv[1]):
    with NginxGateway({"rules": [{"name": "gate", "limit": "2/minute spaced"}]}, redis) as gate:
        passed, refused = gate.get("/"), gate.get("/")
        lines.append(f"{passed.status} {refused.status} {refused.headers['ratelimit-policy']}")
sys.stdout.write("\n".join(lines))
