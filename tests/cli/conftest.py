import pytest

from headgate.cli.flash_sale import SECONDS, Sale


@pytest.fixture(scope="session")
def played() -> Sale:
    """The whole sale; look, but do not play on."""
    sale = Sale()
    sale.play_until(SECONDS)
    return sale
