"""Makes a configuration in which nginx runs only the init_by_lua code of another configuration.

`nginx -t` runs no Lua, so it accepts options of `init` that keep nginx from starting. This takes from a
configuration all that its init_by_lua needs: modules, paths, shared dicts and the code. It opens no port, and
exits where nginx would open its sockets: with code 0 if init succeeds, and otherwise as nginx fails, with its
message on stderr.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headgate.rules.imports.nginx_conf_parser import Directive, read

_MAIN_DIRECTIVES = ("load_module", "env", "pcre_jit")
_HTTP_DIRECTIVES = (
    "lua_package_path",
    "lua_package_cpath",
    "lua_shared_dict",
    "lua_load_resty_core",
    "lua_capture_error_log",
)
_INIT_DIRECTIVES = ("init_by_lua_block", "init_by_lua_file", "init_by_lua")
_TEMP_PATHS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def init_only_conf(dump: str, folder: Path) -> str | None:
    """Returns that configuration, made from the output of `nginx -T`; None if it has no init.

    Raises InvalidRule for text that cannot be read as a configuration."""
    root = read(dump)
    init = next(root.everywhere(*_INIT_DIRECTIVES), None)
    if init is None:
        return None
    lines = [
        *_directives(root, _MAIN_DIRECTIVES),
        f"pid {folder}/nginx.pid;",
        "error_log stderr notice;",
        "daemon off;",
    ]
    lines += ["events {}", "http {", "access_log off;"]
    lines += [f"{name}_temp_path {folder}/{name};" for name in _TEMP_PATHS]
    lines += [
        *_directives(root, _HTTP_DIRECTIVES),
        "init_by_lua_block {",
        "local function init()",
        *_init_code(init),
        "end",
    ]
    return "\n".join([*lines, "init()", "os.exit(0)", "}", "}", ""])


def _directives(root: Directive, names: tuple[str, ...]) -> Iterator[str]:
    """Yields these directives as they were, each once: included files may repeat one."""
    for directive in dict.fromkeys((each.name, *each.arguments) for each in root.everywhere(*names)):
        yield " ".join([directive[0], *map(_quote, directive[1:])]) + ";"


def _quote(word: str) -> str:
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _init_code(init: Directive) -> list[str]:
    if init.name == "init_by_lua_block":
        return [init.code]
    if init.name == "init_by_lua":
        return [f"assert(loadstring({_long_string(init.arguments[0])}))()"]
    path = _long_string(init.arguments[0])
    return [
        f"local path = {path}",
        'if path:sub(1, 1) ~= "/" then path = ngx.config.prefix() .. path end',
        "dofile(path)",
    ]


def _long_string(text: str) -> str:
    """Returns a text as a Lua long string, which has no escapes."""
    level = "="
    while f"]{level}]" in text:
        level += "="
    return f"[{level}[\n{text}]{level}]"
