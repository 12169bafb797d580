"""Every defect that was recorded of published limiters, shown not to be ours, on Redis and on Valkey."""

import pytest

from tests.published_scripts.article_scripts import SHOWN
from tests.published_scripts.recorded_defects import RecordedDefect, read_entries
from tests.servers import RedisServer

ENTRIES = read_entries()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_ours_does_not_have_it(entry: RecordedDefect, driven_server: RedisServer) -> None:
    show = SHOWN.get(entry.name)
    assert show is not None, f"nothing shows yet that ours is free of this: {entry.claim}"
    try:
        show(entry, driven_server)
    except AssertionError as error:
        error.add_note(f"claim: {entry.claim}\nrecorded: {entry.conclusion}\nours should: {show.__doc__}")
        raise


def test_each_defect_was_recorded_and_each_is_shown() -> None:
    assert sorted(SHOWN) == sorted(entry.name for entry in ENTRIES)
    assert len(ENTRIES) == 40
    assert all(show.__doc__ for show in SHOWN.values())
