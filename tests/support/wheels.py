"""The wheel as its users get it, in environments that hold nothing but what it declares.

Nothing is downloaded: the packages of an environment are links to those of the environment that runs the tests. What
neither the wheel nor a package that it needs has declared is not there.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PathDistribution, distribution, packages_distributions
from pathlib import Path
from typing import Final
from zipfile import Path as ZipPath

from packaging.requirements import Requirement

from support.hang import HANG_SECONDS

__all__ = ["Environment", "build", "metadata", "packaged"]

ROOT: Final = Path(__file__).parents[2]
_BIN: Final = Path(sys.executable).parent
_SOURCES: Final = ("LICENSE", "Makefile", "README.md", "pyproject.toml", "src")
# Set up before the tests began.
_READY: Final = (".venv/ready", "src/usechat/page/index.html")


def build(folder: Path) -> Path:
    """Run `make dist` in a copy of the sources; the folder of what it built."""
    for name in _SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder)
    ready = [f"--old-file={file}" for file in _READY]
    command = ["make", "dist", f"BIN={_BIN}", *ready]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr
    return folder / "dist"


def packaged() -> set[str]:
    """The files that the package has in the checkout."""
    files = (file for file in _walk(ROOT / "src" / "usechat") if "__pycache__" not in file.parts)
    return {str(file.relative_to(ROOT / "src")) for file in files}


def _walk(folder: Path) -> Iterator[Path]:
    """As `rglob`, but through links to folders, too."""
    for path, _, names in os.walk(folder, followlinks=True):
        yield from (Path(path, name) for name in names)


def metadata(wheel: Path) -> Distribution:
    (info,) = (path for path in ZipPath(wheel).iterdir() if path.name.endswith(".dist-info"))
    # It is made for a path of a zip file, too, and only its types do not say so.
    return PathDistribution(info)  # pyright: ignore[reportArgumentType]


@dataclass
class Environment:
    """An environment with a wheel and some of its extras, such as `cli,server`."""

    folder: Path
    wheel: Path
    extras: str = ""

    def __post_init__(self) -> None:
        venv.create(self.folder, symlinks=True)
        (site,) = self.folder.glob("lib/python*/site-packages")
        for package in _needed(metadata(self.wheel), self.extras):
            _link(package, site)
        install = [_BIN / "uv", "pip", "install", "--quiet", "--offline", "--no-deps", "--python", self.python]
        subprocess.run([*install, self.wheel], check=True, timeout=HANG_SECONDS)

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def run(self, *command: str, cwd: Path) -> tuple[int, str, str]:
        """Run a program of the environment: its exit code, output and errors."""
        program = self.folder / "bin" / command[0]
        done = subprocess.run(
            [program, *command[1:]],
            cwd=cwd,
            env={**os.environ, **self.environ},
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
        )
        return done.returncode, done.stdout, done.stderr

    @property
    def environ(self) -> dict[str, str]:
        """What hides the sources that the tests themselves may run with."""
        return {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}


def _needed(wheel: Distribution, extras: str) -> list[Distribution]:
    """The packages that the wheel with these extras needs, as they are installed here."""
    found = dict[str, Distribution]()
    seen = set[tuple[str, str]]()
    rest = [(wheel, extra) for extra in ("", *filter(None, extras.split(",")))]
    while rest:
        package, extra = rest.pop()
        if (package.name, extra) in seen:
            continue
        seen.add((package.name, extra))
        for requirement in map(Requirement, package.requires or ()):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
                continue
            needed = wheel if requirement.name == wheel.name else distribution(requirement.name)
            assert requirement.specifier.contains(needed.version, prereleases=True), str(requirement)
            found[needed.name] = needed
            rest += [(needed, each) for each in ("", *requirement.extras)]
    found.pop(wheel.name, None)
    return list(found.values())


@cache
def _shared() -> set[str]:
    """The folders that several packages have files in."""
    return {folder for folder, owners in packages_distributions().items() if len({*owners}) > 1}


def _link(package: Distribution, site: Path) -> None:
    """Link the folders of a package, and in those that it shares with others only its own files."""
    here = Path(sysconfig.get_path("purelib"))
    inside = [Path(file) for file in package.files or () if ".." not in file.parts]
    for file in {file if file.parts[0] in _shared() else Path(file.parts[0]) for file in inside}:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).symlink_to(here / file)
