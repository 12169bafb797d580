"""Parses an nginx configuration into directives with their arguments, blocks and lines.

    name argument "quoted argument" ${variable};
    name argument { directives }

Law (tests/rules/imports/test_nginx_conf_parser.py): whatever the text is, reading it ends in directives or in
InvalidRule with a line, in time that grows only with its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from headgate.errors import InvalidRule

MAX_CHARACTERS = 4_000_000
MAX_DEPTH = 50

_token = re.compile(
    r"""(?P<blank>[ \t\r\n]+ | \#[^\n]*)
      | (?P<mark>[{};])
      | (?P<quoted>"(?:[^"\\]|\\.)*+" | '(?:[^'\\]|\\.)*+')
      | (?P<plain>(?:\$\{ | \\. | [^\s{};"'\\])(?:(?<=\$)\{ | \\. | [^\s{;\\])*+)
    """,
    re.X | re.S,
)
_escape = re.compile(r"""\\(["'\\ ])""")
_lua_token = re.compile(
    r"""(?P<long>(?:--)?\[(?P<level>=*)\[)
      | --[^\n]*
      | "(?:[^"\\]|\\.)*+" | '(?:[^'\\]|\\.)*+'
      | (?P<unended>["'])
      | (?P<brace>[{}])
    """,
    re.X | re.S,
)
_LUA_BLOCK_SUFFIX = "_by_lua_block"


@dataclass(slots=True)
class Directive:
    """A directive, with the directives or the Lua code of its block."""

    line: int
    name: str
    arguments: list[str] = field(default_factory=list)
    block: list[Directive] = field(default_factory=list)
    code: str = ""

    def all(self, *names: str) -> list[Directive]:
        """Returns the directives of its block that have one of these names."""
        return [inner for inner in self.block if inner.name in names]

    def everywhere(self, *names: str) -> Iterator[Directive]:
        """Yields the directives of these names in all nested blocks."""
        for inner in self.block:
            if inner.name in names:
                yield inner
            yield from inner.everywhere(*names)


def read(text: str) -> Directive:
    """Parses a text; returns it as the block of a directive without a name."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidRule(f"The configuration is larger than {MAX_CHARACTERS // 1_000_000} MB: split it.")
    blocks = [Directive(1, "")]
    words: list[str] = []
    directive_line = 1
    for line, kind, word in _tokens(text):
        if kind == "code":
            blocks[-1].code = word
        elif kind != "mark":
            directive_line = directive_line if words else line
            words.append(word)
        elif word == "}":
            if words:
                raise _missing_semicolon(directive_line, words[0])
            if len(blocks) == 1:
                raise InvalidRule(f'line {line}: this "}}" closes nothing.')
            blocks.pop()
        elif not words:
            raise InvalidRule(f'line {line}: a directive was expected before "{word}".')
        else:
            directive = Directive(directive_line, words[0], words[1:])
            blocks[-1].block.append(directive)
            words = []
            if word == "{":
                blocks.append(directive)
            if len(blocks) > MAX_DEPTH:
                raise InvalidRule(f"line {line}: more than {MAX_DEPTH} levels of nesting.")
    if words:
        raise _missing_semicolon(directive_line, words[0])
    if len(blocks) > 1:
        raise InvalidRule(f'line {blocks[-1].line}: the block of "{blocks[-1].name}" is not closed.')
    return blocks[0]


def _tokens(text: str) -> Iterator[tuple[int, str, str]]:
    """Yields the line, kind and text of each token; a block of Lua is one token."""
    offset, line, directive_name = 0, 1, ""
    while offset < len(text):
        match = _token.match(text, offset)
        if match is None:
            raise InvalidRule(f"line {line}: a quote is opened here, or something escaped, that does not end.")
        kind, word = match.lastgroup or "", match[0]
        offset = match.end()
        if kind == "mark":
            yield line, kind, word
            if word == "{" and directive_name.endswith(_LUA_BLOCK_SUFFIX):
                offset = _end_of_lua(text, offset, line)
                yield line, "code", text[match.end() : offset]
            directive_name = ""
        elif kind != "blank":
            directive_name = directive_name or word
            yield line, kind, _escape.sub(r"\1", word[1:-1] if kind == "quoted" else word)
        line += text.count("\n", match.start(), offset)


def _end_of_lua(text: str, offset: int, line: int) -> int:
    """Returns the offset of the brace that closes a block of Lua; strings and comments do not count."""
    depth = 1
    while match := _lua_token.search(text, offset):
        offset = match.end()
        if match["unended"]:
            break
        if match["long"]:
            end = text.find(f"]{match['level']}]", offset)
            if end < 0:
                break
            offset = end + 2 + len(match["level"])
        elif match["brace"]:
            depth += 1 if match[0] == "{" else -1
            if depth == 0:
                return match.start()
    raise InvalidRule(f"line {line}: this block of code is not closed.")


def _missing_semicolon(line: int, word: str) -> InvalidRule:
    return InvalidRule(f'line {line}: "{word[:40]}" is not ended by a semicolon.')
