"""Finds the programs that Python files start, by reading the files.

A start is a call of subprocess, asyncio, os or pty that runs a program, or of shutil.which, which looks one up.
Its program is followed through constants, variables, attributes, lists of words, loops, parametrized tests, and
the arguments and results of functions in the same files. Where that leads nowhere the answer holds UNKNOWN:
nothing is guessed.

    "nghttp"           a name that must be on the PATH
    PYTHON             the interpreter that runs the tests
    ".../caddy"        a file in a folder that the code computes
    SHELL              a text that a shell runs
    UNKNOWN            cannot be read from the source

The reason for its length: one reader of expressions, whose parts call each other.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple

PYTHON = "sys.executable"
SHELL = "the text of a shell"
UNKNOWN = "?"
FOLDER = ".../"

_WORDS_FIRST = {f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")}
_PROGRAM_FIRST = {
    "asyncio.create_subprocess_exec",
    *(f"os.{name}" for name in ("execl", "execle", "execlp", "execlpe", "execv", "execve", "execvp", "execvpe")),
    *("os.posix_spawn", "os.posix_spawnp", "pty.spawn"),
}
_MODE_FIRST = {
    f"os.{name}"
    for name in ("spawnl", "spawnle", "spawnlp", "spawnlpe", "spawnv", "spawnve", "spawnvp", "spawnvpe")
}
_TEXT_FIRST = {
    *("asyncio.create_subprocess_shell", "os.popen", "os.system"),
    *("subprocess.getoutput", "subprocess.getstatusoutput"),
}
_STARTS = {"shutil.which", *_WORDS_FIRST, *_PROGRAM_FIRST, *_MODE_FIRST, *_TEXT_FIRST}
_PASS_THROUGH = {
    "str",
    "pathlib.Path",
    "os.fspath",
    "list",
    "tuple",
    "shutil.which",
}  # what they return names the program
_SHELLS = {"sh", "bash", "dash", "zsh", "fish"}
_RUNNERS = {"setpriv"}  # the words after -- are another program

Function = ast.FunctionDef | ast.AsyncFunctionDef
Names = frozenset[str]
_UNKNOWN_ONLY: Names = frozenset([UNKNOWN])


class Start(NamedTuple):
    """A place that starts a program: the file and the function, the line, and the programs it may be."""

    place: str
    line: int
    programs: Names


@dataclass
class _Module:
    path: str
    name: str
    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Scope:
    """The surroundings of an expression; `arguments` are those of the call through which it was reached."""

    module: _Module
    function: Function | None = None
    owner: ast.ClassDef | None = None
    outer: "_Scope | None" = None
    arguments: dict[str, "_Expression"] = field(default_factory=dict)

    @property
    def place(self) -> str:
        names = []
        scope: _Scope | None = self
        while scope is not None:
            names += [] if scope.function is None else [scope.function.name]
            names += [] if scope.owner is None or scope.function is None else [scope.owner.name]
            scope = scope.outer
        return "::".join([self.module.path, *dict.fromkeys(reversed(names))])


class _Expression(NamedTuple):
    """An expression, or None for a value that cannot be known."""

    expression: ast.expr | None
    scope: _Scope


class Programs:
    """Reads Python files and lists every place in them that starts a program."""

    def __init__(self, files: Sequence[Path], root: Path) -> None:
        self._calls: list[tuple[ast.Call, _Scope]] = []
        self._functions: dict[str, tuple[Function, _Scope]] = {}  # by qualified name
        self._methods: dict[str, list[tuple[Function, _Scope]]] = {}  # by name alone
        self._constants: dict[str, list[_Expression]] = {}
        self._attributes: dict[str, list[tuple[str, ast.expr | None, _Scope]]] = {}  # assigned, by name alone
        self._classes: set[str] = set()
        self._bases: dict[str, set[str]] = {}  # of classes, by name alone
        self._in_progress: set[ast.expr] = set()  # a program that depends on itself cannot be known
        for path in files:
            self._read(path, root)

    def starts(self) -> list[Start]:
        """Lists the places in the order of the files."""
        results = []
        for call, scope in self._calls:
            if (programs := self._start_programs(call, scope)) is not None:
                results.append(Start(scope.place, call.lineno, programs))
            # A start that is handed to another function: nobody can say what it will be called with.
            arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
            if any(self._qualified(value, scope) in _STARTS for value in arguments):
                results.append(Start(scope.place, call.lineno, _UNKNOWN_ONLY))
        return results

    # Reading

    def _read(self, path: Path, root: Path) -> None:
        relative = path.relative_to(root)
        name = ".".join(relative.with_suffix("").parts).removeprefix("src.").removesuffix(".__init__")
        module = _Module(str(relative), name, ast.parse(path.read_text()))
        self._index(module.tree, _Scope(module))

    def _index(self, node: ast.AST, scope: _Scope) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            if isinstance(child, ast.ClassDef):
                bases = {ast.unparse(base).rpartition(".")[2] for base in child.bases}
                self._classes.add(f"{scope.module.name}.{child.name}")
                self._bases.setdefault(child.name, set()).update(bases)
                inner = _Scope(scope.module, scope.function, child, scope.outer)
            elif isinstance(child, Function):
                inner = _Scope(scope.module, child, scope.owner, scope)
                if scope.owner is not None and child in scope.owner.body:
                    self._methods.setdefault(child.name, []).append((child, inner))
                    if child.name == "__init__":
                        self._functions[f"{scope.module.name}.{scope.owner.name}"] = (child, inner)
                elif scope.function is None:
                    self._functions[f"{scope.module.name}.{child.name}"] = (child, inner)
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    local_name = alias.name if alias.asname else alias.name.partition(".")[0]
                    scope.module.imports[alias.asname or local_name] = local_name
            elif isinstance(child, ast.ImportFrom):
                for alias in child.names:
                    scope.module.imports[alias.asname or alias.name] = f"{child.module}.{alias.name}"
            elif isinstance(child, ast.Call):
                self._calls.append((child, scope))
            for target, value in _assignments(child) if isinstance(child, ast.stmt) else ():
                if "." in target:
                    attribute = target.rpartition(".")[2]
                    self._attributes.setdefault(attribute, []).append((target, value, scope))
                elif scope.function is None and scope.owner is None:
                    self._constants.setdefault(f"{scope.module.name}.{target}", []).append(
                        _Expression(value, scope)
                    )
            self._index(child, inner)

    # Starts

    def _start_programs(self, call: ast.Call, scope: _Scope) -> Names | None:
        name = self._qualified(call.func, scope)
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("subprocess_exec", "subprocess_shell"):
            return self._first(call.args[1:], scope) if call.func.attr == "subprocess_exec" else frozenset([SHELL])
        if name == "shutil.which":
            return self._value(call.args[0], scope) if call.args else _UNKNOWN_ONLY
        if name in _TEXT_FIRST:
            return frozenset([SHELL])
        if name in _MODE_FIRST:
            return self._first(call.args[1:], scope)
        if name in _PROGRAM_FIRST:
            return self._first(call.args, scope)
        if name not in _WORDS_FIRST:
            return None
        arguments = {keyword.arg: keyword.value for keyword in call.keywords}
        if None in arguments:
            return _UNKNOWN_ONLY
        if "shell" in arguments and not (
            isinstance(arguments["shell"], ast.Constant) and not arguments["shell"].value
        ):
            return frozenset([SHELL])
        words = call.args[0] if call.args else arguments.get("args")
        results = _UNKNOWN_ONLY if words is None else _programs(self._words(words, scope))
        return results | (
            self._value(arguments["executable"], scope) if "executable" in arguments else frozenset()
        )

    def _first(self, args: Sequence[ast.expr], scope: _Scope) -> Names:
        return _programs(self._words(ast.List(list(args)), scope))

    # Values

    def _words(self, node: ast.expr, scope: _Scope) -> list[list[Names]]:
        """The words of a command line, in each form that it may have. UNKNOWN may be any number of words."""
        if isinstance(node, ast.List | ast.Tuple):
            parts = [
                self._words(word.value, scope) if isinstance(word, ast.Starred) else [[self._value(word, scope)]]
                for word in node.elts
            ]
            return [[word for part in parts_of_line for word in part] for parts_of_line in product(*parts)]
        if isinstance(node, ast.IfExp):
            return self._words(node.body, scope) + self._words(node.orelse, scope)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            both = product(self._words(node.left, scope), self._words(node.right, scope))
            return [[*left, *right] for left, right in both]
        if isinstance(node, ast.Name | ast.Attribute | ast.Call) and node not in self._in_progress:
            self._in_progress.add(node)
            results = [
                words
                for expression, place in self._sources(node, scope)
                for words in ([[_UNKNOWN_ONLY]] if expression is None else self._words(expression, place))
            ]
            self._in_progress.remove(node)
            if isinstance(node, ast.Name) and scope.function is not None:
                for more in _appended_words(node.id, scope.function):
                    results = [[*words, *rest] for words in results for rest in self._words(more, scope)]
            if results:
                return results
        return [[self._value(node, scope)]]

    def _value(self, node: ast.expr, scope: _Scope) -> Names:
        """The texts that an expression may be."""
        match node:
            case ast.Constant(value=str(text)):
                return frozenset([text])
            case ast.IfExp(body=body, orelse=other):
                return self._value(body, scope) | self._value(other, scope)
            case ast.BoolOp(values=values):
                return frozenset[str]().union(*(self._value(value, scope) for value in values))
            case ast.BinOp(op=ast.Div(), right=right):
                names = self._value(right, scope)
                return frozenset(name if name == UNKNOWN else FOLDER + name for name in names)
            case ast.NamedExpr(value=value):
                return self._value(value, scope)
            case ast.Attribute() if self._qualified(node, scope) == "sys.executable":
                return frozenset([PYTHON])
        if node in self._in_progress:
            return _UNKNOWN_ONLY
        self._in_progress.add(node)
        results = [
            _UNKNOWN_ONLY if expression is None else self._value(expression, place)
            for expression, place in self._sources(node, scope)
        ]
        self._in_progress.remove(node)
        return frozenset[str]().union(*results) if results else _UNKNOWN_ONLY

    def _sources(self, node: ast.expr, scope: _Scope) -> list[_Expression]:
        """The expressions from which a name, an attribute or a call may get its value."""
        if isinstance(node, ast.Name):
            return self._definitions(node.id, scope)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self" and scope.owner is not None:
                return self._attribute_values(node.attr, scope)
            return self._constants.get(self._qualified(node, scope), [])
        if isinstance(node, ast.Call):
            if self._qualified(node.func, scope) in _PASS_THROUGH and node.args:
                return [_Expression(node.args[0], scope)]
            return [
                _Expression(value, _Scope(place.module, function, place.owner, place.outer, arguments))
                for function, place in self._callees(node, scope)
                for arguments in [_arguments(node, function, place, scope)]
                for value in _return_values(function)
            ]
        return []

    def _definitions(self, name: str, scope: _Scope) -> list[_Expression]:
        if name in scope.arguments:
            return [scope.arguments[name]]
        function = scope.function
        if function is not None:
            assigned = [value for target, value in _local_assignments(function) if target == name]
            assigned = assigned or [value for target, value in _comprehension_targets(function) if target == name]
            local = [_Expression(value, scope) for value in assigned]
            if name in _parameters(function):
                return [*local, *(self._parametrize_values(name, scope) or self._caller_arguments(name, scope))]
            if local:
                return local
        if scope.outer is not None:
            return self._definitions(name, scope.outer)
        qualified = scope.module.imports.get(name, f"{scope.module.name}.{name}")
        return self._constants.get(qualified, [])

    def _attribute_values(self, name: str, scope: _Scope) -> list[_Expression]:
        """The values of an attribute: of its class, of self in its methods, of any object elsewhere."""
        assert scope.owner is not None
        results = [
            _Expression(value, _Scope(scope.module))
            for node in scope.owner.body
            for target, value in _assignments(node)
            if target == name
        ]
        results += [
            _Expression(value, place)
            for target, value, place in self._attributes.get(name, [])
            if target != f"self.{name}" or place.owner is scope.owner
        ]
        made = f"{scope.module.name}.{scope.owner.name}"
        for call, place in self._calls:
            for keyword in call.keywords:
                if keyword.arg == name and self._qualified(call.func, place) == made:
                    results.append(_Expression(keyword.value, place))
        return results

    def _parametrize_values(self, name: str, scope: _Scope) -> list[_Expression]:
        """The values that pytest.mark.parametrize gives to a test."""
        assert scope.function is not None
        top = _Scope(scope.module)
        results = []
        for decorator in scope.function.decorator_list:
            marks = (
                self._sources(decorator, top) if isinstance(decorator, ast.Name) else [_Expression(decorator, top)]
            )
            for mark, place in marks:
                match mark:
                    case ast.Call(
                        func=ast.Attribute(attr="parametrize"), args=[ast.Constant(value=str(text)), rows, *_]
                    ):
                        if text == name:
                            values = rows.elts if isinstance(rows, ast.List | ast.Tuple) else [None]
                            results += [_Expression(value, place) for value in values]
        return results

    def _caller_arguments(self, name: str, scope: _Scope) -> list[_Expression]:
        function = scope.function
        assert function is not None
        results = [
            _arguments(call, function, scope, place).get(name, _Expression(None, place))
            for call, place in self._callers.get(function, [])
        ]
        return results or [_Expression(None, scope)]

    @cached_property
    def _callers(self) -> dict[Function, list[tuple[ast.Call, _Scope]]]:
        results: dict[Function, list[tuple[ast.Call, _Scope]]] = {}
        for call, scope in self._calls:
            for function, _ in self._callees(call, scope):
                results.setdefault(function, []).append((call, scope))
        return results

    def _callees(self, call: ast.Call, scope: _Scope) -> list[tuple[Function, _Scope]]:
        """The functions of these files that a call may run; methods only where self or super() is called."""
        name = self._qualified(call.func, scope)
        if name in self._functions:
            return [self._functions[name]]
        if scope.owner is None:
            return []
        match call.func:
            case ast.Attribute(value=ast.Name(id="self"), attr=attr):
                return [each for each in self._methods.get(attr, []) if self._related(scope, each[1])]
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=attr):
                above = self._ancestors(scope.owner.name) - {scope.owner.name}
                methods = self._methods.get(attr, [])
                return [each for each in methods if each[1].owner is not None and each[1].owner.name in above]
        return []

    def _related(self, one: _Scope, other: _Scope) -> bool:
        """Returns whether one of the two classes inherits from the other, or they are the same."""
        if one.owner is None or other.owner is None:
            return False
        first, second = one.owner.name, other.owner.name
        return first in self._ancestors(second) or second in self._ancestors(first)

    def _ancestors(self, name: str) -> set[str]:
        return {name}.union(*(self._ancestors(base) for base in self._bases.get(name, ()) if base != name))

    def _qualified(self, node: ast.expr, scope: _Scope) -> str:
        match node:
            case ast.Name(id=name) if name in scope.module.imports:
                return scope.module.imports[name]
            case ast.Name(id=name):
                qualified = f"{scope.module.name}.{name}"
                ours = qualified in self._functions or qualified in self._constants or qualified in self._classes
                return qualified if ours else name
            case ast.Attribute(value=value, attr=attr):
                return f"{self._qualified(value, scope)}.{attr}"
        return UNKNOWN


def _programs(lines: list[list[Names]]) -> Names:
    """The programs that these command lines start."""
    results: set[str] = set()
    for words in lines:
        first = words[0] if words else _UNKNOWN_ONLY
        results |= first
        if first & _SHELLS:
            results.add(SHELL)
        if first & _RUNNERS:
            after = [index for index, word in enumerate(words) if word == {"--"}]
            results |= _programs([words[after[0] + 1 :]]) if after else _UNKNOWN_ONLY
    return frozenset(results)


def _local_assignments(function: Function) -> Iterator[tuple[str, ast.expr | None]]:
    """Yields the names that a function assigns, each with its value, or None if that cannot be known."""
    for node in ast.walk(function):
        if isinstance(node, ast.stmt):
            yield from _assignments(node)
        elif isinstance(node, ast.NamedExpr):
            yield node.target.id, node.value


def _comprehension_targets(function: Function) -> Iterator[tuple[str, ast.expr | None]]:
    """Yields the names of a function's comprehensions. Outside of its comprehension such a name is another one."""
    for node in ast.walk(function):
        if isinstance(node, ast.comprehension):
            yield from _unpack_each(node.target, node.iter)


