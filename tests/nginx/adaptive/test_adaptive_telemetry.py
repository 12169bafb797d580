"""Changes of adaptive limits in nginx: in the metrics, by the names of Python, and in Redis, as `top` reads it."""

from headgate.telemetry.shared_counts import SharedCounts
from tests.nginx.adaptive.slow_upstream import SlowUpstream
from tests.nginx.gateway_harness import NginxGateway
from tests.servers import RedisServer
from tests.servers.wait_until import until

RULES = {"rules": [{"name": "app", "limit": {"adaptive": "concurrency", "between": [1, 50]}}]}


def test_changes_are_counted_and_shared(redis_server: RedisServer) -> None:
    with SlowUpstream() as upstream:
        pages = f"""
        location /up {{ proxy_pass http://127.0.0.1:{upstream.port}; }}
        location = /metrics {{
          access_by_lua_block {{ }} content_by_lua_block {{ require("resty.headgate").metrics() }}
        }}
        """
        with NginxGateway(RULES, redis_server.url, server=pages) as gate:
            until(lambda: None if gate.get("/up/page").status == 200 else "no", 60)
            for _ in range(60):
                gate.get("/up/status/503")
            metrics = gate.get("/metrics").body.decode().splitlines()
            assert 'headgate_adaptive_changes_total{rule="app",reason="dropped"} 1' in metrics
            assert 'headgate_adaptive_limit{rule="app"} 1' in metrics
            assert 'headgate_adaptive_in_flight{rule="app"} 0' in metrics
            shared = SharedCounts(redis_server.url)
            until(lambda: None if shared.limit_changes() else "no change is shared", 60)
            [recent] = shared.limit_changes()
            assert recent.change == ("app", "all", 20, 1, "dropped")
            assert recent.process.startswith("nginx@")
