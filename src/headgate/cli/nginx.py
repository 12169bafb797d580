"""headgate nginx: a configuration for a rulebook, and whether nginx takes it.

`check` is nginx's own word, by nginx -t. That runs no Lua, so the Lua of init is run beside it, by the same nginx,
in a configuration that has nothing else.
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

from headgate.cli.engine_option import VARIABLE, url_of
from headgate.cli.output import DONE, INVALID, Output, warn
from headgate.cli.parser import Commands, Misuse, Parser, command, group, whole
from headgate.cli.rulebook_option import print_warnings
from headgate.cli.rules.compile import compile_to
from headgate.cli.rules.push import FORMATS
from headgate.enforcement.split_limits import check_split_limits
from headgate.engines import url_options
from headgate.errors import HeadgateError, InvalidRule
from headgate.gateway import lua_library
from headgate.gateway.nginx_conf import DEBIAN, MODULES, Gate, conf
from headgate.gateway.nginx_init_check import init_only
from headgate.rules import load
from headgate.rules.rule import Rulebook

ENGINE = "redis://127.0.0.1:6379/0?fallback=local"
INSTALL = "In Debian: apt install nginx libnginx-mod-http-lua. Elsewhere OpenResty has all that is needed."
_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/local/openresty/bin", "/usr/local/openresty/nginx/sbin")
_INIT_TIMEOUT_S = 30
_init_failed = re.compile(r"init_by_lua(?:_block)? error: (?:init_by_lua:\d+: )?(.*)")


def add(commands: Commands) -> None:
    verbs = group(commands, "nginx", "nginx as a gateway: its configuration, and whether nginx takes it")
    making = command(
        verbs,
        "conf",
        _conf,
        "a whole nginx.conf for a rulebook",
        "headgate nginx conf rules.yaml --engine redis://host:6379/0 > nginx.conf",
        "headgate nginx conf rules.yaml --shared --plate /etc/nginx/rules.plate.json > nginx.conf",
    )
    making.add_argument("rulebook", metavar="RULEBOOK", help="YAML, TOML or JSON")
    _add_choices(making)
    checking = command(
        verbs,
        "check",
        _check,
        "whether nginx takes a configuration",
        "headgate nginx check",
        "headgate nginx check ./nginx.conf",
        "headgate nginx check rules.yaml --shared",
        more="A file is an nginx.conf, or a rulebook by its suffix: then what headgate nginx conf would print is "
        "checked. Without one it is the configuration that nginx itself finds.",
    )
    checking.add_argument("file", nargs="?", metavar="FILE", help="an nginx.conf, or a rulebook")
    _add_choices(checking)


def _add_choices(parser: Parser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--engine", metavar="URL", help=f"count in Redis ({ENGINE}, unless given here or by {VARIABLE})"
    )
    where.add_argument("--shared", action="store_true", help="count in this nginx alone, all workers together")
    parser.add_argument("--plate", metavar="PLATE", help="go by this file, not by what was pushed; it is written")
    parser.add_argument("--prefix", default=Gate.prefix, help="what the keys begin with (hg unless given)")
    parser.add_argument("--listen", type=whole(1), default=Gate.listen, metavar="PORT", help="8000 unless given")
    parser.add_argument(
        "--backend", default=Gate.backend, metavar="URL", help="http://127.0.0.1:8080 unless given"
    )
    parser.add_argument("--workers", type=whole(1), metavar="N", help="as many as there are cores unless given")


def _conf(args: argparse.Namespace) -> Output:
    book = check_split_limits(load.read(args.rulebook))
    print_warnings(book, as_json=args.json)  # it keeps them: nginx logs those of its plate
    path = _plate_of(args, Path(args.rulebook))
    gate = _gate(args, path, args.rulebook)
    text = conf(book, gate)
    if args.plate is not None:
        compile_to(Path(args.plate), book)
    elif path is not None and not path.exists():
        line = shlex.join(["headgate", "rules", "compile", args.rulebook, "-o", str(path)])
        warn(f"The compiled rulebook is not there yet. Make it by:  {line}", as_json=args.json)
    return Output({"conf": text, "plate": None if path is None else str(path)}, [text.removesuffix("\n")])


def _plate_of(args: argparse.Namespace, rulebook: Path) -> Path | None:
    """The compiled rulebook that nginx goes by, if any: beside its source unless given."""
    if args.plate is not None:
        return Path(args.plate).absolute()
    return rulebook.with_suffix(".plate.json").absolute() if args.shared else None


def _gate(args: argparse.Namespace, plate: Path | None, rulebook: str) -> Gate:
    if args.listen > 65535:
        raise Misuse(f"A port is a number up to 65535, not {args.listen}. See {args.called} --help.")
    engine = None if args.shared else _engine(url_of(args) or ENGINE)
    return Gate(
        package_path=lua_library.package_path(lua_library.folder()),
        said=_said(args, engine, plate),
        modules=_modules(),
        engine=engine,
        plate=None if plate is None else str(plate),
        prefix=args.prefix,
        listen=args.listen,
        backend=args.backend,
        workers=args.workers,
        resolver=_resolver(),
        underscored=load.underscored_headers(rulebook),
    )


def _engine(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    if not separator or not re.fullmatch(r"(redis|valkey)s?(\+(cluster|sentinel|unix))?|unix", scheme):
        raise InvalidRule("nginx counts in Redis, or with --shared in itself. Write --engine redis://host:6379/0.")
    url_options.split_for_rulebook(url)  # says what is wrong with them
    return url


def _said(args: argparse.Namespace, engine: str | None, plate: Path | None) -> str:
    """The command, without a password: it stands in a comment that people hand around."""
    words = ["headgate", "nginx", "conf", getattr(args, "rulebook", None) or args.file]
    words += ["--shared"] if engine is None else ["--engine", re.sub(r"//[^/?]*@", "//...@", engine)]
    words += [] if plate is None else ["--plate", str(plate)]
    for name in ("prefix", "listen", "backend", "workers"):
        if getattr(args, name) != getattr(Gate, name):
            words += [f"--{name}", str(getattr(args, name))]
    return shlex.join(words)


def _modules() -> list[str] | None:
    """What must be loaded here; None if there is no nginx, or one that we know nothing of."""
    program = _program()
    if program is None:
        return None
    ran = subprocess.run([program, "-V"], capture_output=True, text=True, check=False)
    if "openresty" in ran.stderr or re.search(r"--add-module=\S*lua", ran.stderr):
        return []
    found = [f"{DEBIAN}/{name}" for name in MODULES]
    return found if all(map(os.path.exists, found)) else None


def _resolver() -> str:
    """This machine's DNS server, to begin with."""
    try:
        text = Path("/etc/resolv.conf").read_text()
    except OSError:
        text = ""
    found = re.search(r"^nameserver\s+([0-9.]+)\s*$", text, re.M)
    return Gate.resolver if found is None else found[1]


