"""Reads a finished run for export: its network, its record and the guarantee that covers it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lightning_modules.callbacks.results import epsilon_of
from lightning_modules.callbacks.saving import hyperparameters, noted_by_run, read_checkpoint
from lightning_modules.cli.configs import innermost
from lightning_modules.named_code import require_known_code, texts_in
from lightning_modules.networks import build_network
from lightning_modules.networks.network import described, named_network
from lightning_modules.publishing.folder import ExportError, name_of, without_folders
from lightning_modules.training.run import LAST, LOCK
from privacy.accounting.composition import compose
from privacy.events import Release
from privacy.guarantee import Guarantee
from privacy.identity import Training
from privacy.plan import Charge


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The parts of a run that may be published.

    Attributes:
        network: The student, or a teacher trained by DP-SGD, in eval mode.
        architecture: `class_path` and all `init_args` of the network.
        pictures: How the run's data prepared pictures: `resize` and `bits` of `Preparation`.
        role: `student` or `teacher`.
        method: Class that trained the network.
        guarantee: The run's, without folders of this machine.
        record: The run's `result.json`; None if there is none for the checkpoint's step.
    """

    network: nn.Module
    architecture: Mapping[str, Any]
    num_classes: int
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    pictures: Mapping[str, Any]
    role: str
    method: str
    guarantee: Guarantee
    record: Mapping[str, Any] | None
    steps: int

    @property
    def data(self) -> str:
        return str(self.record["dataset"]) if self.record else self.guarantee.private_data.split("/")[0]


