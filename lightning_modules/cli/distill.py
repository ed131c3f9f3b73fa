"""`LightningCLI distill --teacher FILE --data NAME:FOLDER --to DIR`: trains a student of a teacher and exports it."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_info

from lightning_modules.callbacks.saving import hyperparameters
from lightning_modules.cli.calibrate import cost_in_ledger, epsilon_of, planned_calls, planned_cost
from lightning_modules.cli.export import add_export_options, export_and_say
from lightning_modules.named_code import texts_in, unknown_code
from lightning_modules.networks.network import named_network
from lightning_modules.priors import PRIORS
from lightning_modules.publishing import ExportError, check_target
from lightning_modules.publishing.folder import name_of
from lightning_modules.teachers.files import read_file
from lightning_modules.training.evaluation import meaning, require_public_fit
from lightning_modules.training.run import is_dev_run, run_folder
from privacy.account import Budget
from privacy.accounting.composition import compose
from privacy.checks import check_count, round_up
from privacy.events.base import Unit
from privacy.guarantee import ONE_PERSON
from privacy.identity import Training

#: Largest number of steps per epoch, after which a checkpoint is written.
_STEPS_PER_EPOCH = 100

#: Images per step.
_BATCH = 256

#: Number of newest batches to replay, if the teacher's training has no bound.
_KEPT = 40


def configuration(
    options: argparse.Namespace, *, bounded: Training | None, network: Any, shape: tuple[int, int, int] | None = None
) -> dict[str, Any]:
    """Makes the configuration of `fit` from the options.

    Raises:
        ValueError: The number of steps is below 1.
    """
    steps = check_count("--steps", options.steps, minimum=1)
    per_epoch = math.gcd(steps, _STEPS_PER_EPOCH) if steps >= _STEPS_PER_EPOCH else steps
    name, _, place = options.data.partition(":")
    kind = name.rpartition(".")[2]
    # Named by teacher and data: a second call continues the run and is not charged for another one.
    both = re.sub(r"\W+", "_", f"{options.data}/{Path(options.teacher).with_suffix('')}").strip("_")
    dataset: dict[str, Any] = {"class_path": name, "init_args": {"root": place} if place else {}}
    if shape is not None and kind == "ImageFolder":
        dataset["init_args"] |= {"channels": shape[0], "size": shape[1]}
    # By the name of the data alone: trying several priors on the teacher would be unaccounted queries.
    prior = {"class_path": PRIORS.get(kind, "GeneralPrior")}
    images = {"pool": options.pictures} if options.pictures else {"prior": prior}
    student: dict[str, Any] = {
        "network": named_network("SmallCNN"),
        "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 3e-3}},
        "lr_scheduler": {"class_path": "torch.optim.lr_scheduler.CosineAnnealingLR", "init_args": {"T_max": steps}},
    }
    if bounded is not None:
        method = "Distillation"
        student["network"] = network or student["network"]
        special = {**images, "pool_size": min(50_000, steps * _BATCH)}  # few steps need no more
    else:
        method = "DPDFD"
        # Drawing and querying an image takes several times as long as a step on it, and replay costs no privacy.
        student["replay"] = {"capacity": _KEPT * _BATCH, "steps": 2, "stride": 5.0}
        # Of a prior's images some classes have few; pictures of the teacher's kind have them as it met them.
        student["balance"] = 0.0 if options.pictures else 1.0
        source = {"source": "pool", "pool_varied": True} if options.pictures else {"source": "prior"}
        special = {
            "images": {**source, **images},
            "gradient_targets": {"student_target": "gradients"},
            "budget": {"published": options.published_epsilon},
            "mechanism": {"release": "per_sample", "norm_bound": 1e-3, "stability": 0.3, "noise_multiplier": 25.9},
        }
    teacher = {"path": options.teacher, **({"network": named_network(options.network)} if options.network else {})}
    data = {"dataset": dataset, "steps_per_epoch": per_epoch, "batch_size": _BATCH}
    folder = options.folder or f"runs/distill_{both}".lower()
    return {
        "trainer": {"max_epochs": steps // per_epoch, "default_root_dir": folder},
        "model": {"class_path": method, "init_args": {"teacher": teacher, "student": student, **special}},
        "data": {"class_path": "SyntheticSteps", "init_args": data},
    }


def facts_of(path: Path) -> tuple[Training | None, Any, tuple[int, int, int] | None]:
    """Reads a teacher's training, if it was by DP-SGD according to its file, its architecture and its image shape.

    A training with reproducible noise bounds nothing and is left out.

    Raises:
        TeacherError: The file cannot be read without running third-party code.
        ValueError: It describes no training.
    """
    _, content = read_file(path)
    content = content if isinstance(content, dict) else {}
    settings = hyperparameters(content)
    given, network = settings.get("image_shape"), settings.get("network")
    shape = None if given is None else (int(given[0]), int(given[1]), int(given[2]))
    if not isinstance(stated := content.get("training"), Mapping):
        return None, None, shape
    training = Training.from_dict(stated)
    bounded = bool(training.releases) and all(release.bounded for release in training.releases or ())
    return (training if bounded else None), None if unknown_code(network) else network, shape


def distill(args: Sequence[str], *, run: Callable[[Sequence[str]], Any], build: Callable[[Sequence[str]], Any]) -> None:
    """The command; other settings are passed to `fit`.

    Raises:
        ValueError: An option is out of range.
        TeacherError: The teacher cannot be used.
        CheckpointError: The run in the folder was started with other settings.
        ExportError: The export is impossible; raised before the fit if possible, otherwise the run is kept.
    """
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        prog="LightningCLI distill",
        description=__doc__,
        epilog="Settings of `fit` may follow, such as --data.dataset.size 32 --data.batch_size 128 --seed_everything 1 "
        "--model.student.network.width 32 --model.mechanism.noise_multiplier 50 --model.teacher.outputs probabilities.",
    )
    add = parser.add_argument
    add("--teacher", required=True, metavar="FILE", help="Weights of a classifier, see docs/your_teacher.md.")
    add("--network", metavar="NAME", help="Its architecture, if the file does not say: my.py:Net, or a class path.")
    add("--data", required=True, metavar="NAME[:FOLDER]", help="Data set, such as ImageFolder:pictures/ or MNIST:data.")
    add("--to", required=True, metavar="DIR", help="The folder to export the student to.")
    told = "Pictures to use instead of procedural images, in any layout. They must be public; no labels are read."
    add("--pictures", metavar="FOLDER", help=told)
    add("--steps", type=int, default=2000, help=f"Training steps of {_BATCH} images.")
    add("--folder", metavar="DIR", help="The run's folder, in which a second call continues. Default: below runs/.")
    told = "Also state the ε of the method's paper, a claim that bounds no record and will be quoted as if it did."
    add("--published-epsilon", action="store_true", help=told)
    add("--dry-run", action="store_true", help="Show what would be done and what it would cost, and stop.")
    add_export_options(parser)
    options, settings = parser.parse_known_args(list(args))
    training, network, shape = facts_of(Path(options.teacher))
    config = configuration(options, bounded=training, network=network, shape=shape)
    line = [f"--config={json.dumps(config)}", *settings]
    rank_zero_info(_announcement(config, training))
    planned = build(line)  # refuses wrong settings
    if training is None:
        rank_zero_info("\n".join(planned_cost(planned)))
        epsilon = epsilon_of(planned.model.session, planned_calls(planned), "record")
        if math.isinf(epsilon) and not options.unprotected:
            raise ExportError(
                "nothing would bound what this student reveals (record-level ε is infinite): set "
                "--model.mechanism.noise_multiplier above 0, or add --unprotected to export it anyway"
            )
    # What a fit checks before it begins.
    planned.trainer.datamodule, planned.model.trainer = planned.datamodule, planned.trainer
    planned.model.teacher_config = replace(planned.model.teacher_config, trial=False)  # that would be a query
    planned.model.prepare_fit()
    require_public_fit(planned.trainer, planned.model.session.partitions)
    planned.model.configure_optimizers()
    check_target(Path(options.to), force=options.force)
    if options.dry_run:
        rank_zero_info(meaning(planned.model.image_shape, getattr(planned.datamodule, "class_names", None)))
        asked = planned.model.session.cost.queries * planned_calls(planned)
        rank_zero_info(f"The teacher is asked {asked:,} images. A fit says how long it takes after its first seconds.")
        rank_zero_info("It was not asked yet: a fit also checks its outputs, and that model.teacher.input is stated.")
        rank_zero_info(cost_in_ledger(planned))
        return
    cli = run(["fit", *line, "--ckpt_path=last"])
    if is_dev_run(cli.trainer) or not cli.trainer.is_global_zero:
        return
    given = {name: getattr(options, name) for name in ("to", "unprotected", "force", "license_name")}
    export_and_say(run_folder(cli.trainer), named=list(texts_in(cli.config.as_dict())), **given)
    cost = ", at a larger ε" if training is None else ""
    rank_zero_info(f"Compare its accuracy with your teacher's own: more --steps may bring it closer{cost}.")


def _announcement(config: Mapping[str, Any], training: Training | None) -> str:
    settings = config["model"]["init_args"]
    images = settings.get("images", settings)
    of = f"procedural images of {images['prior']['class_path']}" if "prior" in images else "public pictures"
    said = (
        f"Student {name_of(settings['student']['network'])}, by {config['model']['class_path']}, in "
        f"{settings['student']['lr_scheduler']['init_args']['T_max']:,} steps of {_BATCH} {of} (--pictures chooses "
        f"others).\nRun folder: {config['trainer']['default_root_dir']}; the same command continues it.\n"
    )
    if training is None:
        return (
            f"{said}Nothing is known to bound the teacher: one training record may change every one of its answers. "
            "The noise of this run protects single answers, and not a record; see docs/choosing.md for what would."
        )
    releases = dict(training.releases or {})
    epsilon = round_up(compose(releases, Budget.delta).epsilon)
    by_person = any(release.unit is Unit.PERSON for release in releases)
    return (
        f"{said}The teacher was trained by DP-SGD. Its ε = {epsilon} at δ = {Budget.delta:g} holds for "
        f"{ONE_PERSON if by_person else 'every training record'} and bounds everything that is computed from the "
        "teacher: the student costs nothing more, and the teacher itself may be published at that ε as well. Students "
        "of other teachers of these records add theirs."
    )
