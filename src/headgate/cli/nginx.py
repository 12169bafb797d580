"""headgate nginx: writes an nginx.conf for a rulebook, and checks whether nginx accepts it.

`check` asks nginx itself, by nginx -T. That runs no Lua, so the same nginx also runs the Lua of init, in a
configuration that has nothing else.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from headgate.cli.command_parser import Commands, Misuse, Parser, command, group, whole_number
from headgate.cli.engine_option import VARIABLE, url_of
from headgate.cli.output import DONE, INVALID, Output, warn
from headgate.cli.rulebook_option import print_warnings
from headgate.cli.rules.compile import compile_to
from headgate.cli.rules.push import FORMATS
from headgate.enforcement.split_limits import check_split_limits
from headgate.engines import url_options
from headgate.errors import HeadgateError, InvalidRule
from headgate.gateway import lua_library
from headgate.gateway.nginx_conf import DEBIAN_MODULE_DIR, LUA_MODULES, NginxOptions, render_conf
from headgate.gateway.nginx_init_check_conf import init_only_conf
from headgate.rules import load
from headgate.rules.rule import Rulebook

ENGINE = "redis://127.0.0.1:6379/0?fallback=local"
INSTALL = "In Debian: apt install nginx libnginx-mod-http-lua lua-cjson. OpenResty has all that is needed."
_PROGRAM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/local/openresty/bin", "/usr/local/openresty/nginx/sbin")
_INIT_TIMEOUT_S = 30
_init_failed = re.compile(r"init_by_lua(?:_block)? error: (?:init_by_lua:\d+: )?(.*)")


def add(commands: Commands) -> None:
    verbs = group(commands, "nginx", "nginx as a gateway: print a configuration, or check one")
    conf_parser = command(
        verbs,
        "conf",
        _conf,
        "print a whole nginx.conf for a rulebook",
        "headgate nginx conf rules.yaml --engine redis://host:6379/0 > nginx.conf",
        "headgate nginx conf rules.yaml --shared --bundle /etc/nginx/rules.bundle.json > nginx.conf",
    )
    conf_parser.add_argument("rulebook", metavar="RULEBOOK", help="YAML, TOML or JSON")
    _add_choices(conf_parser)
    check_parser = command(
        verbs,
        "check",
        _check,
        "check whether nginx accepts a configuration",
        "headgate nginx check",
        "headgate nginx check ./nginx.conf",
        "headgate nginx check rules.yaml --shared",
        more="The file is an nginx.conf, or a rulebook (by its suffix): then it checks the output of "
        "headgate nginx conf. "
        "Without a file it checks the configuration that nginx itself finds.",
    )
    check_parser.add_argument("file", nargs="?", metavar="FILE", help="an nginx.conf, or a rulebook")
    _add_choices(check_parser)


def _add_choices(parser: Parser) -> None:
    counting = parser.add_mutually_exclusive_group()
    counting.add_argument(
        "--engine", metavar="URL", help=f"count in Redis ({ENGINE}, unless given here or by {VARIABLE})"
    )
    counting.add_argument(
        "--shared", action="store_true", help="count in the memory of this nginx, for all its workers"
    )
    parser.add_argument("--bundle", metavar="BUNDLE", help="write this file, and use it instead of pushed rules")
    parser.add_argument("--prefix", default=NginxOptions.prefix, help="the prefix of the keys (default: hg)")
    parser.add_argument(
        "--listen", type=whole_number(1), default=NginxOptions.listen, metavar="PORT", help="8000 unless given"
    )
    parser.add_argument(
        "--backend", default=NginxOptions.backend, metavar="URL", help="http://127.0.0.1:8080 unless given"
    )
    parser.add_argument(
        "--workers",
        type=whole_number(1),
        metavar="N",
        help="worker processes (default: as many as there are cores)",
    )
    parser.add_argument("--decision-log", action="store_true", help="log every decision as a line of JSON")


def _conf(args: argparse.Namespace) -> Output:
    book = check_split_limits(load.read(args.rulebook))
    print_warnings(book, as_json=args.json)  # the bundle keeps them: nginx logs them
    bundle_path = _bundle_path(args, Path(args.rulebook))
    gate = _gate(args, bundle_path, args.rulebook)
    text = render_conf(book, gate)
    if args.bundle is not None:
        compile_to(Path(args.bundle), book)
    elif bundle_path is not None and not bundle_path.exists():
        compile_command = shlex.join(["headgate", "rules", "compile", args.rulebook, "-o", str(bundle_path)])
        warn(f"The compiled rulebook is not there yet. Make it by:  {compile_command}", as_json=args.json)
    return Output(
        {"conf": text, "bundle": None if bundle_path is None else str(bundle_path)}, [text.removesuffix("\n")]
    )


def _bundle_path(args: argparse.Namespace, rulebook: Path) -> Path | None:
    """Returns the path of the bundle that nginx reads, if any. The default is in the folder of the rulebook."""
    if args.bundle is not None:
        return Path(args.bundle).absolute()
    return rulebook.with_suffix(".bundle.json").absolute() if args.shared else None


def _gate(args: argparse.Namespace, bundle_path: Path | None, rulebook: str) -> NginxOptions:
    if args.listen > 65535:
        raise Misuse(f"A port is a number up to 65535, not {args.listen}. See {args.called} --help.")
    engine = None if args.shared else _engine(url_of(args) or ENGINE)
    return NginxOptions(
        package_path=lua_library.package_path(lua_library.folder()),
        command_line=_command_line(args, engine, bundle_path),
        modules=_modules(),
        engine=engine,
        bundle=None if bundle_path is None else str(bundle_path),
        prefix=args.prefix,
        listen=args.listen,
        backend=args.backend,
        workers=args.workers,
        decision_log=args.decision_log,
        resolver=_resolver(),
        underscored=load.underscored_headers(rulebook),
    )


def _engine(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or not re.fullmatch(r"(redis|valkey)s?(\+(cluster|sentinel|unix))?|unix", scheme):
        raise InvalidRule("nginx counts in Redis, or with --shared in itself. Write --engine redis://host:6379/0.")
    url_options.split_rulebook_url(url)  # raises InvalidRule if an option is wrong
    return url


def _command_line(args: argparse.Namespace, engine: str | None, bundle_path: Path | None) -> str:
    """Returns the command without a password: it is shown in a comment that people share."""
    arguments = ["headgate", "nginx", "conf", getattr(args, "rulebook", None) or args.file]
    arguments += ["--shared"] if engine is None else ["--engine", re.sub(r"//[^/?]*@", "//...@", engine)]
    arguments += [] if bundle_path is None else ["--bundle", str(bundle_path)]
    for name in ("prefix", "listen", "backend", "workers"):
        if getattr(args, name) != getattr(NginxOptions, name):
            arguments += [f"--{name}", str(getattr(args, name))]
    arguments += ["--decision-log"] if args.decision_log else []
    return shlex.join(arguments)


def _modules() -> list[str] | None:
    """Returns the modules that must be loaded; None if there is no nginx, or an unknown one."""
    program = _find_program()
    if program is None:
        return None
    result = subprocess.run([program, "-V"], capture_output=True, text=True, check=False)
    if "openresty" in result.stderr or re.search(r"--add-module=\S*lua", result.stderr):
        return []
    paths = [f"{DEBIAN_MODULE_DIR}/{name}" for name in LUA_MODULES]
    return paths if all(map(os.path.exists, paths)) else None


def _resolver() -> str:
    """Returns this machine's DNS server, as a default."""
    try:
        text = Path("/etc/resolv.conf").read_text()
    except OSError:
        text = ""
    match = re.search(r"^nameserver\s+([0-9.]+)\s*$", text, re.M)
    return NginxOptions.resolver if match is None else match[1]


