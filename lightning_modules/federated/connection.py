"""How the server reaches its clients. The algorithm knows no more of a transport than this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import torch

from lightning_modules.federated.messages import Absence, Introduction, Question, Terms

__all__ = ["ClientConnection", "FederationError", "checked_answer"]


class FederationError(RuntimeError):
    """Clients that a federation cannot begin or go on with."""


class ClientConnection(ABC):
    """A way to the clients: in the same process (`LocalClients`), or on other machines.

    What a client does not answer in time, or answers in a way that cannot be used, is an `Absence` and no error: the
    round goes on with the others.
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
        """Tells all clients what a run is going to ask of them.

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


def checked_answer(answer: torch.Tensor, *, question: Question) -> torch.Tensor | Absence:
    """An answer that the server may use, or why it is left out.

    That a client sends what is not finite says something of its machine and nothing of its records: what a teacher
    gives that is not finite becomes zeros, or class 0, before it leaves the client.

    Args:
        answer: As it came.
        question: What was asked.
    """
    gradients = question.candidates is None
    wanted = tuple(question.outputs.shape) if gradients else (len(question.outputs),)
    kind = torch.float32 if gradients else torch.int64
    if tuple(answer.shape) != wanted:
        return Absence(f"its answer has the shape {tuple(answer.shape)} in place of {wanted}")
    if answer.dtype != kind:
        return Absence(f"its answer is of {answer.dtype} in place of {kind}")
    if not bool(torch.isfinite(answer).all()):
        return Absence("its answer is not finite")
    if question.candidates is not None:
        inside = (answer >= 0) & (answer < question.outputs.shape[1])
        chosen = answer.clamp(0, question.outputs.shape[1] - 1)
        if not bool((inside & question.candidates.cpu().gather(1, chosen[:, None])[:, 0]).all()):
            return Absence("its answer holds a class that is no candidate")
    return answer
