"""A method's teacher: its settings, and reading it when a fit begins and not before."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import nn

from lightning_modules.named_code import require_known_code
from lightning_modules.networks import ImageClassifier, NetworkCallable, build_network
from lightning_modules.networks.network import described, hand_out, network_of
from lightning_modules.teachers.ensemble_networks import NetworkStack, restored, without_feature_extractor
from lightning_modules.teachers.external import AdaptedTeacher, TeacherInput, TeacherOutputs, giving_logits
from lightning_modules.teachers.files import IN_FOLDER, TeacherError, fitted_weights, read_file, weights_in
from lightning_modules.teachers.libraries import OnnxNetwork, stated_in
from lightning_modules.teachers.private_teacher import (
    PrivateEnsemble,
    PrivateModel,
    PrivateTeacher,
    require_own_weights,
    tensors_digest,
)
from privacy.checks import check_choice, settings_of
from privacy.identity import Training, UnnamedTraining
from privacy.ledger_place import LEDGERS

_Model = TypeVar("_Model", bound=PrivateModel)

_BESIDE = (
    "ONE FOLDER: the ledger is found by the teacher's folder, and by that of its data if the run names it. It holds no "
    "use of the same data through a teacher in another folder, nor through this one before it was moved, unless the "
    f"data or {LEDGERS} (one folder for all ledgers) lead to it"
)
_UNNAMED = (
    "UNNAMED DATA: the teacher's file does not say what it was trained on. Its ledger is known by the file's folder "
    "and weights: it holds no use of the teacher from another folder, before it was moved, nor of other teachers of "
    f"the same data. Set private_data and {LEDGERS} (one folder for all ledgers) to count what follows under one name; "
    "what these weights were charged in the folder before is counted under any name"
)


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """Settings of the private teacher, or of an ensemble.

    Attributes:
        path: The teacher's checkpoint, or a network in a script; for an ensemble the file of a `TeacherEnsemble`, or an
            `nn.ModuleList` in a script. Also a folder with `config.json` and weights, as Hugging Face and timm save it.
        network: Builds the classifier that the file is of; for an ensemble each of them. Required if the file holds
            only weights.
        private_data: Public name of the training data, if the file does not say.
        input: The input format, if not images in [-1, 1] of the data's size and channels, nor stated by the file.
        outputs: `logits`, which include log-probabilities, or `probabilities`, whose logarithm is taken.
        trial: Try an external teacher on procedural images when it is loaded: outputs that are not as stated are
            refused, and the same class for all of them gives a warning. This is not charged, and guarantees name it,
            but not its outcome.
    """

    path: str | Callable[..., Any]
    network: NetworkCallable | None = None
    private_data: str | None = None
    input: TeacherInput = field(default_factory=TeacherInput)
    outputs: TeacherOutputs = "logits"
    trial: bool = True

    def __post_init__(self) -> None:
        # Plain values in a checkpoint of a script.
        object.__setattr__(self, "input", settings_of(TeacherInput, self.input, name="teacher.input"))
        check_choice("teacher.outputs", self.outputs, get_args(TeacherOutputs))
        if self.private_data in ("", "None", "null"):  # what a command line makes of null
            raise ValueError(f"teacher.private_data must be a name, got {self.private_data!r}: leave it out")

    def held(self) -> TeacherConfig:
        """Returns these settings with a script's network out of reach of every `state_dict`, copy and pickle."""
        teacher: Any = self.path
        if isinstance(teacher, nn.Module):
            hand_out(teacher)
            name = self.private_data or "training data of a teacher given in a script"
            if isinstance(teacher, nn.ModuleList):
                common = require_own_weights(teacher)
                stack = NetworkStack([self.adapted(network) for network in teacher])
                teacher = PrivateEnsemble(stack, private_data=name, assumptions=common)
            else:
                teacher = PrivateTeacher(self.adapted(teacher), private_data=name)
        return replace(self, path=teacher)

    def adapted(self, network: nn.Module) -> nn.Module:
        """Returns a network of the same weights that gives logits, for this project's images."""
        if not isinstance(network, ImageClassifier):  # which give nothing else
            network = giving_logits(network, probabilities=self.outputs == "probabilities")
        if self.input == TeacherInput() and self.outputs == "logits":
            return network
        return AdaptedTeacher(network, takes=self.input, outputs=self.outputs)

    def load(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> PrivateTeacher:
        """Reads a checkpoint of `Teacher`, weights of any classifier (see `files`), or a graph in ONNX.

        Raises:
            TeacherError: The file is missing or cannot be read without running code, has another architecture or
                number of classes, or weights that are not finite.
        """
        return self._load(PrivateTeacher, num_classes=num_classes, image_shape=image_shape)

    def load_ensemble(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> PrivateEnsemble:
        """Reads a checkpoint of `TeacherEnsemble`; see `load`.

        Raises:
            TeacherError: As for `load`, or the ensemble is unfinished, or the file holds none.
        """
        return self._load(PrivateEnsemble, num_classes=num_classes, image_shape=image_shape)

    def _load(self, kind: type[_Model], **of_data: Any) -> _Model:
        teacher: Any = self.held().path
        if not isinstance(teacher, PrivateModel):
            file, content = read_file(Path(str(teacher)))
            config, loaded = self._completed(file, content)
            if kind is PrivateEnsemble:
                teacher = config._read_ensemble(file, content, of_data)
            else:
                teacher = config._read(file, content, of_data, loaded=loaded)
        if not isinstance(teacher, kind):
            raise TeacherError(
                "teacher must be one network, or for an ensemble its file or an nn.ModuleList of networks in a script"
            )
        teacher.require_usable(**of_data)
        return teacher

    def _completed(self, file: Path, content: Any) -> tuple[TeacherConfig, bool]:
        """These settings with the architecture and the input that a file of timm or transformers states, unless set.

        With them, whether the network has its weights already.
        """
        ours = isinstance(content, dict) and "hyper_parameters" in content
        stated = None if ours or self.network is not None else stated_in(file, content)
        if stated is None:
            return self, False
        if self.input != TeacherInput():
            return replace(self, network=stated.network), stated.loaded
        told = ", ".join(f"{name}: {value}" for name, value in asdict(stated.input).items() if value is not None)
        classes = ", ".join(f"{number} = {name}" for number, name in enumerate(stated.classes[:10]))
        rank_zero_info(
            f"Teacher {file} states its input ({told}); model.teacher.input would replace it."
            + (f" Its outputs are {classes}: the data must have the same classes in this order." if classes else "")
        )
        return replace(self, network=stated.network, input=stated.input), stated.loaded

    def _read(self, file: Path, content: Any, of_data: Mapping[str, Any], *, loaded: bool) -> PrivateTeacher:
        if content is None:
            graph = OnnxNetwork(file)
            origin = self._origin({}, UnnamedTraining(graph.digest, kind="graph in ONNX"), file)
            return PrivateTeacher(self.adapted(graph), **origin)
        entries = weights_in(content, file)
        network = self._architecture(content, file, of_data)
        weights = entries if loaded else fitted_weights(entries, network, file=file)
        if not loaded:
            with _fits(file, network, of_data):
                network.load_state_dict(weights)
        # A weight in a plain file may have the name of one of our settings.
        stated = {name: value for name, value in content.items() if not isinstance(value, torch.Tensor)}
        return PrivateTeacher(self.adapted(network), **self._origin(stated, _training_of(stated, weights), file))

    def _read_ensemble(self, file: Path, content: Any, of_data: Mapping[str, Any]) -> PrivateEnsemble:
        ensemble = content.get("ensemble") if isinstance(content, dict) else None
        if not isinstance(ensemble, dict) or "weights" not in ensemble:
            raise TeacherError(
                f"{file} holds no ensemble: give a checkpoint of `LightningCLI fit` of a TeacherEnsemble"
            )
        weights, done, wanted = ensemble["weights"], ensemble["done"], ensemble["settings"]["num_teachers"]
        if done < wanted:
            raise TeacherError(
                f"{file} holds an unfinished ensemble, {done} of {wanted} teachers: resume its fit (--ckpt_path)"
            )
        template, extractor = without_feature_extractor(self._architecture(content, file, of_data))
        with _fits(file, template, of_data):
            stack = NetworkStack(restored(template, weights), feature_extractor=extractor)
        if isinstance(self.adapted(template), AdaptedTeacher):
            stack = NetworkStack([self.adapted(stack.network(index)) for index in range(len(stack))])
        return PrivateEnsemble(stack, **self._origin(content, _training_of(content, weights), file))

    def _architecture(self, content: Any, file: Path, of_data: Mapping[str, Any]) -> nn.Module:
        """The network that a file's weights belong to, freshly initialised."""
        settings = content.get("hyper_parameters") if isinstance(content, dict) else None
        spec = settings.get("network") if isinstance(settings, Mapping) else None
        shape = self.input.shape(of_data["image_shape"])
        try:
            factory = _stated_network(spec, file) if self.network is None else _named_again(self.network, spec)
            taken = {**of_data, "image_shape": shape}
            return build_network(factory, **taken, name="model.teacher.network", any_outputs=True)
        except TeacherError:
            raise
        except (ValueError, TypeError) as error:
            other = " (another size or channels: set model.teacher.input)" if "images of shape" in str(error) else ""
            raise TeacherError(f"the architecture of teacher {file} cannot be built: {error}{other}") from error

    def _origin(self, content: Mapping[str, Any], training: Training | UnnamedTraining, file: Path) -> dict[str, Any]:
        """Facts about a teacher from its file, as arguments of `PrivateModel`."""
        if isinstance(training, Training) and (self.input.range not in (None, [-1, 1]) or self.input.mean is not None):
            raise TeacherError(
                f"teacher {file} was trained here, on pixels in [-1, 1]: leave out range, mean and std of "
                "model.teacher.input"
            )
        records, assumptions = content.get("num_records"), []
        name = self.private_data or content.get("private_data")
        if not name:
            assumptions.append(_UNNAMED)
        elif isinstance(training, UnnamedTraining) and not os.environ.get(LEDGERS):
            assumptions.append(_BESIDE)
        for state in (content, content.get("dp_sgd"), content.get("ensemble")):
            assumptions += [str(text) for text in (state or {}).get("assumptions") or ()]
            accesses = (state or {}).get("uncharged_queries", ())
            assumptions += [f"ACCESSED WITHOUT CHARGE, in the teacher's training: {text}" for text in accesses]
        return {
            "private_data": name
            or f"training data of {(file.resolve().parent if file.name in IN_FOLDER else file).name}",
            "training": training,
            "num_records": None if records is None else int(records),
            "path": file,
            "assumptions": tuple(dict.fromkeys(assumptions)),
        }


def _training_of(content: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> Training | UnnamedTraining:
    """A file's training run, as the file names it or else by its weights."""
    if (stated := content.get("training")) is not None:
        return Training.from_dict(stated)
    return UnnamedTraining(tensors_digest(weights), kind="file without an identity")


@contextmanager
def _fits(file: Path, network: nn.Module, of_data: Mapping[str, Any]) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        heads = set(re.findall(r"\(\[(\d+)[^]]*\]\) from checkpoint, .*\(\[(\d+)", str(error)))
        if len(heads) == 1 and "key(s)" not in str(error) and (one := min(heads))[1] == str(of_data["num_classes"]):
            raise TeacherError(
                f"teacher {file} has {one[0]} classes and the data {one[1]}: give data with the teacher's classes, in "
                "its order (of pictures, a folder test/CLASS for each)"
            ) from error
        taken = " and ".join(f"{name}={value}" for name, value in of_data.items())
        raise TeacherError(
            f"the weights in teacher {file} do not fit the architecture {type(network).__name__} with {taken}: "
            f"{' '.join(str(error).split())[:400]}. Set model.teacher.network (`distill`: --network), or "
            "model.teacher.input.size and channels as it was trained with"
        ) from error


def _named_again(given: NetworkCallable, spec: Any) -> NetworkCallable:
    """The network that a user gives; of `External` with the file's arguments for that name, if none are given.

    Raises:
        ValueError: The file's are of code that is not known, or it has other arguments for a network of ours.
    """
    own, stated = described(given), spec if isinstance(spec, dict) else {}
    if own is None or own["class_path"].rpartition(".")[2] != str(stated.get("class_path")).rpartition(".")[2]:
        return given
    now, before = own.get("init_args", {}), stated.get("init_args", {})
    if "name" not in now:
        if other := sorted(name for name in before if now.get(name) != before[name]):
            said = ", ".join(f"{name}={before[name]!r}" for name in other)
            raise ValueError(f"the file is of {said}: leave model.teacher.network out, or give the same")
        return given
    if now["name"] != before.get("name") or now.get("arguments"):
        return given
    require_known_code(spec, named=[str(now["name"])])
    return network_of(spec)


def _stated_network(spec: Any, file: Path) -> NetworkCallable:
    """The architecture that a checkpoint names, where that is known code."""
    if not isinstance(spec, (str, dict)):
        raise TeacherError(
            f"{file} does not say its architecture: set model.teacher.network (ResNet34; "
            "External, with its name; `distill`: --network)"
        )
    require_known_code(spec)
    return network_of(spec)
