"""Verification of an exported folder: its files are unchanged, and its ε follows from its releases."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from privacy.accounting.composition import known_epsilon
from privacy.checks import round_up
from privacy.events.base import Unit, common_neighbours, release_from_dict
from privacy.guarantee import FULLY_ADAPTIVE, RELATIONS, Guarantee, level_of
from privacy.published import claim_from_dict, published_epsilon

_Counted = TypeVar("_Counted")

GUARANTEE = "guarantee.json"


class AlteredError(ValueError):
    """A folder differs from the export, or states a figure that does not follow from its releases."""


def checksums(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a folder by relative path, except `guarantee.json`, which stores them.

    Raises:
        AlteredError: There is something else than plain files, such as a link, whose target may change after the check.
    """
    paths = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]
    if others := [path for path in paths if path.is_symlink() or not path.is_file()]:
        raise AlteredError(f"{others[0]} is a link or no plain file, and no export holds one")
    files = [path for path in paths if path != folder / GUARANTEE]
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def check_export(folder: Path) -> list[str]:
    """Checks an exported folder by itself and describes the checks in sentences.

    It cannot detect that a file and every statement about it were altered together: compare the checksum of
    `guarantee.json` with one received by another way.

    Raises:
        AlteredError: A file was altered, removed or added, or a figure cannot be true.
    """
    try:
        digests = checksums(folder)
        text = (folder / GUARANTEE).read_text(encoding="utf-8")
        content = json.loads(text, object_pairs_hook=_unique)
        wrong, lines = _files(digests, content["files"]), _statements(content)
        wrong += [text for text in lines if text.startswith(GUARANTEE)]
        guarantee = Guarantee.from_dict(content)
        if not wrong and json.loads(json.dumps({**guarantee.to_dict(), "files": content["files"]})) != content:
            wrong.append(f"{GUARANTEE} has values that no guarantee has, or lacks some")
        page = guarantee.to_markdown()
        for name, true in (("guarantee.md", page.__eq__), ("README.md", lambda text: section_of(page) in text)):
            if (folder / name).is_file() and not true((folder / name).read_text(encoding="utf-8")):
                wrong.append(f"{name} does not say what {GUARANTEE} says")
    except AlteredError:
        raise
    except Exception as error:  # malformed text may raise anything
        raise AlteredError(f"{folder / GUARANTEE} cannot be read as the guarantee of an export ({error!r})") from error
    if wrong:
        raise AlteredError(f"{folder} is not as it was exported:\n" + "\n".join(f"- {text}" for text in wrong))
    return [f"{len(content['files'])} files are as they were exported (SHA-256)", *lines]


def section_of(page: str) -> str:
    """Converts a guarantee's page to a section of a model card: without its title and with lower headings."""
    return page.partition("\n")[2].strip().replace("\n## ", "\n### ")


def _statements(content: Mapping[str, Any]) -> list[str]:
    """Describes how the figures follow from the releases; lines about errors begin with the file's name."""
    stated, claim = content["guarantee"], content["published_claim"]
    delta, epsilon = float(stated["delta"]), float(stated["epsilon"])
    if not 0 < delta < 1:
        return [f"{GUARANTEE}: delta must lie between 0 and 1, and is {delta}"]
    releases = _counted([(release_from_dict(one), count) for one, count in stated["releases"]])
    adaptive = bool(stated["fully_adaptive"])
    bound = known_epsilon(releases, delta, adaptive=adaptive)
    level = level_of(stated["unit"])
    lines = [
        f"{level}-level ε = {round_up(epsilon if adaptive else bound)} at δ = {delta:g} is what "
        f"{sum(releases.values()):,} releases {'are allowed within' if adaptive else 'compose to'}; "
        f"unit: {stated['unit']}; neighbours: {stated['relation']}"
    ]
    if math.isfinite(bound):
        unit, relation = common_neighbours((one.unit, one.relation) for one in releases)
        of_record = unit is not Unit.RECORD or stated["unit"].startswith("one training record")
        if level != unit.value or not of_record:
            lines.append(f"{GUARANTEE}: the unit is {stated['unit']}, and its releases are about one {unit.value}")
        if stated["relation"] != RELATIONS.get((unit, relation), stated["relation"]):
            lines.append(f"{GUARANTEE}: the neighbours are {stated['relation']}, and its releases' {relation.value}")
    if bound > epsilon if adaptive else not math.isclose(bound, epsilon, rel_tol=1e-9):
        lines.append(f"{GUARANTEE}: epsilon is {epsilon}, and its releases compose to {bound}")
    if adaptive and math.isfinite(epsilon) and FULLY_ADAPTIVE.format(target=epsilon) not in stated["assumptions"]:
        lines.append(f"{GUARANTEE}: epsilon is {epsilon}, and not the target that was fixed beforehand")
    of_teacher = _counted([(release_from_dict(one), count) for one, count in stated["teacher_releases"]])
    of_training = known_epsilon(of_teacher, delta) if of_teacher else math.inf
    if not math.isclose(of_training, float(stated["teacher_epsilon"]), rel_tol=1e-9):
        given = stated["teacher_epsilon"]
        lines.append(f"{GUARANTEE}: teacher_epsilon is {given}, and its training gives {of_training}")
    if not 0 <= float(stated["epsilon_of_run"]) <= epsilon <= float(stated["epsilon_all_runs"]):
        lines.append(f"{GUARANTEE}: epsilon_of_run, epsilon and epsilon_all_runs must be above 0 and in this order")
    if not 0 <= float(stated["epsilon_spent"]) <= epsilon * (1 + 1e-9):
        lines.append(f"{GUARANTEE}: epsilon_spent must lie between 0 and epsilon, and is {stated['epsilon_spent']}")
    if claim is not None:
        claims = _counted([(claim_from_dict(one), count) for one, count in claim["claims"]])
        published = published_epsilon(claims, delta) if claims else math.inf
        if not math.isclose(published, float(claim["epsilon"]), rel_tol=1e-9):
            lines.append(f"{GUARANTEE}: the published epsilon is {claim['epsilon']}, and its theorem gives {published}")
        if math.isfinite(published):  # no theorem gives the figure of releases that none is about
            lines.append(f"published ε = {round_up(published)} is what {claim['source']} gives; it bounds no record")
    return lines


def _files(digests: Mapping[str, str], stated: Mapping[str, str]) -> list[str]:
    wrong = [f"{name} is missing" for name in stated if name not in digests]
    wrong += [f"{name} was altered" for name, digest in stated.items() if digests.get(name, digest) != digest]
    return wrong + [f"{name} was added" for name in digests if name not in stated]


def _counted(listed: Sequence[tuple[_Counted, Any]]) -> Counter[_Counted]:
    """Converts pairs of items and counts, with each item once, to a `Counter`."""
    counts = dict(listed)
    if len(counts) < len(listed) or not all(type(count) is int and count > 0 for count in counts.values()):
        raise ValueError("releases and claims must be listed once each, with whole numbers of 1 or more")
    return Counter(counts)


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name stands twice")
    return dict(pairs)
