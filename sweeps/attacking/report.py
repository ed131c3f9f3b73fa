"""Report of the attacks: a Markdown page and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torchvision.utils import make_grid

from privacy.attacks import AttackResult, Records
from privacy.attacks.inversion import InversionResult
from privacy.attacks.result import LEAST_AUC, AuditResult
from privacy.checks import lower_bound, round_up

CONTROL = "control"
"""Name of the overfitted control network."""
_NAMES = {"record": "average", "mislabelled": "mislabelled canaries", "noise": "noise canaries"}


@dataclass(frozen=True)
class MembershipResult:
    """Result of one membership attack on one kind of record in one kind of model.

    Attributes:
        model: `control`, the role of the shadow models, or `this run`.
        kind: Kind of the records: `record`, `mislabelled` or `noise`.
        attack: Name of the attack.
        result: Its scores.
        audited: The lower bound on ε that it gives; None if members were not drawn at random.
    """

    model: str
    kind: str
    attack: str
    result: AttackResult
    audited: AuditResult | None

    @property
    def at_most(self) -> float | None:
        """Largest ε that this number of models and records could refute."""
        if self.audited is None:
            return None
        return self.result.at_most(delta=self.audited.delta, confidence=self.audited.confidence)

    @property
    def verdict(self) -> str:
        """What the control says of the attack, if it has no power."""
        if self.model != CONTROL or self.result.auc >= LEAST_AUC:
            return ""
        return (
            f"`{self.attack}` has no power here: on networks that memorised their records its AUC is "
            f"{self.result.auc:.2f}. Its AUC on other models is no sign of privacy."
        )

    def to_dict(self) -> dict[str, Any]:
        audited = None if self.audited is None else self.audited.to_dict()
        return {
            "model": self.model,
            "records": self.kind,
            "attack": self.attack,
            **self.result.to_dict(),
            "audited": audited,
            "at_most": self.at_most,
        }


@dataclass(frozen=True)
class InvertedModel:
    """Result of one inversion attack on one model."""

    model: str
    attack: str
    drawn: Records
    result: InversionResult

    @property
    def verdict(self) -> str:
        """What the control says of the attack, if it draws the requested class less than twice as often as chance."""
        # For two classes, where twice chance is 1, half way from chance to 1 is enough.
        chance = 1 / len(self.drawn.labels.unique())
        if self.model != CONTROL or self.result.accuracy >= min(2 * chance, (1 + chance) / 2):
            return ""
        return (
            f"`{self.attack}` has no power here: of its images of a network that memorised its records "
            f"{100 * self.result.accuracy:.0f} % are recognised. Its images of other models say nothing."
        )

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model, "attack": self.attack, **asdict(self.result)}


def page(facts: Mapping[str, Any], leaks: Sequence[MembershipResult], inverted: Sequence[InvertedModel]) -> str:
    """Write the report in Markdown."""
    lines = [
        f"# What an attacker gets from {facts['run']}\n",
        "Private, like the data: it was made by looking at them, which no guarantee counts. An attack that fails "
        "proves nothing, since a better one may exist; a refuted ε above the claimed one refutes the claim.\n",
        f"Claimed: record-level ε = {round_up(facts['epsilon'])}"
        + (f", as published ε = {round_up(facts['published'])}." if facts["published"] is not None else "."),
    ]
    if leaks:
        lines += [
            "\n## Was this record in the training data?\n",
            f"{facts['shadows']} times the whole recipe was carried out, teacher included, on a random half of the "
            f"records; {facts['targets']} of the resulting models were attacked by means of the others. Canaries are "
            "planted records: public images with a wrong label, and noise. *Control*: dense networks that know their "
            "records by heart. *ε refuted*: no ε below it holds, with 95 % confidence for all shadows' rows together; "
            "*of*: what so many models and records can refute at most. *This run*: its own model, whose training "
            "records are told from held-out ones.\n",
            "| model | records | attack | AUC | TPR at 1 % FPR | TPR at 0.1 % FPR | ε refuted | ε claimed |",
            "|---|---|---|---:|---:|---:|---:|---:|",
            *(_leak_row(leak) for leak in leaks),
        ]
    if inverted:
        lines += [
            "\n## What do the private images look like?\n",
            "*Recognised*: share of the images that an independent classifier "
            f"({100 * facts['judge']:.0f} % right on real test images) takes for the class asked for. *Distances*: in "
            "its features, median to the nearest training image and to the nearest of as many test images. *Nearer*: "
            "share nearer to the training images, ± its standard error over the classes. Where a model passes no "
            "gradients, the attacker inverts a copy, learnt from its answers.\n",
            "| model | attack | recognised | distance to training | to test images | nearer | inception score |",
            "|---|---|---:|---:|---:|---:|---:|",
            *(_inverted_row(one) for one in inverted),
        ]
    verdicts = [*(leak.verdict for leak in leaks), *(one.verdict for one in inverted)]
    lines += [f"\n**{verdict}**" for verdict in verdicts if verdict]
    lines += ["", "![inverted images](attack.png)"] if inverted else []
    return "\n".join([*lines, ""])


def _leak_row(leak: MembershipResult) -> str:
    result, audited = leak.result, leak.audited
    low, high = result.auc_interval()
    rates = [result.tpr_at(rate) for rate in (0.01, 0.001)]
    claimed = "–" if audited is None or audited.claimed_epsilon is None else round_up(audited.claimed_epsilon)
    refuted = "–"
    if audited is not None:
        refuted = f"{lower_bound(audited.epsilon_lower)} of {leak.at_most:.2f}" + (
            " **fails**" if audited.fails else ""
        )
    cells = [
        leak.model,
        _NAMES[leak.kind],
        leak.attack,
        f"{result.auc:.3f} [{low:.3f}, {high:.3f}]",
        *("–" if rate is None else f"{100 * rate:.2f} %" for rate in rates),
        refuted,
        claimed,
    ]
    return f"| {' | '.join(cells)} |"


def _inverted_row(one: InvertedModel) -> str:
    result = one.result
    return (
        f"| {one.model} | {one.attack} | {100 * result.accuracy:.0f} % | {result.distance_train:.2f} | "
        f"{result.distance_test:.2f} | {100 * result.nearer:.0f} ± {100 * result.nearer_error:.0f} % | "
        f"{result.inception_score:.2f} |"
    )


def figure(inverted: Sequence[InvertedModel]) -> Figure:
    """Draw inverted images, with a panel per attack and a column per class."""
    attacks = list(dict.fromkeys(one.attack for one in inverted))
    rows = len(inverted) // len(attacks)
    drawn, panels = plt.subplots(
        rows, len(attacks), figsize=(max(9.0, 3.2 * len(attacks)), 1.4 * rows), squeeze=False, layout="constrained"
    )
    for axes, one in zip(panels.flat, inverted, strict=True):
        classes = len(one.drawn.labels.unique())
        by_class = one.drawn.images.unflatten(0, (classes, -1)).transpose(0, 1)[:4].flatten(0, 1)
        grid = make_grid((by_class.clamp(-1, 1) + 1) / 2, nrow=classes, padding=1)
        axes.imshow(grid.permute(1, 2, 0).numpy(), interpolation="nearest")
        scores = f"{100 * one.result.accuracy:.0f} % recognised, IS {one.result.inception_score:.1f}"
        axes.set_title(f"{one.model}, {one.attack}: {scores}", fontsize=8)
        axes.axis("off")
    return drawn
