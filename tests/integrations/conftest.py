"""Tests of drivers whose framework the development environment does not have are left to `make frameworks`."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("pydantic_ai") else ["test_pydantic_ai.py"]
