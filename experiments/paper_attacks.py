"""The papers' figures of attacks on students and of synthetic images: `python -m experiments.paper_attacks PIPELINE`.

It makes a pipeline's fits, inverts each, and draws their synthetic images and features. An interrupted command
continues at the fit it was making. Use it only for public data: `results/` is not kept private.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from sklearn.manifold import TSNE
from sklearn.model_selection import cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from torchvision.utils import make_grid

from lightning_modules.callbacks.figures import save_figure
from lightning_modules.cli import built, main as command
from lightning_modules.training.run import provenance
from privacy.attacks.inversion import features_of
from privacy.journal import write_atomically
from sweeps.attacking.attack import invert, opened
from sweeps.attacking.report import CONTROL, figure
from sweeps.attacking.shadows import AttackError
from sweeps.runner.spec import Spec

_IMAGES = "_images"
"""End of the names of fits that are not trained to the end, and made for their images."""
_POINTS, _SHOWN = 500, 64
_INVERTED = (
    "{data}: images drawn from finished models by four short attacks, and how an independent classifier sees them\n"
    "({judge:.0%} right on real images; IS: inception score by it). Control: a network that memorised 1,000 records.\n"
    "No proof of privacy: a better attack may show more, and images of a class need not show a record."
)
_SYNTHETIC = (
    "{data}: synthetic images of the last step, each scaled to its own range,\n"
    "and t-SNE of the student's features of them and of images held out.\n"
    "Told apart: accuracy of the nearest neighbour; 50 % for one distribution."
)


def main(args: list[str] | None = None) -> None:
    """Makes the fits, attacks them, and writes figures and a record for each pipeline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipelines", nargs="+", metavar="PIPELINE")
    options, results = parser.parse_args(args), Path("results")
    for name in options.pipelines:
        spec = Spec.read(name)
        models = {}
        for fit in spec.fits:
            command(["pipeline", name, "--fit", fit])
            try:
                _, data, asked, models[fit] = opened(spec.folder / fit, build=built, records=2000)
            except AttackError as error:
                print(error)  # an ensemble, which is attacked through its student
        facts: dict[str, Any] = {}
        attacked = {fit: model for fit, model in models.items() if not fit.endswith(_IMAGES)}
        inverted = invert(attacked, data, asked, facts)
        drawn = figure(inverted)
        drawn.supxlabel(_INVERTED.format(data=data.name, **facts), fontsize=9)
        save_figure(drawn, results / f"{spec.name}.png")
        if generating := {fit: model for fit, model in models.items() if getattr(model, "generator", None) is not None}:
            real = asked.records.images[torch.from_numpy(asked.kinds == "held out")][:_POINTS]
            drawn = synthetic_figure(generating, real)
            drawn.supxlabel(_SYNTHETIC.format(data=data.name), fontsize=9)
            save_figure(drawn, results / f"{spec.name}_synthetic.png")
        runs = {}
        for fit in attacked:
            measured = json.loads((spec.folder / fit / "result.json").read_text(encoding="utf-8"))
            found = [
                {**one.to_dict(), "model": CONTROL if one.model == CONTROL else "this run"}
                for one in inverted
                if one.model in (CONTROL, fit)
            ]
            kept = {key: measured.get(key) for key in ("accuracy", "steps", "epsilon_record", "epsilon_published")}
            runs[fit] = {**kept, **facts, "inversions": found}
        content = {"pipeline": name, "data": data.name, "runs": runs, **provenance()}
        write_atomically(results / f"{spec.name}.json", json.dumps(content, indent=1) + "\n")


@torch.no_grad()
def synthetic_figure(students: Mapping[str, Any], real: Tensor) -> Figure:
    """Draws each student's synthetic images above t-SNE of its features of them and of real images (N, C, H, W)."""
    size = (3.6 * len(students), 7.6)
    drawn, panels = plt.subplots(2, len(students), figsize=size, squeeze=False, layout="constrained")
    for (top, bottom), (name, student) in zip(panels.T, students.items(), strict=True):
        images = student.synthetic_grid(len(real))
        grid = make_grid(images[:_SHOWN], normalize=True, scale_each=True)
        top.imshow(grid.permute(1, 2, 0).numpy(), interpolation="nearest")
        top.set_title(name.replace("_", " "))
        top.axis("off")
        features = torch.cat([features_of(student, real), features_of(student, images)]).numpy()
        synthetic = np.arange(len(features)) >= len(real)
        points = TSNE(random_state=0).fit_transform(features)
        for kind, rows in {"held out": ~synthetic, "synthetic": synthetic}.items():
            bottom.scatter(*points[rows].T, s=4, label=kind)
        told = cross_val_score(KNeighborsClassifier(1), features, synthetic).mean()
        bottom.set_title(f"told apart: {told:.0%}", fontsize=9)
        bottom.set(xticks=[], yticks=[])
        bottom.legend(fontsize=7)
    return drawn


if __name__ == "__main__":
    main()
