"""A linear classifier on a frozen network that was pretrained on procedural images alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_modules.networks import patches as patch_features
from lightning_modules.networks.classifiers import ImageClassifier
from lightning_modules.networks.fixed_features import WhitenedFeatures, Whitening
from lightning_modules.networks.folding import folded
from lightning_modules.networks.patches import cell_means
from lightning_modules.networks.pretraining_file import Pretraining, build_encoder, read_pretraining
from lightning_modules.priors import DeadLeavesPrior, ImagePrior
from privacy.identity import CheckpointError

__all__ = [
    "JoinedFeatures",
    "Patches",
    "PretrainedClassifier",
    "PretrainedFeatures",
    "assumptions_of",
    "require_encoder",
]

_IMAGES_TO_SCALE_BY = 500
#: A name in a checkpoint is read again by a parser, which takes other characters for settings.
_NAME = re.compile(r"\w[\w .,@-]*")


class PretrainedFeatures(nn.Module):
    """Maps of a frozen encoder, averaged over the cells of a grid.

    It is in evaluation mode always, and its normalisation, by statistics of procedural images, is folded into the
    convolutions: an image's features depend on no other image.

    Args:
        pretraining: The encoder's class and weights. Without weights, those of a `state_dict` are awaited.
        image_shape: channels, height, width.
        cells: of the grid, along either side.
        stages: how many of the last stages' maps are taken; more than one needs an encoder with `forward_stages`.

    Raises:
        ValueError: an encoder that cannot be built or whose weights do not fit, or a setting that does not fit it.

    Attributes:
        output_shape: (F,).
        file_digest: (32,) uint8, SHA-256 of the file that the encoder came from.
        assumptions: What a guarantee of anything that is computed with it rests on.
    """

    file_digest: Tensor

    def __init__(
        self, pretraining: Pretraining, *, image_shape: tuple[int, int, int], cells: int = 2, stages: int = 1
    ) -> None:
        super().__init__()
        for name, value in (("cells", cells), ("stages", stages)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        encoder = build_encoder(pretraining.encoder, image_shape=image_shape)
        if pretraining.weights:
            try:
                encoder.load_state_dict(pretraining.weights)
            except RuntimeError as error:
                raise ValueError(
                    f"the pretrained encoder {type(encoder).__name__} does not fit images of shape {image_shape}: "
                    f"{' '.join(str(error).split())}"
                ) from error
        if stages > 1 and not hasattr(encoder, "forward_stages"):
            raise ValueError(
                f"stages must be 1 for {type(encoder).__name__}, which has no forward_stages, got {stages}"
            )
        self.encoder = folded(encoder).eval().requires_grad_(False).to(memory_format=torch.channels_last)
        self.cells, self.stages = cells, stages
        self._awaits_weights = not pretraining.weights
        self.assumptions = (pretraining.assumption,)
        digest = torch.frombuffer(bytearray.fromhex(pretraining.sha256), dtype=torch.uint8)
        self.register_buffer("file_digest", digest.clone())
        with torch.no_grad():
            shapes = [tuple(maps.shape[1:]) for maps in self._maps(torch.zeros(1, *image_shape))]
        if len(shapes) < stages:
            raise ValueError(f"stages must be at most the encoder's {len(shapes)}, got {stages}")
        least = min(min(shape[1:]) for shape in shapes)
        if cells > least:
            raise ValueError(f"cells must be at most {least}, the side of the smallest maps, got {cells}")
        for number, (_, rows, columns) in enumerate(shapes):
            self.register_buffer(f"average{number}", cell_means(rows, columns, cells), persistent=False)
        self.output_shape = (sum(shape[0] for shape in shapes) * cells**2,)

    def extra_repr(self) -> str:
        """Settings, which the buffers do not show."""
        return f"cells={self.cells}, stages={self.stages}"

    def train(self, mode: bool = True) -> PretrainedFeatures:
        """Leaves it in evaluation mode: it is never trained."""
        super().train(False)
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, F)."""
        found = [
            (maps.flatten(2) @ self.get_buffer(f"average{number}")).flatten(1)
            for number, maps in enumerate(self._maps(images))
        ]
        return torch.cat(found, dim=1)

    def _maps(self, images: Tensor) -> list[Tensor]:
        if self.stages == 1:
            return [self.encoder(images)]
        found: list[Tensor] = self.encoder.forward_stages(images)[-self.stages :]  # type: ignore[operator]
        return found

    @property
    def awaits_weights(self) -> bool:
        """Whether it was built without its file, and no weights have been loaded since."""
        return self._awaits_weights

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *more: Any) -> None:
        given = state_dict.get(f"{prefix}file_digest")
        if given is not None and not torch.equal(given.cpu(), self.file_digest.cpu()):
            before, now = (bytes(value.cpu().tolist()).hex() for value in (given, self.file_digest))
            raise CheckpointError(
                f"the weights are of a classifier on an encoder of the file with SHA-256 {before}, and this one's file "
                f"has {now}: give the file that it was trained with"
            )
        super()._load_from_state_dict(state_dict, prefix, *more)
        self._awaits_weights = False


