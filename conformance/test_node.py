"""What is said about a Node process that does not answer."""

from pathlib import Path

import pytest

from node import Node


@pytest.mark.parametrize(
    ("script", "bound"), [("setTimeout(() => console.log('{}'), 60_000);", 0.1), ("process.exit();", 3600)]
)
def test_a_script_that_does_not_answer_is_named_with_what_it_was_asked(
    tmp_path: Path, script: str, bound: float
) -> None:
    (tmp_path / "silent.mjs").write_text(script, encoding="utf-8")
    node = Node(str(tmp_path / "silent.mjs"), bound=bound)
    with pytest.raises(
        AssertionError, match=r'^silent.mjs has ended or hangs, and did not answer {"op": "settle", "page": 1}$'
    ):
        node.request("settle", page=1)
    node.close()
