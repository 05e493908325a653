"""Tests of every outcome, for tests/test_run.py; by its name no other run collects them."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def torn() -> Iterator[None]:
    yield
    raise AssertionError("torn down")


def test_that_passes() -> None:
    pass


def test_that_fails() -> None:
    raise AssertionError("because it does")


def test_that_fails_twice(torn: None) -> None:
    raise AssertionError("at first")


def test_that_is_skipped() -> None:
    pytest.skip("for a reason")