def _program() -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_PLACES])
    return shutil.which("nginx", path=path) or shutil.which("openresty", path=path)


def _check(args: argparse.Namespace) -> Output:
    program = _program()
    if program is None:
        raise HeadgateError(f"There is no nginx on this machine. {INSTALL}")
    if args.file is None:
        return _tested(args, program, [])
    path = Path(args.file)
    if path.suffix.lower() not in FORMATS:
        if not path.is_file():
            raise InvalidRule(f"{path} is not a file.")
        return _tested(args, program, ["-c", str(path.absolute())])
    book = check_split_limits(load.read(path))
    print_warnings(book, as_json=args.json)
    with TemporaryDirectory(prefix="headgate-nginx-") as folder:
        return _tested(args, program, _made(args, book, Path(folder)))


def _made(args: argparse.Namespace, book: Rulebook, folder: Path) -> list[str]:
    """What `conf` would print, in a folder of its own; the words by which nginx finds it."""
    plate = None if _plate_of(args, Path(args.file)) is None else folder / "rules.plate.json"
    gate = _gate(args, plate, args.file)
    if plate is not None:
        compile_to(plate, book)
    text = conf(book, replace(gate, logs=str(folder), scratch=str(folder)))
    (folder / "nginx.conf").write_text(text)
    return ["-p", f"{folder}/", "-c", str(folder / "nginx.conf"), "-g", f"pid {folder}/nginx.pid;"]


def _tested(args: argparse.Namespace, program: str, words: list[str]) -> Output:
    ran = subprocess.run([program, *words, "-T", "-q"], capture_output=True, check=False)
    said, dump = ran.stderr.decode(errors="replace").strip(), ran.stdout.decode(errors="replace")
    fine = ran.returncode == 0
    if fine and "resty.headgate" in dump:
        wrong = _init(args, program, words, dump)
        said, fine = wrong or said, wrong is None
    lines: list[str | tuple[str, str]] = [(said, "" if fine else "red")] if said else []
    told = [("nginx takes it.", "green")] if fine else [("nginx does not take it.", "red")]
    return Output({"valid": fine, "nginx": said}, [*lines, *told], DONE if fine else INVALID)


def _init(args: argparse.Namespace, program: str, words: list[str], dump: str) -> str | None:
    """Run the Lua of init and return its error; None if it runs."""
    prefix = words[words.index("-p") :][:2] if "-p" in words else []
    with TemporaryDirectory(prefix="headgate-nginx-") as folder:
        try:
            text = init_only(dump, Path(folder))
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
        line = [program, *prefix, "-c", str(path)]
        try:
            ran = subprocess.run(line, capture_output=True, check=False, timeout=_INIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"The Lua of init does not end within {_INIT_TIMEOUT_S} s."
    if ran.returncode == 0:
        return None
    said = ran.stderr.decode(errors="replace").strip()
    if "module 'resty.headgate' not found" in said:
        ours = lua_library.package_path(lua_library.folder())
        return f'No lua_package_path leads to resty/headgate.lua. Add to http:  lua_package_path "{ours};;";'
    found = _init_failed.search(said)
    return f"init_by_lua: {found[1]}" if found else said
