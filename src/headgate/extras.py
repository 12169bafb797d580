"""Optional packages: checks whether they are installed, and names the extra that brings them."""

from __future__ import annotations

from importlib.util import find_spec

from headgate.errors import MissingExtra

ENVOY_MODULES = ("hpack", "google.protobuf")  # without them the service answers HTTP only
INSTALL_ENVOY = "pip install 'headgate[envoy]'"

_PACKAGES = {  # those that are not called like their modules
    "django": "Django",
    "google.protobuf": "protobuf",
    "grpc": "grpcio",
    "opentelemetry": "opentelemetry-api",
    "prometheus_client": "prometheus-client",
    "rest_framework": "djangorestframework",
    "yaml": "PyYAML",
}


def require(feature: str, extra: str, *modules: str, hint: str = "") -> None:
    """Raises MissingExtra unless all these modules can be imported.

    >>> require("headgate.client", "client", "no_such_module")
    Traceback (most recent call last):
    headgate.errors.MissingExtra: headgate.client needs no_such_module: pip install 'headgate[client]'.
    """
    missing_modules = missing(*modules)
    if missing_modules:
        *others, last = [_PACKAGES.get(module, module) for module in missing_modules]
        names = f"{', '.join(others)} and {last}" if others else last
        raise MissingExtra(
            f"{feature} needs {names}: pip install 'headgate[{extra}]'.{hint}", name=missing_modules[0]
        )


def missing(*modules: str) -> list[str]:
    """Returns those of the modules that cannot be imported. Imports none of them.

    >>> missing("json", "no_such_module")
    ['no_such_module']
    """
    return [module for module in modules if not _importable(module)]


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # its package is missing, or sys.modules has a stand-in without spec
        return False
