"""Teachers in files of timm and transformers, which state their architecture and what pictures they take, and in ONNX.

An ONNX graph has no code of its maker; onnxruntime runs it. It has outputs and no gradients.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from lightning_modules.teachers.external import TeacherInput
from lightning_modules.teachers.files import IN_FOLDER, TeacherError


class Stated(NamedTuple):
    """What a file or folder states: its network, the pictures it takes, its classes, whether it has its weights."""

    network: Any
    input: TeacherInput
    classes: Sequence[str] = ()
    loaded: bool = False


def stated_in(file: Path, content: Any) -> Stated | None:
    """The architecture and the input that a file of weights states, or the configuration beside it; None if neither.

    Nothing but networks of the two libraries is built: a name is looked up in their own lists, and the code that a
    configuration of Hugging Face may name (`auto_map`) is not run.

    Args:
        file: The weights: `model.safetensors` beside a `config.json`, or a checkpoint of timm's training script.
        content: What was read from it.

    Raises:
        TeacherError: The library is not installed, or does not have the architecture.
    """
    beside = file.with_name("config.json")
    if file.name in IN_FOLDER and beside.is_file():
        config = json.loads(beside.read_text(encoding="utf-8"))
        if "architecture" in config:
            arguments = {"num_classes": config.get("num_classes"), **config.get("model_args", {})}
            stated = _of_timm(file, config["architecture"], arguments, config.get("pretrained_cfg", {}))
            return stated._replace(classes=config.get("label_names", ()))
        return _of_transformers(file, config) if "model_type" in config else None
    if isinstance(content, Mapping) and isinstance(settings := content.get("args"), Namespace) and "arch" in content:
        given = {name: value for name, value in vars(settings).items() if value is not None}
        taken: dict[str, Any] = {name: given[name] for name in ("mean", "std", "input_size") if name in given}
        if "img_size" in given:
            taken["input_size"] = (given.get("in_chans", 3), given["img_size"], given["img_size"])
        arguments = {name: given[name] for name in ("num_classes", "in_chans") if name in given}
        return _of_timm(file, content["arch"], arguments | given.get("model_kwargs", {}), taken)
    return None


def _library(name: str, file: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise TeacherError(f"teacher {file}: pip install 'private-model-transcription[{name}]' to build it") from error


def _of_timm(file: Path, name: str, arguments: Mapping[str, Any], pictures: Mapping[str, Any]) -> Stated:
    timm = _library("timm", file)
    if not timm.is_model(name):
        raise TeacherError(f"{file} is of {name!r}, which timm {timm.__version__} does not have")
    # Plain values alone, and none by which timm would read another file.
    kept: dict[str, Any] = {
        key: value
        for key, value in arguments.items()
        if isinstance(value, (bool, int, float, str, list, tuple)) and not key.startswith(("pretrained", "checkpoint"))
    }
    own: Any = timm.get_pretrained_cfg(name)
    stated: dict[str, Any] = {"input_size": (3, None, None), **(own.to_dict() if own else {}), **pictures}
    channels, *size = stated["input_size"]
    channels = int(kept.get("in_chans", channels))
    mean, std = stated.get("mean"), stated.get("std")
    if mean is not None and len(mean) != channels:
        mean, std = mean[:1], stated["std"][:1]

    def build(num_classes: int, image_shape: tuple[int, int, int]) -> nn.Module:
        network: nn.Module = timm.create_model(
            name, pretrained=False, **{"num_classes": num_classes, "in_chans": channels, **kept}
        )
        return network

    return Stated(build, _input(mean, std, size if all(size) else None, channels))


def _of_transformers(file: Path, config: Mapping[str, Any]) -> Stated:
    # What would read other weights than `file`, or code; transformers hands the arguments of timm_wrapper to timm.
    elsewhere = [key for key in ("transformers_weights", "backbone", "use_timm_backbone") if config.get(key)]
    elsewhere += [key for key in config if "attn_implementation" in key and "/" in str(config[key])]
    elsewhere += ["timm_wrapper"] if config["model_type"] == "timm_wrapper" else []
    elsewhere += ["adapter_config.json"] if file.with_name("adapter_config.json").exists() else []
    if elsewhere:
        raise TeacherError(f"{file.parent} takes its network from elsewhere ({', '.join(elsewhere)}): save it whole")
    transformers = _library("transformers", file)
    try:
        # The library's own loading: names of weights change with its versions.
        network, found = transformers.AutoModelForImageClassification.from_pretrained(
            str(file.parent), trust_remote_code=False, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # the library's own
        raise TeacherError(f"{file.parent} is no image classifier of transformers: {str(error)[:300]}") from error
    if lacking := sorted({*found["missing_keys"], *found["unexpected_keys"]}):
        raise TeacherError(f"the weights in {file} are not those of {type(network).__name__}: {', '.join(lacking[:8])}")
    processor = file.with_name("preprocessor_config.json")
    pictures = json.loads(processor.read_text(encoding="utf-8")) if processor.is_file() else {}
    size = pictures.get("crop_size" if pictures.get("do_center_crop") else "size")
    if isinstance(size, Mapping):
        size = [size["height"], size["width"]] if "height" in size else size.get("shortest_edge")
    scaled = math.isclose(pictures.get("rescale_factor", 1 / 255), 1 / 255)
    normalised = bool(pictures.get("do_normalize")) and scaled
    mean, std = (pictures.get(f"image_{name}") if normalised else None for name in ("mean", "std"))
    size = size or getattr(network.config, "image_size", None)
    names = [name for _, name in sorted(network.config.id2label.items())]
    stated = _input(mean, std, size, network.config.num_channels)
    return Stated(lambda *_: network, stated, [] if "LABEL_0" in names else names, loaded=True)


def _input(mean: Any, std: Any, size: Any, channels: int) -> TeacherInput:
    mean, std = (None if values is None else list(map(float, values)) for values in (mean, std))
    size = list(size) if isinstance(size, (list, tuple)) else size
    return TeacherInput(mean=mean, std=std, size=size, channels=channels)


class OnnxNetwork(nn.Module):
    """The graph of an ONNX file as a network, on the CPU.

    Args:
        file: The file, with any external data that it names next to it.

    Raises:
        TeacherError: The extra `onnx` is not installed, or the graph is not one of images to rows of numbers.

    Attributes:
        digest: Hash of the graph and its weights. **Private.**
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        try:
            # Untyped: it ships no type information.
            onnx, runtime = (importlib.import_module(name) for name in ("onnx", "onnxruntime"))
            model: Any = onnx.load(str(file))
            session: Any = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
        except ImportError as error:
            raise TeacherError(f"teacher {file}: pip install 'private-model-transcription[onnx]' to read it") from error
        except Exception as error:  # each of the two has its own errors
            raise TeacherError(f"teacher {file} cannot be read as ONNX ({str(error)[:300]})") from error
        inputs = session.get_inputs()
        if len(inputs) != 1 or inputs[0].type != "tensor(float)" or len(inputs[0].shape) != 4:
            descriptions = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in inputs)
            raise TeacherError(f"teacher {file} must take one float32 input (N, C, H, W), got {descriptions}")
        self._name: str = inputs[0].name
        batch = inputs[0].shape[0]
        #: Images in one call where the graph was written for a fixed number; None takes any.
        self._batch: int | None = batch if isinstance(batch, int) else None
        self.digest = hashlib.sha256(model.SerializeToString()).digest()
        # In a function: an attribute could be copied, and a session cannot.
        self._session: Callable[[], Any] = lambda: session

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Outputs of images (N, C, H, W), (N, c), on their device.

        Raises:
            RuntimeError: A gradient is required, or the graph does not take such images.
        """
        if images.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("a teacher in ONNX has no gradients")
        pieces = images.detach().float().cpu().split(self._batch or max(1, len(images)))
        return torch.cat([self._run(piece) for piece in pieces]).to(images.device)

    def _run(self, piece: torch.Tensor) -> torch.Tensor:
        count = len(piece)
        if self._batch is not None and count < self._batch:
            piece = torch.cat([piece, piece[-1:].expand(self._batch - count, *piece.shape[1:])])
        try:
            outputs = self._session().run(None, {self._name: piece.contiguous().numpy()})[0]
        except Exception as error:  # onnxruntime's own have no common class
            raise RuntimeError(f"onnxruntime: {str(error)[:300]}") from error
        return torch.from_numpy(outputs)[:count].float()
