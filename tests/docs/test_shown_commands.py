"""The documentation shows what the command line prints (see shown_commands.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.shown_command_setup import SCENES
from tests.docs.shown_commands import GAP, expected_output, matches, pages_with_commands, run_page, shown_commands
from tests.repo_rules.repository import ROOT
from tests.servers import RedisServer

REMEDY = "If this is right, put it into the page: python -m tests.docs.shown_commands --write"


@pytest.mark.parametrize("page", pages_with_commands(), ids=lambda page: page.stem)
def test_commands_print_what_is_shown(page: Path, driven_redis: RedisServer) -> None:
    for each, code, printed in run_page(page, driven_redis):
        place = f"{page.relative_to(ROOT)}:{each.line + 1}: {each.command}"
        assert code == each.code, (place, printed)
        if each.output:
            assert matches(each.output, printed), "\n".join([place, *printed, REMEDY])


def test_every_page_has_a_scene_and_every_step_its_command() -> None:
    assert set(SCENES) == {str(page.relative_to(ROOT)) for page in pages_with_commands()}
    for name, scene in SCENES.items():
        commands = {each.command for each in shown_commands(ROOT / name)}
        assert {*scene.before, *scene.skipped} <= commands


@pytest.mark.parametrize(
    ("output", "printed", "same"),
    [
        (["a 1"], ["a 1"], True),
        (["a 1"], ["a 2"], False),
        (["a 1"], ["a 1", "b"], False),
        (["a", GAP, "z"], ["a", "b", "c", "z"], True),
        (["a", GAP], ["b", "c"], False),
        (["a … z"], ["a b z"], True),
        (["a.b"], ["a-b"], False),
    ],
)
def test_a_difference_in_shown_output_is_detected(output: list[str], printed: list[str], same: bool) -> None:
    assert matches(output, printed) is same
    assert matches(expected_output(output, printed), printed)
