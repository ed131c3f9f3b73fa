"""Modules under the names that they had before the move."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import PathFinder

import pytest

from lightning_modules import moved
from privacy.deprecation import alias_modules
from privacy.moved import MOVED

ALL = {**MOVED, **moved.MOVED}


@pytest.mark.parametrize("old", sorted(ALL))
def test_an_old_name_gives_what_lies_in_the_new_place(old: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(FutureWarning, match=f"{old} has moved to "):
        module = importlib.import_module(old)
    homes = (ALL[old],) if isinstance(ALL[old], str) else ALL[old]
    for home in homes:
        new = importlib.import_module(home)
        for name in getattr(new, "__all__", ()):
            assert getattr(module, name) is getattr(new, name) or len(homes) > 1


def test_what_was_never_there_is_not_found() -> None:
    sys.modules.pop("privacy.releases", None)
    with pytest.warns(FutureWarning):
        module = importlib.import_module("privacy.releases")
    with pytest.raises(AttributeError, match=r"module 'privacy\.releases' has no attribute 'Nothing'"):
        module.Nothing  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("privacy.never_there")


def test_a_real_module_stands_before_an_old_name() -> None:
    """`lightning_modules.distillation` held the base class; what is there now must not be shadowed."""
    assert "lightning_modules.distillation" not in ALL
    before = list(sys.meta_path)
    ours = [place for place, finder in enumerate(before) if type(finder).__name__ == "_Finder"]
    assert ours and min(ours) > before.index(PathFinder)
    alias_modules({"lightning_modules.dpdfd": "lightning_modules.dpsd"})
    try:
        spec = importlib.util.find_spec("lightning_modules.dpdfd")
        assert spec is not None and str(spec.origin).endswith("dpdfd.py")
    finally:
        sys.meta_path[:] = before
