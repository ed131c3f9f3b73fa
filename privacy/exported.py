"""Checks a folder that somebody hands on: its files are those exported, and its ε is what its releases cost."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from privacy.accounting.composition import compose
from privacy.events.base import release_from_dict
from privacy.formatting import round_up
from privacy.neighbours import Unit, common_neighbours
from privacy.published.claims import claim_from_dict, published_epsilon

__all__ = ["GUARANTEE", "AlteredError", "check_export", "checksums"]

GUARANTEE = "guarantee.json"


class AlteredError(ValueError):
    """A folder is not as it was exported, or states a figure that its releases do not give."""


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a folder by its relative path, but for `guarantee.json`, which holds them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / GUARANTEE)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def check_export(folder: Path) -> list[str]:
    """What was checked of an exported folder, in words. Needs nothing but the folder.

    Who alters a file and everything that states it is not found: compare the checksum of `guarantee.json` with one that
    came by another way.

    Raises:
        AlteredError: What is altered, missing or added, or a figure that cannot be true.
    """
    try:
        content = json.loads((folder / GUARANTEE).read_text(encoding="utf-8"))
        stated, claim, files = content["guarantee"], content["published_claim"], content["files"]
        delta = float(stated["delta"])
        releases = stated["releases"]
        found = [] if releases is None else [(release_from_dict(one), int(count)) for one, count in releases]
        epsilons = {name: float(stated[name]) for name in ("epsilon", "epsilon_of_run", "teacher_epsilon")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AlteredError(f"{folder / GUARANTEE} cannot be read as the guarantee of an export ({error!r})") from error
    wrong = _files(folder, files)
    if not 0 < delta < 1:
        wrong.append(f"{GUARANTEE}: delta must lie between 0 and 1, and is {delta}")
    said = [f"{len(files)} files are as they were exported (SHA-256)"]
    if releases is None:
        said.append(f"ε = {round_up(epsilons['epsilon'])} was NOT recomputed: it is a target")
    elif not wrong:
        bound = compose(Counter(dict(found)), delta).epsilon
        if not _same(bound, epsilons["epsilon"]):
            wrong.append(f"{GUARANTEE}: epsilon is {epsilons['epsilon']}, and its releases compose to {bound}")
        unit, _ = common_neighbours((one.unit, one.relation) for one, _ in found)
        if (unit is Unit.CLIENT) != stated["unit"].startswith("one client"):
            wrong.append(f"{GUARANTEE}: the unit is '{stated['unit']}', and that of its releases is {unit.value}")
        said.append(
            f"record-level ε = {round_up(bound)} at δ = {delta:g} is what {sum(count for _, count in found):,} "
            f"releases compose to; unit: {stated['unit']}; neighbours: {stated['relation']}"
        )
    if claim is not None and not wrong:
        claims = Counter({claim_from_dict(one): int(count) for one, count in claim["claims"]})
        figure = published_epsilon(claims, delta) if claims else math.inf
        if not _same(figure, float(claim["epsilon"])):
            wrong.append(f"{GUARANTEE}: the published epsilon is {claim['epsilon']}, and its theorem gives {figure}")
        said.append(f"published ε = {round_up(figure)} is what {claim['source']} gives; it bounds no record")
    if wrong:
        raise AlteredError(f"{folder} is not as it was exported:\n" + "\n".join(f"- {text}" for text in wrong))
    return said


def _files(folder: Path, stated: Mapping[str, str]) -> list[str]:
    found = checksums(folder)
    wrong = [f"{name} is missing" for name in stated if name not in found]
    wrong += [f"{name} was altered" for name, digest in stated.items() if found.get(name, digest) != digest]
    return wrong + [f"{name} was added" for name in found if name not in stated]


def _same(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=1e-9)
