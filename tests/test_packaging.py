"""The promises of pyproject.toml, the constraints files, the Makefile and the citation."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("datamodules", "lightning_modules", "privacy", "sweeps")
# The extras whose packages are pinned; `oracle` is not, since it needs an older attrs than the rest.
PINNED_EXTRAS = ("medmnist", "test")

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def test_wheel_holds_all_of_the_packages_and_nothing_else(tmp_path: Path) -> None:
    """Built of a copy of the sources as pip would, without its isolated environment."""
    source = tmp_path / "source"
    for name in (*PACKAGES, "tests", "benchmarks", "experiments"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, source / name)
    command = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", command, str(tmp_path)], cwd=source, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for pattern in ("*.py", "*.pyi", "*.yaml", "*.csv", "*.md", "py.typed")
        for path in (ROOT / package).rglob(pattern)
    }
    installed = {name for name in files if ".dist-info/" not in name}
    assert installed == sources, f"missing {sources - installed}, unexpected {installed - sources}"
    assert any(name.endswith("licenses/LICENSE") for name in files)


def test_the_console_script_runs_the_command_line() -> None:
    from lightning_modules.cli import main

    ((name, target),) = PROJECT["scripts"].items()
    entry = importlib.metadata.EntryPoint(name=name, value=target, group="console_scripts")
    assert name == "LightningCLI" and entry.load() is main


def test_lower_bounds_are_the_versions_that_test_lowest_installs() -> None:
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    chosen = {canonicalize_name(one.name): str(one.specifier).removeprefix("==") for one in pinned}
    wanted = [
        *PROJECT["dependencies"],
        *(one for extra in PINNED_EXTRAS for one in PROJECT["optional-dependencies"][extra]),
    ]
    for requirement in map(Requirement, wanted):
        (lower,) = (Version(one.version) for one in requirement.specifier if one.operator == ">=")
        assert Version(chosen[canonicalize_name(requirement.name)]) == lower, requirement


def test_version_is_the_same_everywhere() -> None:
    citation: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert f"[{PROJECT['version']}]" in (ROOT / "CHANGELOG.md").read_text()
