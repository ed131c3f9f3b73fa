"""The steps of a DP-SGD training: taken and planned, their cost, their noise, and how a guarantee describes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lightning_modules.teachers.private_teacher import tensors_digest
from lightning_modules.teachers.record_clipping import Clipping
from privacy.accountants import ExactAccountant
from privacy.accounting.calibration import calibrate_noise
from privacy.accounting.composition import compose
from privacy.checks import round_up
from privacy.events import Release, SampledGaussian, Unbounded
from privacy.events.base import Unit
from privacy.identity import CheckpointError
from privacy.mechanisms.base import FLOATS, Description, NoiseSource
from privacy.plan import Charge, Plan
from privacy.processes import Processes, on_rank_zero

CHOSEN_ON = ("MNIST", "FashionMNIST", "CIFAR10", "PneumoniaMNIST")
CHOICE = (
    "features, rates and priors of this project's recipes were compared on held-out training or validation records of "
    "these data, and epsilon does not count that choice"
)
RESUMED = "steps that an interrupted fit made after its last checkpoint were shown to nobody"
PERSONS = (
    "the data say truly whose each picture is, and alike in all trainings that epsilon covers; the number of persons "
    "is public"
)
_INSECURE = "the noise or the sampling can be reproduced by anyone who knows its seed"


@dataclass(kw_only=True, eq=False)
class PlannedSteps:
    """Releases of the steps of one training.

    Args:
        delta: δ.
        target_epsilon: ε that no step may exceed; None for no limit.
        unit: The unit that is sampled and clipped: a record or a person.

    Attributes:
        accountant: The steps taken so far.
        plan: All planned steps, which are the cost of the training; it never shrinks.
    """

    delta: float
    target_epsilon: float | None
    unit: Unit = Unit.RECORD
    accountant: ExactAccountant = field(default_factory=ExactAccountant, init=False)
    plan: Plan = field(default_factory=Plan, init=False)

    def step(self, noise: float, rate: float, *, secure: bool = True) -> Release:
        """Release of one step; unbounded if its noise or sample can be reproduced."""
        if not secure:
            return Unbounded(_INSECURE, unit=self.unit)
        return SampledGaussian(noise, rate, unit=self.unit)

    def calibrated(self, *, rate: float, steps: int) -> float:
        """Smallest noise multiplier at which `steps` steps cost at most `target_epsilon`."""
        target = self.target_epsilon
        assert target is not None

        def epsilon_of(noise: float) -> float:
            return compose({self.step(noise, rate): steps}, self.delta).epsilon

        calibration = calibrate_noise(epsilon_of, target, low=0.2, high=1e4)
        if calibration.value == 0.2:  # such a target needs less
            calibration = calibrate_noise(epsilon_of, target, low=0.02, high=0.2)
        least = "" if calibration.epsilon > 0.99 * target else f"; target_epsilon={target:g} allows less noise, no use"
        rank_zero_info(
            f"noise_multiplier={calibration.value:.4f} for epsilon={calibration.epsilon:.4f} at delta={self.delta:g} "
            f"after {steps} steps at sample rate {rate:.4f}{least}"
        )
        return calibration.value

    @property
    def releases(self) -> Counter[Release]:
        """Releases of the whole training: all planned steps, taken or not.

        Stopping early may depend on what the steps showed, so a file of fewer steps costs no less.
        """
        return self._with_plan(self.accountant.counts())

    def _with_plan(self, taken: Mapping[Release, int]) -> Counter[Release]:
        return Counter({charge.release: count for charge, count in self.plan.charges.items()}) | Counter(taken)

    def require_rate(self, rate: float) -> None:
        """Refuses to continue steps that were sampled at another rate.

        Raises:
            CheckpointError: The rates differ.
        """
        for release in self.accountant.counts():
            before = getattr(release, "sample_rate", rate)
            if before != rate:
                raise CheckpointError(
                    f"the checkpoint's steps were sampled at rate {before:.6g}, and data.batch_size over the records "
                    f"of this fit gives {rate:.6g}: resume with the same, or start a new run without --ckpt_path"
                )

    def fix_plan(self, step: Release, ahead: int | None) -> None:
        """Adds the steps `ahead`, None if their number is unknown, to the plan, which never shrinks.

        Raises:
            ValueError: They are more than the noise was calibrated for; the plan does not change.
        """
        taken, charge = len(self.accountant), Charge(release=step, queries=0)
        before = self.plan
        self.plan = before.fixed(
            None if ahead is None else taken + ahead,
            made=taken,
            charged={Charge(release=release, queries=0): n for release, n in self.accountant.counts().items()},
            cost=charge,
        )
        try:
            self._require_target(self.releases)
        except ValueError:
            # A refused plan does not count, and must not enter the checkpoint that an error leaves.
            self.plan = before
            raise

    def count(self, step: Release, *, register: Callable[[Counter[Release]], None]) -> None:
        """Counts one step before its noise is drawn; if it was not planned, `register` charges all releases.

        Raises:
            ValueError: It would go beyond the target; it is not counted.
        """
        taken = Counter(self.accountant.counts())
        taken[step] += 1
        if (now := self._with_plan(taken)) != self.releases:
            # Beyond the plan, or without one: each step is charged when taken, and none beyond the target.
            self._require_target(now)
            self.plan = replace(self.plan, changed=True)
            register(now)
        self.accountant.charge(step)

    def _require_target(self, releases: Mapping[Release, int]) -> None:
        if self.target_epsilon is None or not all(release.bounded for release in releases):
            return
        epsilon = compose(releases, self.delta).epsilon
        if epsilon > self.target_epsilon * (1 + 1e-6):
            multipliers = sorted({getattr(release, "noise_multiplier", 0.0) for release in releases})
            noises = " and ".join(f"noise_multiplier={noise:.4g}" for noise in multipliers)
            raise ValueError(
                f"target_epsilon={self.target_epsilon:g} was what the noise was calibrated to, and "
                f"{sum(releases.values())} steps in all with {noises} cost {round_up(epsilon)}: lower "
                "trainer.max_epochs, or start a new run without --ckpt_path"
            )

    def described(self, clipping: Clipping, *, noise: float, rate: float, accessed: bool) -> Description:
        """What the steps release, for a guarantee; `accessed` if there were queries that epsilon does not count."""
        norm, one = clipping.max_grad_norm, self.unit.value
        whose = "record gradients" if self.unit is Unit.RECORD else "mean gradients of persons,"
        bounded = "clipped" if clipping.bounding == "clip" else "normalised"
        return Description(
            mechanism=(
                f"sums of {whose} {bounded} to {norm:g}, with Gaussian noise of standard deviation "
                f"{noise:.4g} x {norm:g}, on Poisson samples at rate {rate:.4g}"
            ),
            unit="one training record",
            relation="add-or-remove of one training record",
            source=(
                "privacy-loss distribution of the Poisson-sampled Gaussian (Abadi et al. 2016; Koskela et al. 2020), "
                "rounded pessimistically"
            ),
            noise=FLOATS,
            assumption="the settings, the initial weights and fixed features were chosen without the private data"
            f"{', but for the access above' if accessed else ''}; "
            f"which records are read depends on no other record; each {one} was sampled by a coin of its own; "
            f"gradients of other {one}s do not depend on who else is in a batch, up to the rounding of float32",
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain values for a checkpoint, from which ε follows at any δ."""
        return {"accountant": self.accountant.state_dict(), "plan": self.plan.to_dict()}

    def load_state_dict(self, state: Mapping[str, Any], *, settings: Mapping[str, Any]) -> None:
        """Restores what was taken and planned.

        Raises:
            CheckpointError: It was with other settings than these.
        """
        for name, value in settings.items():
            if value != (before := state["settings"].get(name)):
                raise CheckpointError(f"{name} was {before!r} and is {value!r} now: resume with the same")
        self.accountant.load_state_dict(state["accountant"])
        self.plan = Plan.from_dict(state["plan"])


