"""Report of the attacks: a Markdown page and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
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
_PAGE = Path(__file__).with_name("report.md")
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
        of = {"model": self.model, "records": self.kind, "attack": self.attack}
        return {**of, **self.result.to_dict(), "audited": audited, "at_most": self.at_most}


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
    """Writes the report in Markdown."""
    head, of_leaks, of_images = _PAGE.read_text(encoding="utf-8").split("<!-- next -->\n")
    published = "" if facts["published"] is None else f", as published ε = {round_up(facts['published'])}"
    text = head.format(claimed=f"{round_up(facts['epsilon'])}{published}", **facts)
    if leaks:
        text += of_leaks.format(rows="\n".join(map(_leak_row, leaks)), **facts)
    if inverted:
        rows = "\n".join(map(_inverted_row, inverted))
        text += of_images.format(rows=rows, percent=f"{100 * facts['judge']:.0f} %", **facts)
    verdicts = [*(leak.verdict for leak in leaks), *(one.verdict for one in inverted)]
    text += "".join(f"\n**{verdict}**\n" for verdict in verdicts if verdict)
    return text + ("\n![inverted images](attack.png)\n" if inverted else "")


def _leak_row(leak: MembershipResult) -> str:
    result, audited = leak.result, leak.audited
    low, high = result.auc_interval()
    rates = [result.tpr_at(rate) for rate in (0.01, 0.001)]
    claimed = "–" if audited is None or audited.claimed_epsilon is None else round_up(audited.claimed_epsilon)
    refuted = "–"
    if audited is not None:
        refuted = f"{lower_bound(audited.epsilon_lower)} of {leak.at_most:.2f}{' **fails**' * audited.fails}"
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
    """Draws inverted images, with a panel per attack and a column per class."""
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