class JoinedFeatures(nn.Module):
    """Several kinds of features side by side, each scaled so that they vary alike over a prior's images.

    Args:
        parts: Each maps images (N, C, H, W) to (N, *output_shape).
        weights: Standard deviation of each part as a whole, relative to the others.
        image_shape: channels, height, width.
        prior: whose images' variances are taken.
    """

    scales: Tensor

    def __init__(
        self, parts: list[nn.Module], *, weights: list[float], image_shape: tuple[int, int, int], prior: ImagePrior
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        images = prior.sample(
            _IMAGES_TO_SCALE_BY,
            image_shape=image_shape,
            generator=torch.Generator().manual_seed(0),
            device=torch.device("cpu"),
        )
        with torch.no_grad():
            spread = [part(images).flatten(1).var(dim=0).sum().sqrt() for part in parts]
        scales = [weight / float(one.clamp_min(1e-6)) for weight, one in zip(weights, spread, strict=True)]
        self.register_buffer("scales", torch.tensor(scales))
        self.output_shape = (sum(_length_of(part) for part in parts),)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to features (N, F)."""
        found = [self.scales[number] * part(images).flatten(1) for number, part in enumerate(self.parts)]
        return torch.cat(found, dim=1)


def _length_of(part: nn.Module) -> int:
    shape: Any = part.output_shape
    return int(torch.Size(shape).numel())


@dataclass(frozen=True, kw_only=True)
class Patches:
    """Patch features beside those of an encoder, see `networks.patches.Patches`.

    Attributes:
        filters: see `networks.patches.Patches`, as those that follow.
        patch: side of a patch in pixels.
        stride: distance of two patches in pixels.
        cells: of the grid, along either side.
        weight: how far they vary, relative to the encoder's features.
    """

    filters: int = 800
    patch: int = 6
    stride: int = 2
    cells: int = 2
    weight: float = 1.0


class PretrainedClassifier(ImageClassifier):
    """A linear classifier on whitened features of a frozen encoder, for DP-SGD and for students of such teachers.

    Nothing in it was learnt from anybody's data: the encoder is of `ProceduralPretraining`, whose checkpoint declares
    that, and the whitening is of procedural images. The encoder is saved with it, so that what was trained needs the
    pretraining's file no more; its SHA-256 goes with the weights.

    Args:
        num_classes: number of classes c.
        image_shape: channels, height, width.
        checkpoint: file of a `ProceduralPretraining`.
        prior: images by whose statistics the features are whitened, and that patches are taken of. Default:
            `DeadLeavesPrior`.
        cells: see `PretrainedFeatures`.
        stages: see `PretrainedFeatures`.
        patches: patch features that stand beside the encoder's; null is none.
        power: how far features are whitened, 0 to 0.5; see `whitening_of`.
        images: how many images of the prior whitening takes.
        mirrored: see `WhitenedFeatures`.
        shifts: see `WhitenedFeatures`.
        vouched_by: who says that no private record had a part in a checkpoint that does not declare it. A guarantee
            names them: letters, digits, spaces and `.,@-`.
        recorded: what a fit has written down of the file, from which the network is built again without it. Not for
            people.

    Raises:
        ValueError: no checkpoint, one of something else, one that declares nothing while nobody vouches for it, or a
            setting that does not fit.

    Attributes:
        recorded_arguments: Settings that a checkpoint of this network is to hold besides those that were given.
    """

    def __init__(
        self,
        *,
        num_classes: int = 10,
        image_shape: tuple[int, int, int] = (3, 32, 32),
        checkpoint: str | None = None,
        prior: ImagePrior | None = None,
        cells: int = 2,
        stages: int = 1,
        patches: Patches | None = None,
        power: float = 0.25,
        images: int = 2000,
        mirrored: bool = False,
        shifts: int = 0,
        vouched_by: str | None = None,
        recorded: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        # What was written down may come from anybody's config.json, and is held to the same.
        if vouched_by is None and recorded is not None:
            vouched_by = recorded.get("vouched_by")
        if vouched_by is not None and not _NAME.fullmatch(str(vouched_by)):
            raise ValueError(f"vouched_by must be a name of letters, digits, spaces and .,@-, got {vouched_by!r}")
        shape = (image_shape[0], image_shape[1], image_shape[2])
        pretraining = _pretraining(checkpoint, recorded, vouched_by=vouched_by)
        self.recorded_arguments = {
            "recorded": {
                "sha256": pretraining.sha256,
                "encoder": pretraining.encoder["class"],
                "settings": dict(pretraining.encoder["settings"]),
                "declared": pretraining.declared,
                **({} if pretraining.declared else {"vouched_by": pretraining.vouched_by}),
            }
        }
        prior = prior or DeadLeavesPrior()
        frozen = PretrainedFeatures(pretraining, image_shape=shape, cells=cells, stages=stages)
        plain: nn.Module = frozen
        if patches is not None:
            beside = patch_features.Patches(
                shape, prior, filters=patches.filters, patch=patches.patch, stride=patches.stride, cells=patches.cells
            )
            if not patches.weight > 0:
                raise ValueError(f"patches.weight must be above 0, got {patches.weight}")
            plain = JoinedFeatures([frozen, beside], weights=[1.0, patches.weight], image_shape=shape, prior=prior)
        whitening = Whitening(power=power, images=images, mirrored=mirrored, shifts=shifts)
        self.feature_extractor = WhitenedFeatures(plain, whitening, image_shape=shape, prior=prior)
        self.head = nn.Linear(self.feature_extractor.output_shape[0], num_classes)

    def forward_features(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) to the head's input (N, F)."""
        features: Tensor = self.feature_extractor(images)
        return features

    def forward_extracted(self, features: Tensor) -> Tensor:
        """Map what `feature_extractor` gives of images, (N, F), to logits (N, c)."""
        logits: Tensor = self.head(features)
        return logits

    @staticmethod
    def published_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments for whoever has the weights: no path of the machine that it was trained on."""
        if not arguments.get("recorded"):
            return dict(arguments)
        return {name: value for name, value in arguments.items() if name not in ("checkpoint", "vouched_by")}


def assumptions_of(network: nn.Module) -> tuple[str, ...]:
    """What a guarantee of anything that is computed with a network rests on: of every encoder in it, however deep."""
    encoders = [module for module in network.modules() if isinstance(module, PretrainedFeatures)]
    return tuple(dict.fromkeys(text for encoder in encoders for text in encoder.assumptions))


def require_encoder(network: nn.Module) -> None:
    """Refuses to train on an encoder that was built again and never got its weights.

    Raises:
        ValueError: There is one in the network.
    """
    if any(isinstance(module, PretrainedFeatures) and module.awaits_weights for module in network.modules()):
        raise ValueError(
            f"{type(network).__name__} was built by what another fit has written down (recorded), without the weights "
            "of its encoder: leave that out, and give checkpoint, the file of a ProceduralPretraining"
        )


def _pretraining(checkpoint: str | None, recorded: Mapping[str, Any] | None, *, vouched_by: str | None) -> Pretraining:
    """What is frozen: of the file, or what was written down of it."""
    if recorded is not None:
        return Pretraining(
            encoder={"class": recorded["encoder"], "settings": dict(recorded["settings"])},
            sha256=str(recorded["sha256"]),
            declared=bool(recorded["declared"]),
            weights={},
            vouched_by=vouched_by,
        )
    if checkpoint is None:
        raise ValueError(
            "checkpoint must be the file of a ProceduralPretraining, got none. Make one with:  LightningCLI fit "
            "--config sweeps/methods/pretrain_procedural.yaml"
        )
    return read_pretraining(Path(checkpoint), vouched_by=vouched_by)
