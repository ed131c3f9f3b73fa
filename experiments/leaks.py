"""Attacks each fit of a pipeline: `python -m experiments.leaks`.

It makes the fits, runs membership attacks on each and inversion on the first one, unless told otherwise, and writes
results and figures. An interrupted command continues. Use it only for public data: `results/` is not kept private.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lightning_modules.callbacks.figures import save_figure
from lightning_modules.cli import main as command
from lightning_modules.networks.feature_cache import feature_memory
from lightning_modules.training.run import provenance
from privacy.attacks import MEMBERSHIP
from privacy.journal import write_atomically
from sweeps.attacking.shadows import AttackError
from sweeps.runner.leaks import leaks_figure
from sweeps.runner.spec import Spec


def main(args: list[str] | None = None) -> None:
    """Attacks the fits and writes results and figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pipeline", nargs="?", default="leaks_digits")
    options, settings = parser.parse_known_args(args)  # other arguments are passed to `attack`
    spec, results = Spec.read(options.pipeline), Path("results")
    runs, commits = {}, set()
    with feature_memory(most_bytes=8 * 2**30):
        command(["pipeline", options.pipeline])
        for number, fit in enumerate(spec.fits.values()):
            folder = spec.folder / fit.name
            attacks = ["--attacks", *MEMBERSHIP] if number else []
            try:
                command(["attack", str(folder), *attacks, *settings])
            except (SystemExit, AttackError) as error:
                print(error)  # a claim fails, which the table shows, or the fit is an ensemble
            file = folder / "private" / "attack" / "attack.json"
            if not file.is_file():
                continue  # an ensemble, which is attacked through its student
            found = json.loads(file.read_text(encoding="utf-8"))
            measured = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            for leak in found["leaks"]:  # what tables and figure show, with one ROC curve only
                if (leak["records"], leak["attack"]) != ("record", "lira"):
                    leak.pop("roc", None)
                if leak["audited"] is not None:
                    leak["audited"] = {key: leak["audited"][key] for key in ("epsilon_lower", "delta", "confidence")}
            kept = {key: found[key] for key in ("epsilon", "published", "judge", "leaks", "inversions")}
            runs[fit.name] = {"role": list(found["recipe"])[-1], "accuracy": measured["accuracy"], **kept}
            commits |= set(found["commits"])
            if found["inversions"]:
                picture = (folder / "private" / "attack" / "attack.png").read_bytes()
                write_atomically(results / f"{spec.name}_{fit.name}.png", picture)
    content = {"pipeline": options.pipeline, "data": measured["dataset"], "shadows": found["shadows"], "runs": runs}
    content |= {**provenance(), "commit": ", ".join(sorted(commits))}
    write_atomically(results / f"{spec.name}.json", json.dumps(content, indent=1) + "\n")
    save_figure(leaks_figure(content), results / f"{spec.name}.png")


if __name__ == "__main__":
    main()
