"""The words of an nginx configuration: directives with their arguments, blocks and lines.

    name argument "quoted argument" ${variable};
    name argument { directives }

Law (tests/rules/imports/test_nginx_conf_parser.py): whatever the text is, reading it ends in directives or in
InvalidRule with a line, in time that grows with its length only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from headgate.errors import InvalidRule

MAX_CHARACTERS = 4_000_000
MAX_DEPTH = 50

_word = re.compile(
    r"""(?P<blank>[ \t\r\n]+ | \#[^\n]*)
      | (?P<mark>[{};])
      | (?P<quoted>"(?:[^"\\]|\\.)*+" | '(?:[^'\\]|\\.)*+')
      | (?P<plain>(?:\$\{ | \\. | [^\s{};"'\\])(?:(?<=\$)\{ | \\. | [^\s{;\\])*+)
    """,
    re.X | re.S,
)
_escape = re.compile(r"""\\(["'\\ ])""")
_lua = re.compile(
    r"""(?P<long>(?:--)?\[(?P<level>=*)\[)
      | --[^\n]*
      | "(?:[^"\\]|\\.)*+" | '(?:[^'\\]|\\.)*+'
      | (?P<unended>["'])
      | (?P<brace>[{}])
    """,
    re.X | re.S,
)
_CODE = "_by_lua_block"


@dataclass(slots=True)
class Directive:
    """One directive, with the directives of its block, if it has one, or the Lua in it."""

    line: int
    name: str
    arguments: list[str] = field(default_factory=list)
    block: list[Directive] = field(default_factory=list)
    code: str = ""

    def all(self, *names: str) -> list[Directive]:
        """The directives of its block that have one of these names."""
        return [inner for inner in self.block if inner.name in names]

    def everywhere(self, *names: str) -> Iterator[Directive]:
        """The same in all blocks, however deep."""
        for inner in self.block:
            if inner.name in names:
                yield inner
            yield from inner.everywhere(*names)


def read(text: str) -> Directive:
    """The whole text as the block of a directive without a name."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidRule(f"The configuration is larger than {MAX_CHARACTERS // 1_000_000} MB: split it.")
    blocks = [Directive(1, "")]
    words: list[str] = []
    begun = 1
    for line, kind, word in _words(text):
        if kind == "code":
            blocks[-1].code = word
        elif kind != "mark":
            begun = begun if words else line
            words.append(word)
        elif word == "}":
            if words:
                raise _unended(begun, words[0])
            if len(blocks) == 1:
                raise InvalidRule(f'line {line}: this "}}" closes nothing.')
            blocks.pop()
        elif not words:
            raise InvalidRule(f'line {line}: a directive was expected before "{word}".')
        else:
            directive = Directive(begun, words[0], words[1:])
            blocks[-1].block.append(directive)
            words = []
            if word == "{":
                blocks.append(directive)
            if len(blocks) > MAX_DEPTH:
                raise InvalidRule(f"line {line}: more than {MAX_DEPTH} blocks lie within each other.")
    if words:
        raise _unended(begun, words[0])
    if len(blocks) > 1:
        raise InvalidRule(f'line {blocks[-1].line}: the block of "{blocks[-1].name}" is not closed.')
    return blocks[0]


def _words(text: str) -> Iterator[tuple[int, str, str]]:
    """Line, kind and text of each word; code in another language is one word."""
    at, line, first = 0, 1, ""
    while at < len(text):
        found = _word.match(text, at)
        if found is None:
            raise InvalidRule(f"line {line}: a quote is opened here, or something escaped, that does not end.")
        kind, word = found.lastgroup or "", found[0]
        at = found.end()
        if kind == "mark":
            yield line, kind, word
            if word == "{" and first.endswith(_CODE):
                at = _after_code(text, at, line)
                yield line, "code", text[found.end() : at]
            first = ""
        elif kind != "blank":
            first = first or word
            yield line, kind, _escape.sub(r"\1", word[1:-1] if kind == "quoted" else word)
        line += text.count("\n", found.start(), at)


def _after_code(text: str, at: int, line: int) -> int:
    """Where the brace stands that closes a block of Lua: none in its texts and comments counts."""
    depth = 1
    while found := _lua.search(text, at):
        at = found.end()
        if found["unended"]:
            break
        if found["long"]:
            end = text.find(f"]{found['level']}]", at)
            if end < 0:
                break
            at = end + 2 + len(found["level"])
        elif found["brace"]:
            depth += 1 if found[0] == "{" else -1
            if depth == 0:
                return found.start()
    raise InvalidRule(f"line {line}: this block of code is not closed.")


def _unended(line: int, word: str) -> InvalidRule:
    return InvalidRule(f'line {line}: "{word[:40]}" is not ended by a semicolon.')
