"""The chart: it fits, it is legible without colours and without blocks, and it shows no future."""

import re

import pytest

from headgate.cli.demo_chart import MIN_WIDTH, chart, summary
from headgate.cli.flash_sale import FlashSale
from headgate.cli.text_style import Style

PLAIN = Style(color=False, blocks=True)
LETTERS = Style(color=False, blocks=False)
ESCAPE = re.compile(r"\x1b\[\d+m")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (100, 30), (60, 20), (50, 24), (200, 50)])
@pytest.mark.parametrize("ink", [PLAIN, LETTERS, Style(color=True, blocks=True)])
def test_it_fits(played: FlashSale, width: int, height: int, ink: Style) -> None:
    lines = chart(played, width, height, ink)
    assert max(len(ESCAPE.sub("", line)) for line in lines) <= width
    assert len(lines) <= height


def test_with_its_last_words_it_fits_a_small_terminal_and_the_prompt(played: FlashSale) -> None:
    assert len(chart(played, 80, 20, PLAIN)) + 1 + len(summary(played, 80)) < 24


def test_no_window_is_too_narrow(played: FlashSale) -> None:
    assert chart(played, 10, 5, PLAIN) == chart(played, MIN_WIDTH, 5, PLAIN)


def test_every_gate_has_its_row_its_counts_and_its_words(played: FlashSale) -> None:
    text = "\n".join(chart(played, 80, 24, PLAIN))
    for gate in played.gates:
        assert re.search(rf"^{re.escape(gate.name)} +[▁▂▃▄▅▆▇█]", text, re.M)
        assert re.search(
            rf"{re.escape(f'{gate.limit}: {gate.summary}')} +{gate.passed:,} .* {gate.refused:,} +{gate.peak}$",
            text,
            re.M,
        )


def test_without_colours_there_are_none_and_without_blocks_only_letters(played: FlashSale) -> None:
    assert "\x1b" not in "\n".join(chart(played, 80, 24, PLAIN))
    assert "\n".join(chart(played, 120, 40, LETTERS)).isascii()


def test_delayed_buyers_are_yellow(played: FlashSale) -> None:
    lines = chart(played, 80, 24, Style(color=True, blocks=True))
    yellow = [ESCAPE.sub("", line).split()[0] for line in lines if re.search("\x1b\\[33m[▁▂▃▄▅▆▇█]", line)]
    assert yellow == ["leaky"]


def test_the_doubling_can_be_seen_and_its_absence_too(played: FlashSale) -> None:
    rows = {line[:16].strip(): line[16:] for line in chart(played, 80, 24, PLAIN)}
    before, after = 41, 42  # three columns to a second: those that touch 14 s
    assert rows["fixed window"][before : after + 1] == "██"
    assert rows["sliding window"][before] == rows["sliding log"][before] == "█"
    assert all(rows[name][after] in "▁▂▃" for name in ("sliding window", "sliding log"))


def test_future_seconds_are_blank() -> None:
    sale = FlashSale()
    assert "0.0 s of 20" in chart(sale, 80, 24, PLAIN)[0]
    sale.play_until(4.4)
    rows = {line[:16].strip(): line[16:] for line in chart(sale, 80, 24, PLAIN)}
    assert sale.gates[1].delayed > 0
    assert len(rows["leaky bucket"]) == len(rows["offered"]) == 14
    assert "the doors open: 900 calls a second" in chart(sale, 80, 24, PLAIN)[1]
