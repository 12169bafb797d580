"""The app for INSTALLED_APPS: it registers the system checks."""

from django.apps import AppConfig
from django.core import checks

from headgate.integrations.django.checks import check_deployment, check_limits, check_middleware, check_throttles


class HeadgateConfig(AppConfig):
    """The app "headgate"; it has no models."""

    name = "headgate.integrations.django"
    label = "headgate"
    verbose_name: str = "Rate limits"

    def ready(self) -> None:
        """Registers the checks."""
        checks.register(check_middleware)
        checks.register(check_limits)
        checks.register(check_throttles)
        checks.register(check_deployment, deploy=True)
