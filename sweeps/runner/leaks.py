"""Results of attacks on the fits of a pipeline, as tables for documents and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from privacy.attacks.result import LEAST_AUC
from privacy.checks import lower_bound, short_epsilon
from sweeps.runner.fit import read_record
from sweeps.runner.markdown import table

_WEAK = (
    "† Without power here: below 0.6 on networks that memorised their records. A low AUC is then no sign of privacy."
)
_KINDS = ("record", "mislabelled", "noise")
_SHOWN = ("loss", "label-only", "rmia", "lira")
_DRAWN = ("gradient", "data-free", "background", "generative")


def leaks_table(names: Sequence[str], folder: Path) -> str:
    """Renders membership attacks as Markdown: each model's AUC per attack, and the largest ε refuted."""
    refuted = "ε refuted: average, mislabelled, noise"
    measured = ["accuracy", *(f"AUC, {name}" for name in _SHOWN), "LiRA, TPR at 1 % FPR", refuted]
    contents = [read_record(name, folder) for name in names]
    rows = [_leaks_row(content["data"], name, run) for content in contents for name, run in content["runs"].items()]
    lines = table(["data", "model"], [*measured, "ε record-level", "ε published"], rows)
    weak = [_WEAK, ""] if any("†" in line for line in lines) else []
    return "\n".join([*lines, "", *weak, *(_provenance(content) for content in contents), ""])


def _leaks_row(data: str, name: str, run: Mapping[str, Any]) -> list[str]:
    found = {(one["records"], one["attack"]): one for one in run["leaks"] if one["model"] == run["role"]}
    weak = {one["attack"] for one in run["leaks"] if one["model"] == "control" and one["auc"] < LEAST_AUC}
    refuted = [[one["audited"]["epsilon_lower"] for (of, _), one in found.items() if of == kind] for kind in _KINDS]
    rate = found["record", "lira"]["tpr_at_1%"]
    return [
        data,
        name.replace("_", " "),
        f"{100 * run['accuracy']:.1f} %",
        *(f"{found['record', attack]['auc']:.3f}{' †' * (attack in weak)}" for attack in _SHOWN),
        "–" if rate is None else f"{100 * rate:.1f} %",
        ", ".join(lower_bound(max(values)) if values else "–" for values in refuted),
        short_epsilon(float(run["epsilon"])),
        "–" if run["published"] is None else short_epsilon(float(run["published"])),
    ]


def inversions_table(names: Sequence[str], folder: Path) -> str:
    """Renders inversion attacks as Markdown: images recognised, nearer to training images, and their inception score.

    The provenance of those with membership attacks is below `leaks_table`.
    """
    rows = []
    contents = [read_record(name, folder) for name in names]
    for content in contents:
        runs = {"control": next(iter(content["runs"].values())), **content["runs"]}
        for name, run in runs.items():
            model = "control" if name == "control" else "this run"
            found = {one["attack"]: one for one in run["inversions"] if one["model"] == model}
            if not found:
                continue  # only membership was attacked
            cells = [
                f"{100 * found[one]['accuracy']:.0f} %, {100 * found[one]['nearer']:.0f} %, "
                f"{found[one]['inception_score']:.1f}"
                for one in _DRAWN
            ]
            rows.append([content["data"], name.replace("_", " "), *cells])
    lines = table(["data", "model"], [f"{name}: recognised, nearer, IS" for name in _DRAWN], rows)
    return "\n".join([*lines, "", *(_provenance(content) for content in contents if "shadows" not in content), ""])


def _provenance(content: Mapping[str, Any]) -> str:
    count = content.get("shadows")
    shadows = "" if count is None else f"{count} shadows, {count // 4} of them attacked, of "
    return (
        f"{content['data']}: {shadows}pipeline `{content['pipeline']}`; {content['hardware']}; "
        f"commit {content['commit']}."
    )


def leaks_figure(content: Mapping[str, Any]) -> Figure:
    """Plot the ROC of LiRA on average records, and the ε refuted next to the claims, with one colour per model."""
    figure, (roc, bounds) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for number, (name, run) in enumerate(content["runs"].items()):
        found = [one for one in run["leaks"] if one["model"] == run["role"]]
        curve = next(one["roc"] for one in found if (one["records"], one["attack"]) == ("record", "lira"))
        roc.plot(curve["fpr"], curve["tpr"], color=f"C{number}", label=name.replace("_", " "), linewidth=1.2)
        bounds.barh(number, max(one["audited"]["epsilon_lower"] for one in found), color=f"C{number}")
        for value, mark in ((run["epsilon"], "D"), (run["published"], "x")):
            if isinstance(value, float) and value < 1000:
                bounds.plot(value, number, marker=mark, color="black", linestyle="none", clip_on=False)
    roc.plot([1e-3, 1], [1e-3, 1], color="0.7", linewidth=0.8)
    roc.set(xscale="log", yscale="log", xlim=(1e-3, 1), ylim=(1e-3, 1.05))
    roc.set(xlabel="false positive rate", ylabel="true positive rate")
    roc.set_title(f"LiRA, {content['data']}, average records")
    roc.legend(fontsize=7)
    bounds.set_yticks(range(len(content["runs"])), [name.replace("_", " ") for name in content["runs"]])
    bounds.invert_yaxis()
    bounds.set_xscale("symlog", linthresh=1)
    bounds.set(xlabel="ε", title="refuted by attack (bar), record-level bound (◆), published claim (×)")
    return figure
