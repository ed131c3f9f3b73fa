"""`LightningCLI attack RUN`: attacks a run's model and shadow models of the same recipe.

This research command repeatedly trains on the private data and inspects every model. Its outputs, in
RUN/private/attack, are as private as the data, are charged to no ledger and are never exported. Membership inference
attacks shadow pipelines, which repeat the run's whole recipe, its teacher's training included, on random halves of the
private records with planted canaries. Inversion attacks the run's own model.

Choose the number of shadows beforehand: adding shadows until a claim fails invalidates the confidence.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from datamodules.records import id_fraction
from datamodules.shadowed import Shadowed
from lightning_modules import priors
from lightning_modules.callbacks.figures import save_figure
from lightning_modules.callbacks.saving import read_checkpoint
from lightning_modules.networks.feature_cache import feature_memory
from lightning_modules.priors import PRIORS
from lightning_modules.training.run import provenance
from privacy.attacks import MEMBERSHIP, AttackResult, Records, answers_of, attack_each, inversion, train_shadows
from privacy.attacks.answers import overfitted
from privacy.checks import json_number
from privacy.guarantee import Guarantee, level_of
from privacy.journal import write_atomically
from sweeps.attacking.report import CONTROL, InvertedModel, MembershipResult, figure, page
from sweeps.attacking.shadows import PRIVATE, AttackError, Pipelines, QueriedRecords, recipe_of

INVERSION = "inversion"
_LEAST_SHADOWS = 8
_CONTROLS, _CONTROL_RECORDS = 16, 500
_BACKGROUND, _JUDGED = 1000, 2000


def attack(args: Sequence[str], *, run: Callable[[list[str]], Any], build: Callable[[Sequence[str]], Any]) -> None:
    """The command `attack RUN [--attacks NAME ...] [--shadows N]`.

    Raises:
        AttackError: The run cannot be attacked, or an option is out of range.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="LightningCLI attack", description=__doc__)
    names = [*MEMBERSHIP, INVERSION]
    parser.add_argument("run", metavar="RUN", help="A run's folder (runs/NAME/version_0). The data must be there.")
    parser.add_argument("--attacks", nargs="+", choices=names, default=names, help="Default: all.")
    parser.add_argument("--shadows", type=int, default=64, help="Times that the recipe is repeated; at least 8.")
    parser.add_argument("--records", type=int, default=2000, help="Private records to measure the attacks on.")
    parser.add_argument("--canaries", type=int, default=64, help="Planted records; half mislabelled, half noise.")
    parser.add_argument("--teacher", default=None, metavar="RUN", help="Folder or configuration of the teacher's fit.")
    options = parser.parse_args(list(args))
    if options.shadows < _LEAST_SHADOWS:
        raise AttackError(f"--shadows must be at least {_LEAST_SHADOWS}, got {options.shadows}")
    if options.records < 2 or options.canaries < 0:
        raise AttackError(f"--records must be at least 2 and --canaries 0, got {options.records}, {options.canaries}")
    place, folder = Path(options.run), Path(options.run, PRIVATE)
    pipelines, data, asked, model = opened(
        place, build=build, teacher=options.teacher, records=options.records, canaries=options.canaries
    )
    membership = [name for name in options.attacks if name != INVERSION]
    guarantee = _guarantee(place)
    facts = {"run": place.name, "shadows": options.shadows, "targets": options.shadows // 4, **guarantee, "judge": None}
    leaks: list[MembershipResult] = []
    commits, versions = {provenance()["commit"]}, provenance()["versions"]
    with feature_memory():
        if membership:
            pipelines.train(options.shadows, run, asked)
            leaks = [*_control(asked, data.num_classes, membership)]
            for name in pipelines.recipe:
                commits |= {note["commit"] for note in pipelines.notes(name, options.shadows)}
                leaks += _of_shadows(pipelines, name, asked, membership, options.shadows)
            leaks += _of_run(model, pipelines, asked, membership, options.shadows)
        inverted = invert({"this run": model}, data, asked, facts) if INVERSION in options.attacks else []
    content = {
        **{name: json_number(value) if isinstance(value, float) else value for name, value in facts.items()},
        "leaks": [leak.to_dict() for leak in leaks],
        "inversions": [one.to_dict() for one in inverted],
        "recipe": pipelines.recipe,
        "commits": sorted(commits),
        "versions": versions,
    }
    if inverted:
        save_figure(figure(inverted), folder / "attack.png")
    write_atomically(folder / "attack.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    text = page(facts, leaks, inverted)
    print(f"{text}\nPrivate, like all files next to it: {write_atomically(folder / 'attack.md', text)}")
    if failed := [leak for leak in leaks if leak.audited is not None and leak.audited.fails]:
        sys.exit(f"error: the claim fails for the {failed[0].model}, by {failed[0].attack}")


def opened(
    place: Path, *, build: Callable[[Sequence[str]], Any], teacher: str | None = None, records: int, canaries: int = 0
) -> tuple[Pipelines, Shadowed, QueriedRecords, nn.Module]:
    """Returns a run's shadow pipelines, its data, the records that models are queried with, and its own model.

    Raises:
        AttackError: The run cannot be attacked, or its weights are not of its configuration.
        CheckpointError: There is no checkpoint, or it is damaged.
    """
    recipe, folders = recipe_of(place, teacher=teacher)
    pipelines, file = Pipelines(recipe=recipe, canaries=canaries, folders=folders), place / PRIVATE / "given.json"
    for one in (file.parent, *folders.values()):
        one.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = _built(build, pipelines.shadowed(0), file).datamodule
    while not isinstance(data, Shadowed):
        data = data.dataset
    asked = QueriedRecords.choose(data, records=records)
    model: nn.Module = _built(build, list(recipe.values())[-1], file).model
    weights = read_checkpoint(place / "checkpoints" / "last.ckpt", command="test")["state_dict"]
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise AttackError(f"{place} has weights of another model than its config.yaml: {str(error)[:200]}") from error
    return replace(pipelines, asked=asked.digest), data, asked, model.eval().requires_grad_(False)


def _built(build: Callable[[Sequence[str]], Any], config: Any, file: Path) -> Any:
    return build([f"--config={write_atomically(file, json.dumps(config))}"])


def _guarantee(place: Path) -> dict[str, float | None]:
    """Reads the record-level and the published ε of a run's guarantee."""
    file = place / "public" / "guarantee.json"
    if not file.is_file():
        return {"epsilon": math.inf, "published": None}
    stated = Guarantee.from_dict(json.loads(file.read_text(encoding="utf-8")))
    epsilon = math.inf if stated.level == "person" else stated.epsilon
    return {"epsilon": epsilon, "published": stated.claimed_epsilon if stated.claimed_source else None}


def _control(asked: QueriedRecords, num_classes: int, names: Sequence[str]) -> list[MembershipResult]:
    """Attacks overfitted networks, on which a working attack must succeed."""
    rows = [np.flatnonzero(asked.kinds == kind)[:_CONTROL_RECORDS] for kind in ("record", "held out")]
    records, population = (asked.records.at(torch.from_numpy(part)) for part in rows)
    models = train_shadows(
        lambda half: overfitted(half, num_classes=num_classes), records, count=_CONTROLS, population=population
    )
    found = {name: attack_each(models, targets=_CONTROLS // 4, method=MEMBERSHIP[name])["record"] for name in names}
    return [
        MembershipResult(CONTROL, "record", name, result, result.audited(delta=0.0)) for name, result in found.items()
    ]


def _of_shadows(
    pipelines: Pipelines, role: str, asked: QueriedRecords, names: Sequence[str], count: int
) -> list[MembershipResult]:
    answers, claim = pipelines.answers(role, count, asked), pipelines.claim(role, count)
    # The audit is for add-or-remove neighbours of one record only.
    claimed = None
    if claim is not None and level_of(claim["unit"]) != "person" and "add-or-remove" in str(claim["relation"]):
        epsilon = float(claim["epsilon"])
        claimed = epsilon if math.isfinite(epsilon) else None
    delta = 1e-5 if claim is None else float(claim["delta"])
    # Bonferroni over kinds of records, attacks and roles.
    confidence = 1 - 0.05 / (3 * len(names) * len(pipelines.recipe))
    leaks = []
    for name in names:
        results = attack_each(answers, targets=count // 4, method=MEMBERSHIP[name], kinds=asked.kinds)
        for kind, result in results.items():
            audited = result.audited(delta=delta, confidence=confidence, claimed_epsilon=claimed)
            leaks.append(MembershipResult(role, kind, name, result, audited))
    return leaks


def _of_run(
    model: nn.Module, pipelines: Pipelines, asked: QueriedRecords, names: Sequence[str], count: int
) -> list[MembershipResult]:
    """Attacks the run's own model: tells its training records from held-out ones, which no shadow has seen either."""
    # Coins for held-out records too: scores from twice as many models vary less, which would give records away.
    shadows = pipelines.answers(list(pipelines.recipe)[-1], count, asked)
    shadows = replace(shadows, members=pipelines.coins(count, asked))
    own, known = answers_of(model, asked.records), (~shadows.members).sum(axis=0) >= 2
    rows = known & np.isin(asked.kinds, ("record", "held out"))
    members = (asked.kinds == "record")[rows]
    leaks = []
    # Online LiRA needs shadows that saw the held-out records.
    for name in dict.fromkeys("lira-offline" if name == "lira" else name for name in names):
        scores = MEMBERSHIP[name](own, shadows)[rows]
        leaks.append(MembershipResult("this run", "record", name, AttackResult(scores[None], members[None]), None))
    return leaks


def invert(
    models: Mapping[str, nn.Module], data: Shadowed, asked: QueriedRecords, facts: dict[str, Any]
) -> list[InvertedModel]:
    """Inverts a control and these models by each attack; the judge's accuracy is added to `facts`."""
    classes, shape = data.num_classes, data.image_shape
    private = asked.records.at(torch.from_numpy(asked.kinds == "record"))
    test = data.dataset.records("test")
    # Ordered by ids, since files are sorted by class.
    images, labels = test.__getitems__(torch.argsort(id_fraction(test.ids, purpose="asked"))[: 2 * _JUDGED])
    public, half = Records(images, labels), torch.arange(len(images)) % 2 == 0
    judge = overfitted(public.at(half), num_classes=classes)
    rest = public.at(~half)
    with torch.no_grad():
        facts["judge"] = float((judge(rest.images).argmax(dim=1) == rest.labels).double().mean())
    prior = getattr(priors, PRIORS.get(data.name, "DeadLeavesPrior"))()
    draw = torch.Generator().manual_seed(0)
    background = prior.sample(_BACKGROUND, image_shape=shape, generator=draw, device=torch.device("cpu"))
    control = overfitted(private.at(torch.arange(min(len(private), 1000))), num_classes=classes).requires_grad_(False)
    found = []
    for name, attacked in {CONTROL: control, **models}.items():
        print(f"[attack] inverting {name}", flush=True)
        inner = attacked
        if not inversion.passes_gradients(attacked, background[:2]):
            inner = inversion.copied(attacked, background, num_classes=classes)
        drawings = {
            "gradient": inversion.gradient_inversion(inner, num_classes=classes, image_shape=shape),
            "background": inversion.background_inversion(attacked, background=background, num_classes=classes),
            "generative": inversion.generative_inversion(inner, background=background, num_classes=classes),
            "data-free": inversion.data_free_inversion(inner, num_classes=classes, image_shape=shape),
        }
        for kind, drawn in drawings.items():
            result = inversion.judged(drawn, judge=judge, train=private.images[:_JUDGED], test=rest.images)
            found.append(InvertedModel(name, kind, drawn, result))
    return found
