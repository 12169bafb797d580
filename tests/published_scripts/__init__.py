"""Tests of the published scripts: what gateways call, without the defects of the scripts that they replace."""

import pytest

pytest.register_assert_rewrite("tests.published_scripts.article_scripts")