def _find_program() -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_PROGRAM_FOLDERS])
    return shutil.which("nginx", path=path) or shutil.which("openresty", path=path)


def _check(args: argparse.Namespace) -> Output:
    program = _find_program()
    if program is None:
        raise HeadgateError(f"There is no nginx on this machine. {INSTALL}")
    if args.file is None:
        return _run_check(args, program, [])
    path = Path(args.file)
    if path.suffix.lower() not in FORMATS:
        if not path.is_file():
            raise InvalidRule(f"{path} is not a file.")
        return _run_check(args, program, ["-c", str(path.absolute())])
    book = check_split_limits(load.read(path))
    print_warnings(book, as_json=args.json)
    with TemporaryDirectory(prefix="headgate-nginx-") as folder:
        return _run_check(args, program, _write_files(args, book, Path(folder)))


def _write_files(args: argparse.Namespace, book: Rulebook, folder: Path) -> list[str]:
    """Writes what `conf` would print to a folder, and returns the options by which nginx finds it."""
    bundle_path = None if _bundle_path(args, Path(args.file)) is None else folder / "rules.bundle.json"
    gate = _gate(args, bundle_path, args.file)
    if bundle_path is not None:
        compile_to(bundle_path, book)
    text = render_conf(book, replace(gate, logs=str(folder), scratch=str(folder)))
    (folder / "nginx.conf").write_text(text)
    return ["-p", f"{folder}/", "-c", str(folder / "nginx.conf"), "-g", f"pid {folder}/nginx.pid;"]


def _run_check(args: argparse.Namespace, program: str, options: list[str]) -> Output:
    result = subprocess.run([program, *options, "-T", "-q"], capture_output=True, check=False)
    message, dump = result.stderr.decode(errors="replace").strip(), result.stdout.decode(errors="replace")
    valid = result.returncode == 0
    if valid and "resty.headgate" in dump:
        init_error = _run_init(args, program, options, dump)
        message, valid = init_error or message, init_error is None
    lines: list[str | tuple[str, str]] = [(message, "" if valid else "red")] if message else []
    summary = [("nginx accepts it.", "green")] if valid else [("nginx does not accept it.", "red")]
    return Output({"valid": valid, "nginx": message}, [*lines, *summary], DONE if valid else INVALID)


def _run_init(args: argparse.Namespace, program: str, options: list[str], dump: str) -> str | None:
    """Runs the Lua of init, and returns its error; None if it succeeds."""
    prefix = options[options.index("-p") :][:2] if "-p" in options else []
    with TemporaryDirectory(prefix="headgate-nginx-") as folder:
        try:
            text = init_only_conf(dump, Path(folder))
        except InvalidRule as error:
            warn(
                f"The Lua of init was not run: headgate cannot read this configuration: {error}", as_json=args.json
            )
            return None
        if text is None:
            warn("resty.headgate is named, but no init_by_lua_block calls its init.", as_json=args.json)
            return None
        path = Path(folder, "nginx.conf")
        path.write_text(text)
        arguments = [program, *prefix, "-c", str(path)]
        try:
            result = subprocess.run(arguments, capture_output=True, check=False, timeout=_INIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"The Lua of init does not end within {_INIT_TIMEOUT_S} s."
    if result.returncode == 0:
        return None
    message = result.stderr.decode(errors="replace").strip()
    if "module 'resty.headgate' not found" in message:
        our_path = lua_library.package_path(lua_library.folder())
        return f'No lua_package_path leads to resty/headgate.lua. Add to http:  lua_package_path "{our_path};;";'
    match = _init_failed.search(message)
    return f"init_by_lua: {match[1]}" if match else message
