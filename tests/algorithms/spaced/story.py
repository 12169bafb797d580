"""Takes a spaced limit through a limiter, explain, headers, a share, Envoy's units and a rulebook."""

import sys

from headgate import Limiter, ManualClock, parse
from headgate.engines.layers.fallback.limit_share import equal_share
from headgate.http.headers import headers
from headgate.service.envoy.response import rate

limit = parse("2/minute spaced")
lines = [repr(limit)]
lines.append(Limiter(limit).explain().splitlines()[2].strip())
lines.append(f"{equal_share(limit, 3)} {rate(limit)}")
for engine in ("memory://", sys.argv[1]):
    clock = ManualClock() if engine == "memory://" else None
    rules = {"rules": [{"name": "slow", "limit": "2/minute spaced"}]}
    with Limiter.from_rules(rules, engine, clock=clock) as limiter:
        first, second = limiter.check({}), limiter.check({})
        lines.append(f"{first.allowed} {second.allowed} {second.rule} {headers(second)[0]}")
sys.stdout.write("\n".join(lines))
