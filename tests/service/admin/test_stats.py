"""The admin API's counts: of this process with memory://, of all workers with Redis."""

from typing import Any

import pytest

from tests.servers import RedisServer
from tests.service.admin.admin_harness import Operator, sentence

BOOK: dict[str, Any] = {
    "rules": [
        {"name": "login", "key": "user", "missing": "skip", "limit": "3/hour fixed", "candidate": "1/hour fixed"}
    ]
}


async def call(operator: Operator) -> None:
    for user in ("annabel", "annabel", "bob", "annabel", "annabel"):
        await operator.check(user=user)
    operator.counts.flush()


async def test_counts_of_this_process() -> None:
    async with Operator(BOOK) as operator:
        await call(operator)
        reply = await operator("GET", "/stats?seconds=60")
        assert reply.json["seconds"] == 60
        [login] = reply.json["rules"]
        assert (login["rule"], login["calls"], login["refused"], login["candidate_refused"]) == ("login", 5, 1, 3)
        keys = (await operator("GET", "/stats/login/keys?kind=candidate_refused&mask=true")).json["keys"]
        assert keys == [{"key": "user=an***", "calls": 3}]
        report = (await operator("GET", "/rules/login/report?hours=2")).json
        assert [row["kind"] for row in report["rows"]] == ["live", "candidate"]
        assert report["rows"][1]["safe"] == "not enough data"
        assert report["suffering"] == [{"key": "user=annabel", "calls": 3}]


async def test_counts_of_all_workers(redis_server: RedisServer) -> None:
    async with Operator(BOOK, engine=redis_server.url) as one, Operator(BOOK, engine=redis_server.url) as other:
        await call(one)
        await call(other)
        [login] = (await one("GET", "/stats")).json["rules"]
        assert login["calls"] == 10
        assert (await other("GET", "/stats?rule=nobody")).json["rules"] == []
        report = (await other("GET", "/rules/login/report?max_refused=0.5")).json
        assert (report["max_refused"], report["rows"][1]["keys"]) == (0.5, 2)


async def test_a_rule_that_was_not_called_has_no_report() -> None:
    async with Operator(BOOK) as operator:
        reply = await operator("GET", "/rules/login/report")
        assert (reply.status, sentence(reply)) == (404, '"login" was not called in this time.')


@pytest.mark.parametrize(
    "target",
    [
        *(
            "/stats?seconds=0",
            "/stats?minutes=1501",
            "/stats?seconds=5&minutes=5",
            "/stats/login/keys?mask=perhaps",
        ),
        *("/stats/login/keys?kind=allowed", "/rules/login/report?hours=26", "/rules/login/report?max_refused=2"),
    ],
)
async def test_a_wrong_parameter_is_a_400_with_a_sentence(target: str) -> None:
    async with Operator(BOOK) as operator:
        reply = await operator("GET", target)
        assert (reply.status, sentence(reply)[-1]) == (400, ".")
