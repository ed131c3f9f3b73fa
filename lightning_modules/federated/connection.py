"""How the server reaches its clients. The algorithm knows no more of a transport than this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_modules.federated.messages import Absence, Introduction, Question, Terms

__all__ = ["ClientConnection", "FederationError"]


class FederationError(RuntimeError):
    """Clients with which a federation cannot begin or continue."""


class ClientConnection(ABC):
    """A way to the clients: in the same process (`LocalClients`), or on other machines.

    What a client does not answer in time, or answers in a way that cannot be used, is an `Absence` and no error: the
    round continues with the others.
    """

    @abstractmethod
    def introductions(self, *, num_classes: int, image_shape: tuple[int, int, int]) -> list[Introduction]:
        """Reaches all clients, which say who they are; names differ from each other.

        Args:
            num_classes: c that their teachers must have.
            image_shape: (C, H, W) that their teachers must take.

        Raises:
            FederationError: A client is missing.
            TeacherError: A client's teacher is of no use here.
        """

    @abstractmethod
    def begin(self, terms: Terms, *, folder: Path | None) -> Mapping[str, Absence]:
        """Sends all clients the terms of a run.

        Args:
            terms: What.
            folder: Where clients in the same process write their guarantees; None: nowhere.

        Returns:
            Clients that do not take part, by name.
        """

    @abstractmethod
    def ask(self, question: Question) -> Mapping[str, torch.Tensor | Absence]:
        """One round: what each client answers, by name, on the CPU.

        Gradients of shape (B, c), float32, or classes of shape (B,), int64.
        """

    @abstractmethod
    def end(self) -> None:
        """Lets clients settle their ledgers and write what left them. It may be called more than once."""
