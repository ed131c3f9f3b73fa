"""`LightningCLI audit --config FILE --runs N`: what an attacker finds out about one record from finished models.

A research command: it trains on the private data again and again, N times with one planted record and N times without
it, and looks at every model. What it writes is as private as the data, and is not charged to their ledgers: keep
the folder. A teacher's configuration is used as it is, but for its data set, which is wrapped by `Planted`, and for
callbacks and loggers that write files, which are left out. The attacker's score is how well a model fits the planted
record; half of the runs set a threshold, the other half give a lower bound on epsilon. The upper bound that the models
come with stands beside it: an upper bound below an audited lower bound is a failure of the claim. A lower bound below
the claim proves nothing, since a better attacker, or a worse record, may still come.

Choose N beforehand: adding runs until a claim fails, or choosing the score by its result, invalidates the confidence.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from gc import collect
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import yaml
from torch.nn import functional as F

from datamodules.planted import Planted
from lightning_modules.runtime.paths import find_config
from lightning_modules.runtime.runs import commit, versions
from privacy import auditing
from privacy.files import write_atomically
from privacy.formatting import json_number
from privacy.identity import LEDGERS
from sweeps.runner.fit import hashed
from sweeps.runner.queue import Store

__all__ = ["AuditError", "Game", "audit", "canary_scores", "finding"]

World = Literal["with", "without"]
WORLDS: tuple[World, ...] = ("with", "without")

MEANING = (
    "An upper bound below an audited lower bound is a failure of the claim. An audited lower bound below the claim "
    "contradicts nothing and confirms nothing."
)
RELATION = "add-or-remove of one training record"
OWN = ("--data", "--config", "--ckpt_path", "--seed_everything", "--trainer.default_root_dir", "--trainer.callbacks")
"""What the command sets itself."""
LEFT_OUT = ("ModelCheckpoint", "ResultRecord", "ProgressBar", "ModelSummary")
"""Ends of the names of callbacks that write where the configuration says, which would be one file for all runs, or that
fill the screen."""


class AuditError(ValueError):
    """Settings with which there is nothing to audit."""


@dataclass(frozen=True)
class Game:
    """What is run, many times.

    Attributes:
        teacher: The teacher's configuration with the canary in its data set.
        student: Of a student that is made of each teacher, or None.
        overrides: Further arguments of the teacher's fit.
        seed: Of the first run of either kind; the others count on from it.
        folder: Where everything is stored.
    """

    teacher: Mapping[str, Any]
    student: Mapping[str, Any] | None
    overrides: Sequence[str]
    seed: int
    folder: Path

    @property
    def roles(self) -> tuple[str, ...]:
        """Which models there are in a run."""
        return ("teacher",) if self.student is None else ("teacher", "student")

    @cached_property
    def store(self) -> Store:
        """Its runs: those of other settings, or of other code, are elsewhere."""
        content = [self.teacher, self.student, list(self.overrides), self.seed, commit(), versions()]
        return Store(self.folder / hashed(content)[:16])

    def play(self, world: World, number: int, run: Callable[[list[str]], Any]) -> None:
        """Makes those models of one run that are not there yet."""
        for role in self.roles:
            name = _name(role, world, number)
            with self.store.claim(name) as claim:
                if claim is not None and self.store.done(name) is None:
                    print(f"[audit {name}] {self.store.folder(name)}", flush=True)
                    self._make(role, world, number, run)
                    collect()  # see sweeps.runner.queue

    def _make(self, role: str, world: World, number: int, run: Callable[[list[str]], Any]) -> None:
        name = _name(role, world, number)
        folder, teacher = self.store.folder(name), self.store.folder(_name("teacher", world, number))
        # What a run that was killed has left is not gone on with: a round begins from nothing.
        shutil.rmtree(folder, ignore_errors=True)
        config = with_canary(self.teacher, present=world == "with") if role == "teacher" else self.student
        # Not in the folder itself, which loggers expect to be empty when a fit begins.
        file = write_atomically(self.store.root / "given" / f"{name}.json", json.dumps(config))
        line = ["fit", "--config", str(file), f"--trainer.default_root_dir={folder}"]
        line += [f"--seed_everything={self.seed + number}"]
        line += self.overrides if role == "teacher" else [f"--model.teacher={teacher}/checkpoints/last.ckpt"]
        with _ledgers(teacher / "ledgers"):
            cli = run(line)
        canary = self.store.root / "canary.json"
        if role == "teacher":
            write_atomically(canary, json.dumps(_canary(cli.datamodule)))
        record = json.loads(canary.read_text(encoding="utf-8"))
        scores = canary_scores(cli.model, torch.tensor(record["image"]), record["label"])
        self.store.finish(name, scores=scores, claim=_claim(folder), arguments=line)

    def notes(self, role: str, world: World, runs: int) -> list[dict[str, Any]]:
        """What was noted of each finished run of one kind.

        Raises:
            AuditError: Some are not finished: another process has them.
        """
        found = [self.store.done(_name(role, world, number)) for number in range(runs)]
        if missing := found.count(None):
            raise AuditError(f"{missing} run(s) of {role} {world} the canary are still made by another process")
        return [note for note in found if note is not None]


def with_canary(config: Mapping[str, Any], *, present: bool) -> dict[str, Any]:
    """A copy of a configuration that `prepared` has made, for one of the two neighbours."""
    copied: dict[str, Any] = json.loads(json.dumps(config))
    data = copied["data"]
    while data["class_path"] != _PLANTED:
        data = data["init_args"]["dataset"]
    data["init_args"]["present"] = present
    return copied


def prepared(path: str, *, canary: Mapping[str, Any] | None) -> dict[str, Any]:
    """A configuration without what writes elsewhere, and with its data set wrapped where a canary is given.

    Args:
        path: The file.
        canary: Settings of `Planted`.

    Raises:
        AuditError: The file does not exist, or names no data.
    """
    file = Path(find_config(path))
    if not file.is_file():
        raise AuditError(f"configuration {path} does not exist")
    config: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    trainer = config.setdefault("trainer", {})
    for name in ("logger", "default_root_dir"):
        trainer.pop(name, None)
    given = trainer.pop("callbacks", None) or []
    callbacks = [_spec(callback) for callback in (given if isinstance(given, list) else [given])]
    trainer["callbacks"] = [entry for entry in callbacks if not entry["class_path"].endswith(LEFT_OUT)] or None
    trainer |= {"enable_progress_bar": False, "enable_model_summary": False}
    if canary is None:
        return config
    if not config.get("data"):
        raise AuditError(f"{path} names no data: a teacher's configuration is needed")
    data = config["data"] = _spec(config["data"])
    inside = data.get("init_args") or {}
    if "dataset" in inside:
        inside["dataset"] = _wrapped(_spec(inside["dataset"]), canary)
    else:
        config["data"] = _wrapped(data, canary)
    return config


_PLANTED = f"{Planted.__module__}.{Planted.__name__}"


def _wrapped(dataset: dict[str, Any], canary: Mapping[str, Any]) -> dict[str, Any]:
    return {"class_path": _PLANTED, "init_args": {"dataset": dataset, **canary}}


def _spec(value: Any) -> dict[str, Any]:
    return {"class_path": value} if isinstance(value, str) else dict(value)


def _name(role: str, world: World, number: int) -> str:
    return f"{role}-{world}-{number:05d}"


@contextmanager
def _ledgers(folder: Path) -> Iterator[None]:
    """Ledgers of this run only: a student must not be charged for the teachers of other runs."""
    before = os.environ.get(LEDGERS)
    os.environ[LEDGERS] = str(folder.resolve())
    try:
        yield
    finally:
        if before is None:
            del os.environ[LEDGERS]
        else:
            os.environ[LEDGERS] = before


def _canary(data: Any) -> dict[str, Any]:
    while not isinstance(data, Planted):
        data = data.dataset
    image, label = data.canary()[0]
    return {"kind": data.kind, "id": data.record_id, "label": int(label), "image": image.tolist()}


def _claim(folder: Path) -> dict[str, Any] | None:
    """The record-level guarantee that a run has written; None where it has none."""
    found = sorted(folder.rglob("guarantee.json"))
    if not found:
        return None
    guarantee = json.loads(found[0].read_text(encoding="utf-8"))["guarantee"]
    return {name: guarantee[name] for name in ("epsilon", "delta", "unit", "relation")}


@torch.no_grad()
def canary_scores(model: torch.nn.Module, image: torch.Tensor, label: int) -> dict[str, float]:
    """How well a model fits the canary, larger where it does better.

    Args:
        model: (N, C, H, W) → (N, c) logits.
        image: (C, H, W).
        label: The canary's.

    Returns:
        `loss`, minus the cross-entropy, and `margin`, the label's logit less the largest of the others. A network that
        answers with non-finite values fits nothing: the smallest float.
    """
    was = model.training
    device = next(model.parameters()).device
    logits = model.eval()(image.unsqueeze(0).to(device)).double().cpu()[0]
    model.train(was)
    others = torch.cat([logits[:label], logits[label + 1 :]])
    loss = F.cross_entropy(logits.unsqueeze(0), torch.tensor([label]))
    scores = {"loss": -float(loss), "margin": float(logits[label] - others.max())}
    return {name: value if math.isfinite(value) else -sys.float_info.max for name, value in scores.items()}


def finding(
    scores_with: Sequence[float],
    scores_without: Sequence[float],
    *,
    claim: Mapping[str, Any] | None,
    delta: float = 1e-5,
    confidence: float = 0.95,
) -> dict[str, Any]:
    """Evidence about a claim from the scores of finished models, as plain values.

    Args:
        scores_with: One for each run with the canary, in the order of runs, at least 8.
        scores_without: As many without it.
        claim: `epsilon` (a number or "inf"), `delta`, `unit` and `relation`; None where nothing is claimed.
        delta: δ of the bound where nothing is claimed.
        confidence: Probability that the bound is valid.

    Raises:
        ValueError: Fewer than 8 runs, or not as many of either kind.
    """
    if len(scores_with) != len(scores_without):
        raise ValueError(f"as many runs of either kind are needed, got {len(scores_with)} and {len(scores_without)}")
    epsilon = math.inf if claim is None else float(claim["epsilon"])
    delta = delta if claim is None else float(claim["delta"])
    comparable = claim is not None and math.isfinite(epsilon) and str(claim["relation"]).startswith("add-or-remove")
    runs = len(scores_with)
    found = auditing.audit(
        _replayed(scores_with),
        _replayed(scores_without),
        trials=runs,
        delta=delta,
        confidence=confidence,
        score=lambda scores: scores,
        claimed_epsilon=epsilon if comparable else None,
    )
    most = auditing.clopper_pearson_epsilon(found.trials, 0, found.trials, delta, confidence)
    text = [found.statement]
    if claim is None or math.isinf(epsilon):
        text.append("Nothing is claimed: record-level epsilon is infinite.")
    elif not comparable:
        text.append(f"The claim is about other neighbours ({claim['relation']}) and is not judged.")
    text.append(f"{runs} runs of either kind could have shown {most:.4g} at most.")
    return {
        **found.to_dict(),
        "claim": None if claim is None else {**claim, "epsilon": json_number(epsilon)},
        "unit": "one training record, the canary",
        "relation": RELATION,
        "epsilon_lower_at_most": most,
        "statement": " ".join(text),
        "meaning": MEANING,
    }


def _replayed(scores: Sequence[float]) -> auditing.Sampler:
    left = iter(scores)
    return lambda count: np.array([next(left) for _ in range(count)], dtype=np.float64)


def _largest(claims: Sequence[Mapping[str, Any] | None]) -> Mapping[str, Any] | None:
    """Claim that all runs satisfy: no claim where one of them has none, else the one with the largest ε."""
    stated = [claim for claim in claims if claim is not None]
    if len(stated) < len(claims):
        return None
    for name in ("delta", "unit", "relation"):
        if len({str(claim[name]) for claim in stated}) > 1:
            raise AuditError(f"the runs' claims differ in {name}: they are no runs of one mechanism")
    return max(stated, key=lambda claim: float(claim["epsilon"]))


def audit(args: Sequence[str], *, run: Callable[[list[str]], Any]) -> None:
    """The command `audit --config FILE --runs N [--student FILE]`.

    Args:
        args: Its arguments; what it does not know goes to the teacher's fit.
        run: Takes the arguments of one command, and returns what holds the fitted `model` and its `datamodule`.

    Raises:
        AuditError: Settings with which there is nothing to audit.
    """
    parser = argparse.ArgumentParser(prog="LightningCLI audit", description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", required=True, help="The teacher's configuration, as for `fit`.")
    parser.add_argument("--runs", type=int, required=True, help="With the canary, and as many without it; at least 8.")
    parser.add_argument("--student", default=None, help="Configuration of a student that is made of each teacher.")
    parser.add_argument("--canary", choices=("mislabelled", "pattern"), default="mislabelled", help="See `Planted`.")
    parser.add_argument("--source", type=int, default=0, help="Which test image a mislabelled canary has.")
    parser.add_argument("--label", type=int, default=None, help="The canary's label.")
    parser.add_argument("--score", choices=("margin", "loss"), default="margin", help="What the attacker looks at.")
    parser.add_argument("--confidence", type=float, default=0.95, help="Probability that the bound is valid.")
    parser.add_argument("--delta", type=float, default=1e-5, help="Of the bound, where the models claim nothing.")
    parser.add_argument("--seed", type=int, default=0, help="Of the first run; no noise is drawn from it.")
    parser.add_argument("--folder", default="runs/audit", help="Where everything goes. It is private.")
    options, rest = parser.parse_known_args(list(args))
    if options.runs < 8:
        raise AuditError(f"--runs must be at least 8, got {options.runs}")
    if clash := [name for name in rest if any(name == own or name.startswith((f"{own}.", f"{own}=")) for own in OWN)]:
        raise AuditError(f"{clash[0]}: data and places are set by the audit; write them into the configuration file")
    canary = {"kind": options.canary, "source": options.source, "label": options.label}
    game = Game(
        teacher=prepared(options.config, canary=canary),
        student=None if options.student is None else prepared(options.student, canary=None),
        overrides=tuple(rest),
        seed=options.seed,
        folder=Path(options.folder) / Path(options.config).stem,
    )
    for number in range(options.runs):
        for world in WORLDS:
            game.play(world, number, run)
    findings = {role: _of_role(game, role, options) for role in game.roles}
    content = {
        "runs": options.runs,
        "score": options.score,
        "canary": json.loads((game.store.root / "canary.json").read_text(encoding="utf-8")),
        "findings": findings,
        "config": {"teacher": game.teacher, "student": game.student, "overrides": rest, "seed": options.seed},
        "commit": commit(),
        "versions": versions(),
    }
    path = write_atomically(game.store.root / "audit.json", json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    for role, found in findings.items():
        print(f"{role}: {found['statement']}\n  Unit: {found['unit']}; relation: {found['relation']}.")
    print(f"{MEANING}\nPrivate, like everything beside it: {path}", flush=True)
    if failed := [role for role, found in findings.items() if found["fails"]]:
        sys.exit(f"error: the claim fails for the {' and the '.join(failed)}")


def _of_role(game: Game, role: str, options: argparse.Namespace) -> dict[str, Any]:
    notes = {world: game.notes(role, world, options.runs) for world in WORLDS}
    scores = {world: [float(note["scores"][options.score]) for note in notes[world]] for world in WORLDS}
    claim = _largest([note["claim"] for world in WORLDS for note in notes[world]])
    found = finding(scores["with"], scores["without"], claim=claim, delta=options.delta, confidence=options.confidence)
    return {**found, "scores_with": scores["with"], "scores_without": scores["without"]}
