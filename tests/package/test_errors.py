"""The tree in the docstring of `usechat.errors` has every error of the package."""

import pkgutil
from importlib import import_module

import usechat
from usechat import errors
from usechat.errors import UsechatError


def drawn() -> dict[str, str]:
    """Each error of the tree and the one above it."""
    parents, above = dict[str, str](), dict[int, str]()
    for line in (errors.__doc__ or "").splitlines():
        name = line.lstrip("│├└─ ").partition(" ")[0]
        depth = (len(line) - len(line.lstrip("│├└─ "))) // 4
        if depth and name:
            parents[name] = above[depth - 1]
        above[depth] = name
    return parents


def test_the_tree_has_every_error_in_its_place() -> None:
    for module in pkgutil.walk_packages(usechat.__path__, "usechat."):
        import_module(module.name)
    found, rest = dict[str, str](), [UsechatError]
    while rest:
        parent = rest.pop()
        kinds = [kind for kind in parent.__subclasses__() if kind.__module__.startswith("usechat.")]
        found |= {kind.__name__: parent.__name__ for kind in kinds}
        rest += kinds
    assert drawn() == found