def _assignments(node: ast.stmt) -> Iterator[tuple[str, ast.expr | None]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _unpack(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _unpack(target, value)
        case ast.For(target=target, iter=values) | ast.AsyncFor(target=target, iter=values):
            yield from _unpack_each(target, values)
        case ast.With(items=items) | ast.AsyncWith(items=items):
            for item in items:
                if item.optional_vars is not None:
                    yield from _unpack(item.optional_vars, None)


def _unpack(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(target, ast.Name | ast.Attribute):
        yield ast.unparse(target), value
    elif isinstance(target, ast.Tuple | ast.List):
        alike = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        parts = value.elts if alike and isinstance(value, ast.Tuple | ast.List) else [None] * len(target.elts)
        for one, part in zip(target.elts, parts, strict=True):
            yield from _unpack(one, part)


def _unpack_each(target: ast.expr, values: ast.expr) -> Iterator[tuple[str, ast.expr | None]]:
    for value in values.elts if isinstance(values, ast.Tuple | ast.List) else [None]:
        yield from _unpack(target, value)


def _appended_words(name: str, function: Function) -> list[ast.expr]:
    """Lists what += adds to a variable."""
    return [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id == name
    ]


def _return_values(function: Function) -> list[ast.expr]:
    results = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    return [value for value in results if value is not None and not _is_none(value)]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _parameters(function: Function) -> list[str]:
    args = function.args
    more = [arg for arg in (args.vararg, args.kwarg) if arg is not None]
    return [arg.arg for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs, *more]]


def _arguments(call: ast.Call, function: Function, home: _Scope, scope: _Scope) -> dict[str, _Expression]:
    """The values of a function's parameters in one call."""
    args = function.args
    names = [arg.arg for arg in [*args.posonlyargs, *args.args]]
    results: dict[str, _Expression] = {}
    for name, default in zip(reversed(names), reversed(args.defaults), strict=False):
        results[name] = _Expression(default, home)
    for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        if value is not None:
            results[arg.arg] = _Expression(value, home)
    names = names[1:] if names[:1] == ["self"] else names
    for index, argument in enumerate(call.args):
        if isinstance(argument, ast.Starred):
            results |= {name: _Expression(None, scope) for name in names[index:]}
            break
        if index < len(names):
            results[names[index]] = _Expression(argument, scope)
    if args.vararg is not None:
        results[args.vararg.arg] = _Expression(ast.List(call.args[len(names) :]), scope)
    for keyword in call.keywords:
        if keyword.arg is not None:
            results[keyword.arg] = _Expression(keyword.value, scope)
    return results