def read_run(given: str | Path, *, network: str | None = None, named: Collection[str] = ()) -> FinishedRun:
    """Reads a run for export.

    Args:
        given: A run's folder, or a checkpoint inside it.
        network: Class name of the network, if a script built it, so that the checkpoint does not name it, or if it is
            from another package: code that a checkpoint names is not run.
        named: Other names given in this command, see `require_known_code`.

    Raises:
        CheckpointError: Its checkpoint cannot be read.
        ExportError: It is not a run, is of a private teacher, is still running, or continued after its guarantee.
    """
    checkpoint, folder = _places(Path(given))
    content, role = _read(checkpoint)
    if folder is None:
        raise ExportError(f"{checkpoint} lies in no run's folder: give runs/NAME/version_0, or a checkpoint inside it")
    with contextlib.suppress(FileNotFoundError), (folder / LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExportError(f"the fit in {folder} is still running: export it when it has ended") from None
    guarantee = _guarantee(folder)
    steps = int(content["distillation"]["steps_done"] if role == "student" else content["global_step"])
    record = _record(folder, guarantee, steps=steps)
    _refuse_uncovered(content, guarantee, role=role, folder=folder)
    settings = hyperparameters(content)
    num_classes = int(settings["num_classes"])
    of_data: dict[str, Any] = {"num_classes": num_classes, "image_shape": tuple(map(int, settings["image_shape"]))}
    named = [*named, *([] if network is None else [network])]
    spec = _architecture(content, settings, role=role, given=network, named=named)
    partitions = content.get("distillation", {}).get("partitions") or [(content.get("training") or {}).get("partition")]
    partition: Mapping[str, Any] = next(filter(None, partitions), {})  # what the checkpoint says of the teacher's data
    noted = noted_by_run(content)
    names = noted.get("class_names") or partition.get("class_names") or ()
    of_dataset = innermost(noted.get("data") or {}).get("init_args") or {}
    return FinishedRun(
        network=_filled(spec, content, role=role, **of_data),
        architecture=spec,
        **of_data,
        class_names=tuple(map(str, names if len(names) == num_classes else range(num_classes))),
        pictures={"resize": of_dataset.get("resize", "crop"), "bits": of_dataset.get("bits", 16)},
        role=role,
        method=str(settings.get("_class_path", "DPSGDTeacher" if role == "teacher" else "a script")).rsplit(".", 1)[-1],
        guarantee=guarantee,
        record=record,
        steps=steps,
    )


def _places(given: Path) -> tuple[Path, Path | None]:
    """Returns the checkpoint, and the folder of its run if it lies in one."""
    if given.is_file():
        beside = given.resolve().parent
        return given, beside.parent if beside.name == "checkpoints" else None
    only = list((given / "checkpoints").glob("*.ckpt"))  # a script's, which Lightning's default names by step
    checkpoint = next(filter(Path.is_file, [given / LAST, *(only if len(only) == 1 else [])]), None)
    if checkpoint is None:
        raise ExportError(
            f"RUN must be a run's folder (runs/NAME/version_0) with checkpoints/last.ckpt, or a checkpoint, got {given}"
        )
    return checkpoint, given


def _read(checkpoint: Path) -> tuple[dict[str, Any], str]:
    """Returns a checkpoint and the role of its network; refuses what is never published."""
    content = read_checkpoint(checkpoint, command="export")
    if "distillation" in content:
        return content, "student"
    if "ensemble" in content:
        raise ExportError(f"{checkpoint} is of an ensemble of teachers, which is never exported: export a student")
    if "dp_sgd" in content:
        return content, "teacher"
    raise ExportError(
        f"{checkpoint} is of a private teacher, which is never exported: nothing bounds what it reveals about a "
        "record. Export a student of it, or train a teacher by DP-SGD (DPSGDTeacher), which may be published itself"
    )


def _guarantee(folder: Path) -> Guarantee:
    public = folder / "public"
    try:
        values = json.loads((public / "guarantee.json").read_text(encoding="utf-8"))
        return Guarantee.from_dict(without_folders(values))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(
            f"{public} holds no guarantee that can be read ({error}), without which nothing is exported: a fit writes "
            "it when it ends. Resume the fit to its end"
        ) from error


def _refuse_uncovered(content: Mapping[str, Any], stated: Guarantee, *, role: str, folder: Path) -> None:
    """Refuses a guarantee that is of another run, or older than the checkpoint."""
    if role == "student":
        state = content["distillation"]
        account = state.get("charged") or {}
        charges = [(Charge.from_dict(charge), int(count)) for charge, count in account.get("charges", ())]
        queries = sum(charge.queries * count for charge, count in charges)
        # A branch that the guarantee does not know may have made as many queries with less noise.
        of_teacher = Counter[Release]()
        for charge, count in charges:
            if charge.training is not None and charge.training == account.get("training"):
                of_teacher[charge.release] += count
        identity, least = account.get("run"), min(compose(of_teacher, stated.delta).epsilon, stated.teacher_epsilon)
    else:
        training, state, queries = Training.from_dict(content["training"]), content["dp_sgd"], 0
        if training.releases is None:
            raise ExportError("the teacher's checkpoint does not say what its training released: nothing bounds it")
        identity, least = training.id, compose(training.releases, stated.delta).epsilon
    noted = all(
        any(without_folders(access) in text for text in stated.assumptions) for access in state["uncharged_queries"]
    )
    if queries > stated.queries_of_run or least > stated.epsilon * (1 + 1e-9) or not noted:
        raise ExportError(
            f"the checkpoint's fit went on after {folder / 'public/guarantee.json'} was written and did not come to "
            "its end: what that states does not cover it. Resume the fit to its end"
        )
    if stated.run != identity:
        raise ExportError(
            f"the guarantee in {folder / 'public'} is of run {stated.run}, and the checkpoint is of {identity}"
        )
    if role == "teacher" and math.isinf(stated.epsilon):
        raise ExportError("nothing bounds what this teacher reveals (its noise may be known): it is never exported")


def _architecture(
    content: Mapping[str, Any], settings: Mapping[str, Any], *, role: str, given: str | None, named: Collection[str]
) -> Mapping[str, Any]:
    name = "student.network" if role == "student" else "network"
    stated = settings.get("student") if role == "student" else settings
    spec = stated.get("network") if isinstance(stated, Mapping) else stated
    if spec is not None and given in (None, *texts_in(spec)):
        try:
            require_known_code(spec, named=named)
        except ValueError as error:
            raise ExportError(
                f"the checkpoint's model.{name} is not built: {error}. Where you trust it, add --network CLASS_PATH"
            ) from error
        return _without_downloads(spec)
    if given is not None:
        return _without_downloads(named_network(given))
    was_object = {name, name.partition(".")[0]} & {*content.get("distillation", {}).get("objects", ())}
    if was_object or (role == "teacher" and name not in settings):
        raise ExportError(
            f"a script gave model.{name} as an object, so that the checkpoint does not say of which class it is: add "
            "--network CLASS_PATH, of a class that num_classes and image_shape are enough for"
        )
    return _without_downloads("SmallCNN")


def _filled(spec: Mapping[str, Any], content: Mapping[str, Any], *, role: str, **of_data: Any) -> nn.Module:
    prefix = "student." if role == "student" else "network."
    weights = {
        name.removeprefix(prefix): value for name, value in content["state_dict"].items() if name.startswith(prefix)
    }
    try:
        network = build_network(spec, **of_data, name="network")
        network.load_state_dict(weights)
    except (ValueError, RuntimeError) as error:
        raise ExportError(f"the network {name_of(spec)} cannot be built with its weights: {error}") from error
    if not all(bool(torch.isfinite(value).all()) for value in weights.values() if value.is_floating_point()):
        raise ExportError("the network's weights are not finite: it is of no use, and nothing was exported")
    return network.eval().requires_grad_(False).to(memory_format=torch.contiguous_format)


def _record(folder: Path, stated: Guarantee, *, steps: int) -> Mapping[str, Any] | None:
    """Reads `result.json` if it was measured at the checkpoint's step."""
    try:
        record: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        # Another run may have written into the same folder.
        same = record["steps"] == steps and epsilon_of(record) == stated.epsilon and record["run"] == stated.run
        float(record["accuracy"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if same else None


def _without_downloads(spec: Any) -> Mapping[str, Any]:
    """Plain values with all arguments; without public weights, which the published ones replace.

    Raises:
        ValueError: They describe no network.
    """
    found = described(spec) or {}
    settings = found.get("init_args", {})
    name, arguments = str(settings.get("name")), settings.get("arguments") or {}
    if arguments.get("weights") is not None and name.startswith("torchvision."):
        arguments["weights"] = None
    if arguments.get("pretrained") and name.startswith("timm."):
        arguments["pretrained"] = False
    return found
