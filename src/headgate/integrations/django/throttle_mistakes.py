"""Finds mistakes in the throttles of REST framework when a project starts."""

from __future__ import annotations

from importlib import import_module

from django.apps import apps

from headgate.errors import MissingExtra

_THROTTLES = "headgate.integrations.drf"  # it is built on this package, so it is imported by name


def throttle_mistakes() -> list[str]:
    """Returns the mistakes in headgate's throttles, if the project uses REST framework."""
    if not apps.is_installed("rest_framework"):
        return []
    try:
        throttles = import_module(_THROTTLES)
    except MissingExtra as error:
        return [str(error)]
    mistakes: list[str] = throttles.find_mistakes()
    return mistakes
