"""One of several processes that agree on an adaptive limit: makes calls all the time, and reports its limit.

    python -m tests.enforcement.agreeing_process ENGINE LIMIT

It begins at LIMIT. Each line of its input is answered by a line of JSON:

    good, bad    from now on its calls succeed at once, or are all dropped
    limit        the limit, how often its own calls lowered it, and whether a call passes
"""

from __future__ import annotations

import json
import sys
import threading
import time

from headgate.enforcement.adaptive_rules import DROPPED, SUCCESS
from headgate.enforcement.rule_limiter import RuleLimiter
from headgate.observer import LimitChange, Observer

# Half a second settles each window; no answer of this process ever takes as long.
LIMIT = {"adaptive": "concurrency", "target": "p90 500ms", "between": [1, 40]}
RULES = {"rules": [{"name": "app", "limit": LIMIT, "where": "cluster"}]}


class LoweredLimits(Observer):
    """Counts how often what this process saw lowered its limit."""

    count = 0

    def limit_changed(self, change: LimitChange) -> None:
        self.count += change.reason == "above the target"


def main(engine: str, start: int) -> None:
    lowered, outcome, ends = LoweredLimits(), [SUCCESS], threading.Event()
    with RuleLimiter(RULES, engine, observers=[lowered]) as limiter:
        learned = limiter.adaptive.rules["app"].limiter("all")
        learned.go_on_from(start)

        def work() -> None:
            while not ends.is_set():
                decision = limiter.check({})
                if decision.allowed:
                    limiter.finish(decision, outcome[0])
                time.sleep(0.005)

        worker = threading.Thread(target=work)
        worker.start()
        for line in sys.stdin:
            if line.strip() in ("good", "bad"):
                outcome[0] = DROPPED if line.strip() == "bad" else SUCCESS
            passes = limiter.peek({}).allowed
            answer = {"limit": learned.limit, "lowered": lowered.count, "passes": passes}
            sys.stdout.write(f"{json.dumps(answer)}\n")
            sys.stdout.flush()
        ends.set()
        worker.join()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
