"""Configurations of the reference service give its answers, except that a refused call is not charged."""

from typing import Any

from headgate.rules.imports.envoy_ratelimit import translate
from tests.service.envoy.envoy_harness import OK, OVER_LIMIT, Unit, descriptor, serve_envoy

SHOP = """
domain: shop
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: {unit: day, requests_per_unit: 2}
  - key: to_number
    rate_limit: {name: numbers, unit: minute, requests_per_unit: 3}

  - key: remote_address
    rate_limit: {unit: second, requests_per_unit: 10}
  - key: remote_address
    value: 50.0.0.5
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: remote_address
    value: 10.0.*
    rate_limit: {unit: hour, requests_per_unit: 7}

  - key: path
    value: /files/*
    share_threshold: true
    rate_limit: {unit: week, requests_per_unit: 2}

  - key: ldap
    rate_limit: {unlimited: true}
  - key: vip
    rate_limit: {unit: year, requests_per_unit: 5, replaces: [{name: numbers}]}
  - key: beta
    shadow_mode: true
    rate_limit: {unit: month, requests_per_unit: 1}
"""


def book(text: str = SHOP) -> Any:
    return translate(text, domain=True).document


def status_of(response: Any, place: int = 0) -> tuple[Any, ...]:
    status = response.statuses[place]
    current = status.current_limit
    return status.code, current.requests_per_unit, current.unit, current.name, status.limit_remaining


NUMBER = descriptor(("to_number", "+1"))


async def test_nested_descriptors_are_looked_up_to_the_depth_of_the_request() -> None:
    deep = descriptor(("message_type", "marketing"), ("to_number", "+1"))
    async with serve_envoy(book()) as envoy:
        response = await envoy.should_rate_limit(deep)
        assert status_of(response) == (OK, 2, Unit.DAY, "message_type_marketing.to_number", 1)
        assert status_of(await envoy.should_rate_limit(NUMBER)) == (OK, 3, Unit.MINUTE, "numbers", 2)
        for other in (
            descriptor(("message_type", "marketing")),
            descriptor(("message_type", "news"), ("to_number", "+1")),
        ):
            assert not (await envoy.should_rate_limit(other)).statuses[0].HasField("current_limit")
        assert (await envoy.should_rate_limit(deep)).overall_code == OK
        assert (await envoy.should_rate_limit(deep)).overall_code == OVER_LIMIT


async def test_a_value_before_a_wildcard_before_a_key() -> None:
    async with serve_envoy(book()) as envoy:
        names = {}
        for address in ("192.0.2.7", "50.0.0.5", "10.0.3.4"):
            response = await envoy.should_rate_limit(descriptor(("remote_address", address)))
            names[address] = (response.overall_code, response.statuses[0].current_limit.unit)
        assert names == {
            "192.0.2.7": (OK, Unit.SECOND),
            "50.0.0.5": (OVER_LIMIT, Unit.SECOND),
            "10.0.3.4": (OK, Unit.HOUR),
        }
        response = await envoy.should_rate_limit(descriptor(("remote_address", "10.0.9.9")))
        assert response.statuses[0].limit_remaining == 6, (
            "each address that a wildcard finds has a count of its own"
        )


async def test_those_who_share_a_threshold_share_a_count() -> None:
    async with serve_envoy(book()) as envoy:
        first = status_of(await envoy.should_rate_limit(descriptor(("path", "/files/a"))))
        assert (first[0], first[1], first[2], first[4]) == (OK, 2, Unit.WEEK, 1)
        assert (await envoy.should_rate_limit(descriptor(("path", "/files/b")))).overall_code == OK
        assert (await envoy.should_rate_limit(descriptor(("path", "/files/c")))).overall_code == OVER_LIMIT


async def test_what_is_unlimited_has_all_there_is() -> None:
    async with serve_envoy(book()) as envoy:
        response = await envoy.should_rate_limit(descriptor(("ldap", "x")), NUMBER)
        assert not response.statuses[0].HasField("current_limit")
        assert [status.limit_remaining for status in response.statuses] == [2**32 - 1, 2]


async def test_one_descriptor_replaces_what_another_would_meet() -> None:
    vip = descriptor(("vip", "yes"))
    async with serve_envoy(book()) as envoy:
        response = await envoy.should_rate_limit(NUMBER, vip)
        assert not response.statuses[0].HasField("current_limit")
        assert status_of(response, 1) == (OK, 5, Unit.YEAR, "vip", 4)
        assert status_of(await envoy.should_rate_limit(NUMBER))[4] == 2, "what was replaced was not charged"


async def test_a_shadow_is_reported_and_never_refuses() -> None:
    beta = descriptor(("beta", "x"))
    async with serve_envoy(book()) as envoy:
        assert status_of(await envoy.should_rate_limit(beta)) == (OK, 1, Unit.MONTH, "beta", 0)
        response = await envoy.should_rate_limit(beta)
        assert (response.overall_code, status_of(response)) == (OK, (OK, 1, Unit.MONTH, "beta", 0))
        assert [value.string_value for value in response.dynamic_metadata.fields["shadow"].list_value.values] == [
            "beta"
        ]


async def test_a_domain_has_its_rules() -> None:
    async with serve_envoy(book()) as envoy:
        response = await envoy.should_rate_limit(NUMBER, domain="other")
        assert not response.statuses[0].HasField("current_limit")