class KnownWeights:
    """Weights with which a fit may begin: those that were built, trained or resumed here.

    Steps behind any others would not be counted.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        #: Whether a fit has begun with them, and not ended.
        self.used = False
        self.take()

    def take(self, state: Mapping[str, Any] | None = None) -> None:
        """Lets the next fit begin with the network's present weights, or with those of a checkpoint."""
        self._digest, self.used = self._of(self._network.state_dict() if state is None else state), False

    def _of(self, state: Mapping[str, Any]) -> bytes:
        names = self._network.state_dict().keys() & state.keys()
        return tensors_digest({name: state[name] for name in names if isinstance(state[name], Tensor)})

    def require(self, *networks: nn.Module) -> None:
        """Refuses other weights, or another network than was built among those that a fit trains and publishes.

        Raises:
            ValueError: They may come from another training.
        """
        same = all(network is self._network for network in networks)
        if not same or self.used or self._digest != self._of(self._network.state_dict()):
            raise ValueError(
                "model.network: its weights are not those that it was built with, or that the fit before or the "
                "checkpoint left: they may be of another training, whose steps epsilon would not count. To go on with "
                "one, give its checkpoint (ckpt_path, load_from_checkpoint); public weights are loaded where the "
                "network is built"
            )
        self.used = True


def noisy_means(
    sums: Sequence[Tensor],
    *,
    std: float,
    batch_size: int,
    source: NoiseSource,
    processes: Processes,
) -> list[Tensor]:
    """Adds noise to the sums over a batch and divides by its expected size, in float64.

    If noise is rounded to float32 before it is added, the low bits of the sum tell whether a record took part (an event
    of probability 3.3 % without it, 0 with it). So the caller rounds the result, once.

    Process 0 adds up the sums of all processes and draws the noise once, since the sum is one release of one batch:
    shares drawn by each process would have to be assumed independent.

    Args:
        sums: This process's sums, on the CPU; see `ClippedNetwork.sums`.
        std: σC, the noise's standard deviation.
        batch_size: Expected size of a batch over all processes.
        source: Source of the noise.
        processes: Processes of the run, each with its own records.
    """
    if processes.size > 1:
        sums = [torch.stack(parts).sum(dim=0) for parts in zip(*processes.gather(list(sums)), strict=True)]
    means: list[Tensor] = []
    with on_rank_zero(processes) as first:
        if first:
            means = [(total + source.gaussian(tuple(total.shape)) * std) / batch_size for total in sums]
    noisy: list[Tensor] = processes.broadcast(means)
    return noisy
