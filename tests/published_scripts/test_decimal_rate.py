"""A rate in words becomes a whole ratio: exactly what was written, or the fraction that was meant."""

import random
import subprocess
from fractions import Fraction
from pathlib import Path

import pytest

from tests.repo_rules.repository import SOURCE

DRIVER = Path(__file__).with_name("decimal_rate.lua")
MODEL = SOURCE / "lua" / "algorithms" / "decimal_rate.lua"

each_lua = pytest.mark.parametrize("lua", ["lua5.1", "luajit"])


def read(lua: str, texts: list[str], burst: int = 10) -> list[Fraction | str]:
    """Each rate as units per second, or the word for what is wrong with it."""
    lines = "".join(f"{burst} {text}\n" for text in texts)
    ran = subprocess.run([lua, DRIVER, MODEL], input=lines, capture_output=True, text=True, check=True)
    answers: list[Fraction | str] = []
    for line in ran.stdout.splitlines():
        amount, _, period_us = line.partition(" ")
        if period_us:
            answers.append(Fraction(int(amount), int(period_us)) * 1_000_000)
        else:
            answers.append(amount)
    assert len(answers) == len(texts)
    return answers


@each_lua
@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("10", "10"),
        ("0.29", "0.29"),
        ("00.50", "0.5"),
        ("1.", "1"),
        (".5", "0.5"),
        ("1e3", "1000"),
        ("1.0E-4", "0.0001"),
        ("2.5e+1", "25"),
        ("1000000", "1000000"),
        ("12345678901", "12345678901"),
        ("0.016666666666666666", "1/60"),
        ("0.016666666666667", "1/60"),
        ("3.170979198376459e-08", "1/31536000"),
        ("77777.77777777778", "700000/9"),
    ],
)
def test_it_is_what_was_meant(lua: str, text: str, rate: str) -> None:
    assert read(lua, [text]) == [Fraction(rate)]


@each_lua
def test_up_to_nine_digits_are_taken_at_their_word(lua: str) -> None:
    numbers = random.Random(1)
    texts = [f"{numbers.randint(1, 10**9 - 1)}e-{numbers.randint(0, 9)}" for _ in range(2000)]
    texts += [f"{numbers.randint(0, 999)}.{numbers.randint(1, 10**6):06}" for _ in range(2000)]
    assert read(lua, texts, burst=1) == [Fraction(text) for text in texts]


@each_lua
def test_a_fraction_that_a_machine_printed_is_that_fraction(lua: str) -> None:
    numbers = random.Random(2)
    fractions = [Fraction(numbers.randint(1, 10**6), numbers.randint(1, 10**6)) for _ in range(3000)]
    assert read(lua, [repr(float(fraction)) for fraction in fractions], burst=1) == fractions


@each_lua
def test_any_other_number_is_met_to_its_last_digit(lua: str) -> None:
    numbers = random.Random(3)
    texts = [repr((0.1 + numbers.random()) * 10 ** numbers.randint(-2, 6)) for _ in range(3000)]
    for text, rate in zip(texts, read(lua, texts, burst=1000), strict=True):
        assert isinstance(rate, Fraction), text
        assert abs(rate / Fraction(text) - 1) < Fraction(1, 10**9), text


@each_lua
@pytest.mark.parametrize(
    "text", ["", ".", "-1", "+1", "0", "0.000", "0e5", "1e", "5-3", "1_0", "0x10", " 1", "nan", "inf"]
)
def test_a_rate_that_is_no_positive_number_is_refused(lua: str, text: str) -> None:
    assert read(lua, [text]) == ["rate"]


@each_lua
@pytest.mark.parametrize("text", ["1e400", "1234567890123e400", f"0.{'0' * 400}1234567891", "1e-300", "9" * 400])
def test_a_rate_that_cannot_be_exact_is_refused(lua: str, text: str) -> None:
    assert read(lua, [text]) == ["exact"]
