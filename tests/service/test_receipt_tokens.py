"""Receipt tokens: who may refund, how much, how often, on real services; and that no bit can be changed."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from headgate.enforcement.stored_decision import ChargeReceipt
from headgate.service.receipt_tokens import InvalidReceipt, ReceiptNotUsable, ReceiptSigner
from tests.servers import RedisServer
from tests.servers.wait_until import until
from tests.service.service_harness import Service, ServiceReply

SECRET = "a secret of thirty-two characters"
KEYED = {"key": "user", "missing": "skip"}
BOOK = {
    "rules": [
        {"name": "slots", "when": {"path": "/export"}, **KEYED, "limit": "2 slots ttl 30s"},
        {"name": "bytes", "when": {"path": "/upload"}, **KEYED, "cost": "argument.n", "limit": "1000/day"},
        {"name": "calls", "when": {"path": ["/", "/upload"]}, **KEYED, "limit": "10/day"},
    ]
}
PART = ChargeReceipt("calls", None, "10/day", "calls", "ann", 1, 2**50, 2**40, 0, 7)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(BOOK) as running:
        yield running


def user() -> str:
    return secrets.token_hex(8)


def charged(service: Service, cost: int = 1, **attributes: Any) -> str:
    reply = service.post("check", attributes={"path": "/", **attributes}, cost=cost, receipt=True)
    assert reply.json["allowed"], reply
    return str(reply.json["receipt"])


def left(service: Service, who: str, path: str = "/") -> dict[str, int]:
    """Returns the remaining units of each rule."""
    reply = service.post("peek", attributes={"path": path, "user": who, "argument.n": 1}, verdicts=True)
    return {verdict["rule"]: verdict["remaining"] for verdict in reply.json["verdicts"]}


def detail(reply: ServiceReply) -> tuple[int, str]:
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json["status"] == reply.status
    return reply.status, reply.json["detail"]


@given(some.integers(0), some.integers(0, 7), some.lists(some.just(PART), max_size=3))
def test_a_receipt_that_was_changed_in_any_bit_is_refused(at: int, bit: int, parts: list[ChargeReceipt]) -> None:
    office = ReceiptSigner(SECRET)
    text = office.write(parts).encode()
    assert office.read(text.decode()).charges == parts
    at %= len(text)
    changed = text[:at] + bytes([text[at] ^ 1 << bit]) + text[at + 1 :]
    with pytest.raises(InvalidReceipt):
        office.read(changed.decode("latin-1"))


@given(some.text() | some.binary().map(bytes.hex))
def test_an_invalid_receipt_is_refused(text: str) -> None:
    with pytest.raises(InvalidReceipt, match="was not written by this service, or with another secret"):
        ReceiptSigner(SECRET).read(text)


@pytest.mark.parametrize("more", ["=", "A", "AA", "AAAA", "\n", " ", "!"])
def test_nothing_may_be_added(more: str) -> None:
    office = ReceiptSigner(SECRET)
    text = office.write([PART])
    for changed in (text + more, more + text, text[:-1]):
        with pytest.raises(InvalidReceipt):
            office.read(changed)


def test_each_receipt_is_another_and_another_secret_reads_none() -> None:
    assert ReceiptSigner(SECRET).write([PART]) != ReceiptSigner(SECRET).write([PART])
    ReceiptSigner(SECRET).read(ReceiptSigner(SECRET).write([PART]))
    for other in (ReceiptSigner(f"{SECRET}."), ReceiptSigner("")):
        with pytest.raises(InvalidReceipt):
            other.read(ReceiptSigner(SECRET).write([PART]))


@given(some.integers(0, 2**62), some.integers(0, 2**62))
def test_a_use_is_remembered_for_as_long_as_the_charge_matters(reset_us: int, delay_us: int) -> None:
    office = ReceiptSigner(SECRET)
    once = office.read(office.write([PART._replace(reset_after_us=reset_us, delay_us=delay_us)])).one_use_limit
    seconds = int(once.text.removeprefix("1/").removesuffix("s log"))
    assert seconds * 1_000_000 >= min(reset_us + delay_us, 68 * 365 * 86400 * 1_000_000)


def test_giving_back_works_once(service: Service) -> None:
    ann = user()
    receipt = charged(service, 4, user=ann)
    assert left(service, ann) == {"calls": 6}
    assert service.post("refund", receipt=receipt).json == {"done": True}
    assert left(service, ann) == {"calls": 10}
    for verb in ("refund", "settle", "cancel"):
        assert detail(service.post(verb, receipt=receipt)) == (409, "This receipt was redeemed before.")
    assert left(service, ann) == {"calls": 10}


def test_in_parts_each_part_has_a_receipt_of_the_rest(service: Service) -> None:
    ann = user()
    first = charged(service, 6, user=ann)
    second = service.post("refund", receipt=first, cost=2).json["receipt"]
    assert left(service, ann) == {"calls": 6}
    assert service.post("refund", receipt=first, cost=2).status == 409
    third = service.post("refund", receipt=second, cost=3).json["receipt"]
    assert left(service, ann) == {"calls": 9}
    assert service.post("refund", receipt=third, cost=3).json == {"done": True}  # one was left
    assert left(service, ann) == {"calls": 10}


def test_settling_keeps_what_was_used(service: Service) -> None:
    ann = user()
    assert service.post("settle", receipt=charged(service, 6, user=ann), cost=2).json == {"done": True}
    assert left(service, ann) == {"calls": 8}
    whole = charged(service, 3, user=ann)
    assert service.post("settle", receipt=whole).json == {"done": True}
    assert service.post("refund", receipt=whole).status == 409
    assert left(service, ann) == {"calls": 5}
    assert service.post("settle", receipt=charged(service, 3, user=ann), cost=0).json == {"done": True}
    assert left(service, ann) == {"calls": 5}


def test_settling_above_the_charge_charges_once(service: Service) -> None:
    ann = user()
    receipt = charged(service, 3, user=ann)
    assert service.post("settle", receipt=receipt, cost=8).json == {"done": True}
    assert left(service, ann) == {"calls": 2}
    for cost in (8, 9, 0, None):
        assert detail(service.post("settle", receipt=receipt, cost=cost)) == (
            409,
            "This receipt was redeemed before.",
        )
    assert left(service, ann) == {"calls": 2}
    assert service.post("settle", receipt=charged(service, 1, user=ann), cost=25).json == {"done": True}
    refused = service.check(path="/", user=ann)
    assert 2 * 86_400 * 0.9 < refused["retry_after"] < 2.4 * 86_400


def test_a_receipt_is_too_old_to_charge_more_once_its_use_may_be_forgotten() -> None:
    office = ReceiptSigner(SECRET)
    receipt = office.read(office.write([PART._replace(reset_after_us=0, delay_us=0)]))
    remembered_us = int(receipt.one_use_limit.text.removeprefix("1/").removesuffix("s log")) * 1_000_000
    assert remembered_us >= 1_000_000_000
    receipt.check_age(PART.at_us + remembered_us - 1_000_000)
    with pytest.raises(
        ReceiptNotUsable, match=r"is 1024 s old, and charges more only for 1024 s: charge the rest"
    ):
        receipt.check_age(PART.at_us + remembered_us)


def test_a_rule_that_states_its_cost_gets_that_back(service: Service) -> None:
    ann, bob = user(), user()
    receipt = charged(service, path="/upload", user=ann, **{"argument.n": 500})
    assert left(service, ann, "/upload") == {"bytes": 500, "calls": 9}
    assert service.post("refund", receipt=receipt).json == {"done": True}
    assert left(service, ann, "/upload") == {"bytes": 1000, "calls": 10}
    receipt = charged(service, path="/upload", user=bob, **{"argument.n": 500})
    status, why = detail(service.post("settle", receipt=receipt, cost=300))
    assert (status, '500 by "bytes" and 1 by "calls"' in why, "name the rule" in why) == (400, True, True)
    status, why = detail(service.post("settle", receipt=receipt, cost=300, rule="byte"))
    assert (status, why) == (409, 'The rule \'byte\' did not charge this call; "bytes" and "calls" did.')
    assert service.post("settle", receipt=receipt, cost=300, rule="bytes").status == 200
    assert left(service, bob, "/upload") == {"bytes": 700, "calls": 9}
    receipt = charged(service, path="/upload", user=bob, **{"argument.n": 100})
    assert service.post("settle", receipt=receipt, cost=650, rule="bytes").status == 200
    assert left(service, bob, "/upload") == {"bytes": 50, "calls": 8}


def test_a_place_is_given_back(service: Service) -> None:
    ann = user()
    charged(service, 10, user=ann)
    place = service.post("reserve", attributes={"path": "/", "user": ann}, cost=1).json
    assert place["allowed"]
    assert place["delay"] > 0
    assert not service.post("reserve", attributes={"path": "/", "user": ann}, timeout=0.5).json["allowed"]
    assert service.post("cancel", receipt=place["receipt"]).json == {"done": True}
    assert service.post("cancel", receipt=place["receipt"]).status == 409
    again = service.post("reserve", attributes={"path": "/", "user": ann}, cost=1).json
    assert abs(again["delay"] - place["delay"]) < 60


def test_slots_are_held_renewed_and_released(service: Service) -> None:
    ann = user()
    one, _ = charged(service, path="/export", user=ann), charged(service, path="/export", user=ann)
    refused = service.post("check", attributes={"path": "/export", "user": ann}, receipt=True).json
    assert (refused["allowed"], refused["rule"]) == (False, "slots")
    assert "receipt" not in refused
    assert service.post("renew", receipt=one).json == {"held": True, "expires_after": 30.0}
    for verb in ("refund", "settle"):
        assert detail(service.post(verb, receipt=one)) == (
            409,
            "This receipt only holds slots: release it, or cancel it.",
        )
    assert service.post("release", receipt=one).json == {"done": True, "held": True}
    assert service.post("renew", receipt=one).json == {"held": False, "expires_after": None}
    assert service.post("release", receipt=one).json == {"done": True, "held": False}
    assert left(service, ann, "/export") == {"slots": 1}
    counted = charged(service, user=ann)
    for verb in ("renew", "release"):
        sentence = detail(service.post(verb, receipt=counted))
        assert sentence == (409, "This receipt holds no slots: refund it, settle it or cancel it.")


def test_receipts_of_uncounted_calls_can_be_refunded(service: Service) -> None:
    for verb in ("refund", "settle", "cancel"):
        receipt = charged(service, 5, path="/free")
        assert service.post(verb, receipt=receipt).json == {"done": True}
        assert service.post(verb, receipt=receipt).status == 409
    assert service.post("settle", receipt=charged(service, path="/free"), cost=7).json == {"done": True}


def test_only_what_passed_together_has_receipts(service: Service) -> None:
    ann = user()
    one = {"attributes": {"path": "/", "user": ann}, "cost": 6, "receipt": True}
    more = {"attributes": {"path": "/", "user": user()}, "cost": 11, "receipt": True}
    reply = service.post("checks", checks=[one, more], together=True).json
    assert [answer["allowed"] for answer in reply["answers"]] == [True, False]  # by itself it would pass
    assert not reply["allowed"]
    assert not any("receipt" in answer for answer in reply["answers"])
    assert left(service, ann) == {"calls": 10}
    apart = service.post("checks", checks=[one, one]).json["answers"]
    assert ["receipt" in answer for answer in apart] == [True, False]


@pytest.mark.parametrize("verb", ["refund", "settle", "cancel", "renew", "release"])
def test_none_of_ours(service: Service, verb: str) -> None:
    sentence = detail(service.post(verb, receipt=ReceiptSigner(SECRET).write([PART])))
    assert sentence == (404, "This receipt was not written by this service, or with another secret.")


def durable() -> RedisServer:
    """Its counts outlive it."""
    return RedisServer(args=("--appendonly", "yes", "--appendfsync", "always"))


@pytest.mark.parametrize("fallback", ["allow", "deny", "local"])
@pytest.mark.parametrize("verb", ["refund", "settle", "cancel"])
def test_an_engine_that_is_gone_gives_nothing_back_and_the_receipt_stays_good(fallback: str, verb: str) -> None:
    with durable() as server, Service(BOOK, engine=f"{server.url}?fallback={fallback}&deadline=5s") as service:
        ann = user()
        receipt = charged(service, user=ann)
        request = {"receipt": receipt} | ({"cost": 0} if verb == "settle" else {})
        server.stop()
        for _ in range(3):
            status, why = detail(service.post(verb, request))
            assert status == 503
            assert "nothing was given back" in why
        server.start()

        def missing() -> str | None:
            reply = service.post(verb, request)
            assert reply.status in (200, 503), reply
            return None if reply.json == {"done": True} else str(reply)

        until(missing, 20)
        if verb != "cancel":  # which gives back places ahead, and this call was served at once
            assert left(service, ann) == {"calls": 10}
        assert service.post(verb, request).status == 409


def test_slots_that_cannot_be_released_are_not_done() -> None:
    with durable() as server, Service(BOOK, engine=f"{server.url}?fallback=allow&deadline=5s") as service:
        ann = user()
        request = {"receipt": charged(service, path="/export", user=ann)}
        server.stop()
        assert detail(service.post("release", request))[0] == 503
        server.start()
        until(lambda: None if service.post("release", request).status == 200 else "503", 20)
        assert service.post("renew", request).json["held"] is False


def test_two_workers_and_a_restart_on_one_redis(redis_server: RedisServer) -> None:
    """Receipts are redeemed once, whoever is asked; and with the same secret after a restart as well."""
    settings = {"engine": redis_server.url, "prefix": secrets.token_hex(4)}
    ann = user()
    with Service(BOOK, workers=2, secret=SECRET, **settings) as service:
        receipts = [charged(service, user=ann) for _ in range(6)]
        kept = receipts.pop()
        for receipt in receipts:
            assert service.post("refund", receipt=receipt).status == 200
            # a new connection each time: the kernel deals them out between both workers
            assert {service.post("refund", receipt=receipt).status for _ in range(4)} == {409}
        assert left(service, ann) == {"calls": 9}
        held = charged(service, path="/export", user=ann)
    with Service(BOOK, secret=SECRET, **settings) as service:
        assert service.post("renew", receipt=held).json["held"]
        assert service.post("refund", receipt=receipts[0]).status == 409
        assert service.post("refund", receipt=kept).json == {"done": True}
        assert left(service, ann) == {"calls": 10}
    with Service(BOOK, **settings) as service:
        sentence = detail(service.post("release", receipt=held))
        assert sentence == (404, "This receipt was not written by this service, or with another secret.")
