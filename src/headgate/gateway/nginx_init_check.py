"""A configuration in which nginx runs the Lua of another one's init, and nothing else.

`nginx -t` runs no Lua, so it takes options of `init` that keep nginx from starting. This takes from a
configuration all that its init_by_lua needs: modules, paths, shared dicts and the code. It listens to no port, and
ends where nginx would open its sockets: by exit code 0 if init went well, and otherwise as nginx ends, with its
sentence on stderr.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headgate.rules.imports.nginx_conf_parser import Directive, read

_MAIN = ("load_module", "env", "pcre_jit")
_HTTP = (
    "lua_package_path",
    "lua_package_cpath",
    "lua_shared_dict",
    "lua_load_resty_core",
    "lua_capture_error_log",
)
_INIT = ("init_by_lua_block", "init_by_lua_file", "init_by_lua")
_SCRATCH = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def init_only(dump: str, folder: Path) -> str | None:
    """That configuration, made of what `nginx -T` printed; None if it has no init.

    Raises InvalidRule for text that cannot be read as a configuration."""
    whole = read(dump)
    init = next(whole.everywhere(*_INIT), None)
    if init is None:
        return None
    lines = [*_written(whole, _MAIN), f"pid {folder}/nginx.pid;", "error_log stderr notice;", "daemon off;"]
    lines += ["events {}", "http {", "access_log off;"]
    lines += [f"{name}_temp_path {folder}/{name};" for name in _SCRATCH]
    lines += [*_written(whole, _HTTP), "init_by_lua_block {", "local function init()", *_code(init), "end"]
    return "\n".join([*lines, "init()", "os.exit(0)", "}", "}", ""])


def _written(whole: Directive, names: tuple[str, ...]) -> Iterator[str]:
    """These directives as they were, each once: included files may say one twice."""
    for found in dict.fromkeys((each.name, *each.arguments) for each in whole.everywhere(*names)):
        yield " ".join([found[0], *map(_quoted, found[1:])]) + ";"


def _quoted(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _code(init: Directive) -> list[str]:
    if init.name == "init_by_lua_block":
        return [init.code]
    if init.name == "init_by_lua":
        return [f"assert(loadstring({_long(init.arguments[0])}))()"]
    path = _long(init.arguments[0])
    return [
        f"local path = {path}",
        'if path:sub(1, 1) ~= "/" then path = ngx.config.prefix() .. path end',
        "dofile(path)",
    ]


def _long(text: str) -> str:
    """A text that Lua reads as it is."""
    level = "="
    while f"]{level}]" in text:
        level += "="
    return f"[{level}[\n{text}]{level}]"
