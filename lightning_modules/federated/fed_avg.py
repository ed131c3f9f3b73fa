"""FedAvg: local training at every client, then the mean of their weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRScheduler

from datamodules import ShardedRecords, Shards
from lightning_modules.teachers.joint_training import shuffled_passes
from lightning_modules.teachers.teacher import Teacher
from lightning_modules.training.randomness import Draws
from lightning_modules.training.run import datamodule_as
from privacy.checks import check_count


class FedAvg(Teacher):
    """McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, AISTATS 2017.

    In a round every client starts from the same weights and takes `local_steps` steps on its own records (the data are
    `Clients`, whose `batch_size` is that of a client); the next weights are their mean, weighted by numbers of records
    (DENSE's code weighs all clients alike). `rounds: 1` is one-shot, as in DENSE. A training step of the fit is a
    round, and the fit ends after the last one: leave `trainer.max_epochs` at -1.

    **No privacy**: its outputs are as private as the clients' records, and record-level ε is infinite.

    Args:
        rounds: Number of rounds of communication.
        local_steps: Steps of each client in a round.
        **shared: See `Teacher`. BatchNorm statistics are averaged as well. `optimizer` is each client's, new in each
            round, without a schedule; default: SGD with learning rate 0.01 and momentum 0.9, as in DENSE.

    Raises:
        ValueError: A setting is invalid, or the network does not return c logits for such images.
    """

    one_process = True

    def __init__(self, *, rounds: int = 1, local_steps: int = 100, **shared: Any) -> None:
        super().__init__(**shared)
        if self.scheduler_factory is not None:
            raise ValueError("lr_scheduler has no effect in federated averaging: leave it out")
        check_count("rounds", rounds, minimum=1)
        check_count("local_steps", local_steps, minimum=1)
        self.automatic_optimization = False
        self.rounds = rounds
        self.local_steps = local_steps
        self.rounds_done = 0
        self.draw_seed: int | None = None

    @property
    def clients(self) -> Shards:
        return datamodule_as(Shards, self.trainer, "federated averaging needs data.class_path: Clients")

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Returns a dummy optimizer, by whose steps Lightning counts rounds; first tries the clients'."""
        self.try_optimizer()
        return torch.optim.SGD(self.network.parameters(), lr=0.0)

    def logged_names(self) -> set[str]:
        losses = {f"train/loss_{client}" for client in range(len(self.clients.shards))}
        return super().logged_names() - {"train/loss"} | losses

    def on_train_start(self) -> None:
        """Ends at once if all rounds are done."""
        if self.draw_seed is None:
            self.draw_seed = torch.initial_seed()
        self.trainer.should_stop = self.trainer.should_stop or self.rounds_done >= self.rounds

    def training_step(self, batch: int, batch_idx: int) -> None:  # type: ignore[override]
        """Makes one round; `batch` is a step index."""
        if self.rounds_done >= self.rounds:
            return
        records = self.clients.shards
        trained = [self.trained_at(client, records) for client in range(len(records))]
        self.network.load_state_dict(weighted_mean(trained, records.starts.diff().tolist()))
        self.optimizers().step()  # type: ignore[union-attr]
        self.rounds_done += 1
        self.trainer.should_stop = self.trainer.should_stop or self.rounds_done >= self.rounds
        rank_zero_info(f"Round {self.rounds_done} of {self.rounds} done.")

    def trained_at(self, client: int, records: ShardedRecords) -> dict[str, torch.Tensor]:
        """State of a network after a client's `local_steps` steps from the common weights."""
        assert self.draw_seed is not None
        network = copy.deepcopy(self.network).train()
        optimizer = (self.optimizer_factory or partial(torch.optim.SGD, lr=0.01, momentum=0.9))(network.parameters())
        positions, size = records.positions(client), self.clients.batch_size
        order = shuffled_passes(
            len(positions),
            first=self.rounds_done * self.local_steps * size,
            count=self.local_steps * size,
            seed=self.draw_seed,
            teacher=client,
        )
        with Draws(self.draw_seed, client, self.device).seeded(self.rounds_done):
            for rows in (positions.start + order).split(size):
                images, labels = (values.to(self.device) for values in records.records.__getitems__(rows))
                optimizer.zero_grad()
                loss = self.criterion(network(images), labels)
                self.manual_backward(loss)
                optimizer.step()
        self.log(f"train/loss_{client}", loss.detach())
        return network.state_dict()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        checkpoint["federated"] = {"rounds_done": self.rounds_done, "draw_seed": self.draw_seed}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        self.rounds_done = int(checkpoint["federated"]["rounds_done"])
        self.draw_seed = checkpoint["federated"]["draw_seed"]


def weighted_mean(states: Sequence[Mapping[str, torch.Tensor]], weights: Sequence[float]) -> dict[str, torch.Tensor]:
    """Mean of weights and buffers, BatchNorm's running statistics among them; counts of batches are rounded."""
    total, mean = float(sum(weights)), {}
    for name, first in states[0].items():
        stacked = torch.stack([state[name].detach().double() for state in states])
        shares = torch.tensor([weight / total for weight in weights], dtype=torch.float64, device=stacked.device)
        value = torch.einsum("k,k...->...", shares, stacked)
        mean[name] = (value if first.is_floating_point() else value.round()).to(first.dtype)
    return mean
