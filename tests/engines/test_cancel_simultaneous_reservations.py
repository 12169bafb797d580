"""Places that would be served at one instant are given back in any order, as those of different instants are."""

from __future__ import annotations

from random import Random

import pytest

from headgate import Limiter, ManualClock


@pytest.mark.parametrize("limit", ["5000/s queue 3", "20000/s queue 3 delay 1", "3000000/s burst 4"])
@pytest.mark.parametrize("seed", range(5))
def test_places_of_one_instant_are_free_again_when_all_have_left(limit: str, seed: int) -> None:
    limiter = Limiter(limit, clock=ManualClock())
    assert limiter.take("ann", 4)
    before = limiter.take("ann").outcome
    places = [limiter.reserve("ann") for _ in range(60)]
    assert len({place.delay for place in places}) < len(places)
    Random(seed).shuffle(places)
    for place in places:
        place.cancel()
    assert limiter.take("ann").outcome[:6] == before[:6]
