from typing import Any

import pytest

from usechat.errors import MappingError
from usechat.integrations.ag_ui.patch import DOCUMENT_LIMIT, apply_patch

CHANGES: list[tuple[Any, Any]] = [
    ([], {"a": {"b": [1, 2]}, "c/d": "~"}),
    ([{"op": "add", "path": "/a/b/-", "value": 3}], {"a": {"b": [1, 2, 3]}, "c/d": "~"}),
    ([{"op": "add", "path": "/a/b/0", "value": 0}], {"a": {"b": [0, 1, 2]}, "c/d": "~"}),
    ([{"op": "remove", "path": "/a/b/0"}], {"a": {"b": [2]}, "c/d": "~"}),
    ([{"op": "replace", "path": "/a/b/1", "value": None}], {"a": {"b": [1, None]}, "c/d": "~"}),
    ([{"op": "replace", "path": "/c~1d", "value": 1}], {"a": {"b": [1, 2]}, "c/d": 1}),
    ([{"op": "replace", "path": "", "value": 5}], 5),
    ([{"op": "add", "path": "", "value": []}], []),
    ([{"op": "copy", "from": "/a/b", "path": "/e"}], {"a": {"b": [1, 2]}, "c/d": "~", "e": [1, 2]}),
    ([{"op": "move", "from": "/a/b", "path": "/e"}], {"a": {}, "c/d": "~", "e": [1, 2]}),
    ([{"op": "test", "path": "/c~1d", "value": "~"}, {"op": "remove", "path": "/a"}], {"c/d": "~"}),
]


@pytest.mark.parametrize(("patch", "result"), CHANGES)
def test_operations_change_a_copy(patch: Any, result: Any) -> None:
    document = {"a": {"b": [1, 2]}, "c/d": "~"}
    assert apply_patch(document, patch) == result
    assert document == {"a": {"b": [1, 2]}, "c/d": "~"}


@pytest.mark.parametrize(
    "patch",
    [
        None,
        {"op": "add"},
        [5],
        ["add"],
        [{"op": "add", "path": 5, "value": 1}],
        [{"op": "add", "path": "/x/y", "value": 1}],
        [{"op": "add", "path": "x", "value": 1}],
        [{"op": "add", "path": "/a"}],
        [{"op": "add", "path": "/a/3", "value": 1}],
        [{"op": "add", "path": "/a/01", "value": 1}],
        [{"op": "replace", "path": "/a/-", "value": 1}],
        [{"op": "replace", "path": "/b", "value": 1}],
        [{"op": "remove", "path": "/b"}],
        [{"op": "move", "from": "/b", "path": "/c"}],
        [{"op": "test", "path": "/a", "value": 1}],
        [{"op": "swap", "path": "/a"}],
        [{"op": "test", "path": "/" * 1000, "value": 1}],
        [{"op": "test", "path": "", "value": {"a": [1]}}] * 1001,
    ],
)
def test_a_patch_that_does_not_fit_is_refused(patch: Any) -> None:
    with pytest.raises(MappingError, match="An AG-UI agent sent a patch that"):
        apply_patch({"a": [1]}, patch)


def test_copies_of_copies_do_not_fill_the_memory() -> None:
    doubled = [{"op": "copy", "from": "", "path": f"/{number}"} for number in range(60)]
    with pytest.raises(MappingError, match=f"a document of more than {DOCUMENT_LIMIT:,} bytes"):
        apply_patch({"a": 1}, doubled)
