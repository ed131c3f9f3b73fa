"""`torch.compile` for the networks that a fit trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning import Callback, LightningModule, Trainer
from torch import nn

from lightning_modules.callbacks.data_free import is_data_free
from lightning_modules.pretraining import ProceduralPretraining
from lightning_modules.runtime.processes import processes_of
from lightning_modules.teachers.teacher import Teacher
from privacy.processes import by_all

__all__ = ["Compile", "CompileError"]


class CompileError(ValueError):
    """A network that cannot be compiled here."""


class Compile(Callback):
    """Compiles networks when a fit begins: `--trainer.callbacks+=Compile`.

    In place, so that weights keep their names: checkpoints and `public/` are those of a run without it. What is charged
    and how noise is drawn stays outside of what is compiled. The first steps take longer, and results differ by
    rounding.

    Args:
        networks: Which: of a data-free method `student` and `generator`, of a `Teacher` its `network`, of a pretraining
            its `encoder`. Default: those that there are, except a `DGD` student with tangent and normal terms, whose
            gradients are derived twice.
        backend: Of `torch.compile`.
        mode: Of `torch.compile`, such as `reduce-overhead`.
        dynamic: Of `torch.compile`; None lets it find out.

    Raises:
        CompileError: The module has no such network, or trains it by gradients that cannot be compiled.
    """

    def __init__(
        self,
        *,
        networks: Sequence[str] | None = None,
        backend: str = "inductor",
        mode: str | None = None,
        dynamic: bool | None = None,
    ) -> None:
        self.networks = None if networks is None else list(networks)
        self.settings: dict[str, Any] = {"backend": backend, "mode": mode, "dynamic": dynamic}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Before the processes' copies are tied together.

        Raises:
            CompileError: See the class.
        """
        if stage == "fit":
            for network in by_all(processes_of(trainer), lambda: self._chosen(pl_module)):
                network.compile(**self.settings)

    def _chosen(self, module: LightningModule) -> list[nn.Module]:
        offered = _networks(module)
        if not offered:
            raise CompileError(
                "Compile is for data-free methods, Teacher and ProceduralPretraining: "
                f"{type(module).__name__} takes gradients of single records or of many networks at once, which is not "
                "compiled. Leave the callback out"
            )
        twice = bool(getattr(getattr(module, "tangent_normal", None), "switched_on", False))
        names = self.networks
        if names is None:
            names = [name for name in offered if not (twice and name == "student")]
        for name in names:
            if name not in offered:
                raise CompileError(f"networks of Compile must be of {', '.join(offered)} here, got {name!r}")
            if twice and name == "student":
                raise CompileError(
                    "the student of DGD with tangent_normal terms is derived twice, which torch.compile does not do: "
                    "leave student out of Compile.networks, or set the terms' weights to 0"
                )
        return [offered[name] for name in names]


def _networks(module: LightningModule) -> dict[str, nn.Module]:
    if is_data_free(module):
        found = {name: getattr(module, name, None) for name in ("student", "generator")}
        return {name: network for name, network in found.items() if isinstance(network, nn.Module)}
    if isinstance(module, ProceduralPretraining):
        return {"encoder": module.encoder}
    return {"network": module.network} if type(module) is Teacher else {}
