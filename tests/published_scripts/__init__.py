"""What the articles' readers call, and that it has none of the articles' defects."""

import pytest

pytest.register_assert_rewrite("tests.published_scripts.article_scripts")
