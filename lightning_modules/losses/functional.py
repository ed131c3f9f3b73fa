"""Losses of the papers: of distillation, and of a generator.

They work on logits and stay in log space: none takes the `log` of a softmax, so values and gradients are finite for
logits of any finite size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from lightning_modules.networks.classifiers import logits_and_features
from privacy.checks import check_choice, check_number


def decoupled_kd(student_logits: Tensor, teacher_logits: Tensor, *, beta: float = 8.0) -> Tensor:
    """Decoupled knowledge distillation (Zhao et al. 2022), the loss L_T of DPDFD and DPSD, for each sample: (B,).

    With t the teacher's class, p the teacher's and q the student's probabilities, and p̂, q̂ the same over the classes
    other than t:

        TCKD = KL([p_t, 1 - p_t] || [q_t, 1 - q_t])        NCKD = KL(p̂ || q̂)        loss = TCKD + beta NCKD

    With two classes there is one other class, NCKD is exactly 0, and the loss is exactly TCKD.

    Samples are not averaged: DPDFD normalises the gradient of every sample, and those of a batch mean are so small that
    its constant e swamps them.

    Args:
        student_logits: (B, c).
        teacher_logits: (B, c); not detached here.
        beta: Weight of the other classes' term.
    """
    rows, classes = student_logits.shape
    target = teacher_logits.argmax(1)
    # By positions and not by a mask, whose number of entries would synchronise a GPU.
    before = torch.arange(classes - 1, device=target.device).expand(rows, -1)
    others = before + (before >= target[:, None])

    def split(logits: Tensor) -> tuple[Tensor, Tensor]:
        # Dropping the target is the exact form of the usual `log_softmax(logits - 1000 * onehot)`, which fails from
        # logits of 1000 on.
        rest = logits.gather(1, others)
        margin = logits.gather(1, target[:, None])[:, 0] - torch.logsumexp(rest, 1)
        return margin, functional.log_softmax(rest, 1)

    student_margin, student_rest = split(student_logits)
    teacher_margin, teacher_rest = split(teacher_logits)
    tckd = _binary_divergence(teacher_margin, student_margin)
    nckd = (teacher_rest.exp() * (teacher_rest - student_rest)).sum(1)
    return tckd + beta * nckd


def decoupled_kd_as_printed(student_logits: Tensor, teacher_logits: Tensor, *, beta: float = 8.0) -> Tensor:
    """DPSD's Eq. 2 to the letter, for each sample: (B,). Its second term is not that of Zhao et al., which it cites.

    With r the teacher's class, p the teacher's and q the student's probabilities:

        loss = KL([p_r, 1 - p_r] || [q_r, 1 - q_r])
               + beta sum over j ≠ r of p_j / (1 - p_j) · log(p_j (1 - q_j) / (q_j (1 - p_j)))

    Zhao et al. divide by 1 - p_r, the same for all j, which makes a distribution of the other classes (`decoupled_kd`).
    The odds p_j / (1 - p_j) are not one: the second term is not a divergence, may be negative, has no minimum at q = p,
    and keeps falling as the other classes gain. (The first term prints `1 - p_{t,i}`, without the class, which is
    read as 1 - p_r.)

    Args:
        student_logits: (B, c).
        teacher_logits: (B, c); not detached here.
        beta: λ, the weight of the second term.
    """
    target = teacher_logits.argmax(1, keepdim=True)
    student, teacher = _log_odds(student_logits), _log_odds(teacher_logits)
    first = _binary_divergence(teacher.gather(1, target)[:, 0], student.gather(1, target)[:, 0])
    # The other classes hold at most half each, so that no odds exceed 1.
    odds = teacher.scatter(1, target, -torch.inf).exp()
    second = (odds * (teacher - student)).sum(1)
    return first + beta * second


def _log_odds(logits: Tensor) -> Tensor:
    """log(p_j / (1 - p_j)) of each class, shape (B, c): its logit less the logsumexp of the others."""
    first, top = logits.max(1, keepdim=True)
    # Over all but the likeliest class exactly; 1 - p cancels only where p is above a half, which no other class is.
    without_top = torch.logsumexp(logits.scatter(1, top, -torch.inf), 1, keepdim=True)
    logs = functional.log_softmax(logits, 1).scatter(1, top, -1.0)
    return (logs - torch.log1p(-logs.exp())).scatter(1, top, first - without_top)


def _binary_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL([p, 1 - p] || [q, 1 - q]) of log-odds, both of whose logs are log-sigmoids."""
    return torch.sigmoid(teacher) * (functional.logsigmoid(teacher) - functional.logsigmoid(student)) + torch.sigmoid(
        -teacher
    ) * (functional.logsigmoid(-teacher) - functional.logsigmoid(-student))


def class_weights(answers: Tensor, *, power: float) -> Tensor:
    """Weights n_y^-power, (N,) float32, for samples of which n_y have the same likeliest class y.

    `answers` are logits or probabilities (N, c). `power` 0 weighs all samples alike, 1 all present classes.
    """
    classes = answers.argmax(1)
    # Not bincount, which `trainer.deterministic` forbids on a GPU, nor one_hot, which synchronises.
    counts = (classes[:, None] == torch.arange(answers.shape[1], device=classes.device)).sum(0)
    return counts[classes].float().pow(-power)


def balanced_mean(losses: Tensor, answers: Tensor, *, power: float) -> Tensor:
    """Mean of samples' losses (B,), weighted by `class_weights` of answers (B, c)."""
    if not power:
        return losses.mean()
    weights = class_weights(answers, power=power)
    return (losses * (weights / weights.mean())).mean()


def one_hot_loss(logits: Tensor) -> Tensor:
    """Mean cross-entropy of logits (B, c) to their likeliest classes: the first term of L_G (DPDFD Eq. 5, DGD Eq. 2).

    It is small if the discriminator is certain of every image.
    """
    return functional.cross_entropy(logits, logits.argmax(1))


def class_balance(logits: Tensor, *, of: Literal["batch", "image"] = "batch") -> Tensor:
    """The second term of L_G (DPDFD Eq. 5, DGD Eq. 2): negative entropy of the mean prediction of logits (B, c).

    A scalar, sum_j p̄_j log p̄_j, between -log c (all classes equally often) and 0 (only one class). As printed it is of
    each `image`, on average, which contradicts `one_hot_loss`. In decimal logarithms, as DAFL's published code has it,
    it is 0.434 times as large.
    """
    logs = functional.log_softmax(logits, 1)
    if of == "image":
        return (logs.exp() * logs).sum(1).mean()
    log_mean = torch.logsumexp(logs - torch.tensor(float(len(logits))).log(), 0)
    return (log_mean.exp() * log_mean).sum()


def activation(features: Tensor, *, norm: Literal["l1", "l1_sum", "l2"] = "l1") -> Tensor:
    """Size of features (B, F), large for real images: **subtracted** as the third term of L_G (DPDFD Eq. 5, DGD Eq. 2).

    A scalar: for `l1` the mean absolute value (independent of F), for `l1_sum` DGD's and for `l2` DPDFD's mean norm of
    a sample. The features are the input of the discriminator's last layer.
    """
    if norm == "l1":
        return features.abs().mean()
    rows: Tensor = torch.linalg.vector_norm(features, ord=1 if norm == "l1_sum" else 2, dim=1)
    return rows.mean()


def output_gradients(outputs: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Gradients of each sample's own loss w.r.t. the student's outputs (DPDFD Algorithm 1 lines 5, 6; DPSD Eq. 3).

    `loss` maps outputs (B, c) to losses (B,), each depending only on its own sample; the gradients are (B, c), float32,
    detached. Those of a batch-mean loss would be so small that the stability constant of their normalisation swamps
    them.
    """
    with torch.autocast(outputs.device.type, enabled=False), torch.enable_grad():
        free = outputs.detach().float().requires_grad_()
        (gradients,) = torch.autograd.grad(loss(free).sum(), free)
    return gradients.detach()


def kd(student_logits: Tensor, teacher_logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Classic knowledge distillation (Hinton et al. 2015), T² KL(teacher || student) of logits (B, c), per sample (B,).

    At temperature T. The teacher's logits are not detached here. DPSD's Fig. 6 compares `decoupled_kd` with it.
    """
    student = functional.log_softmax(student_logits / temperature, 1)
    teacher = functional.log_softmax(teacher_logits / temperature, 1)
    return temperature**2 * (teacher.exp() * (teacher - student)).sum(1)


def logit_distance(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Mean squared distance of logits (B, c) per sample, (B,), up to a constant, which does not affect a softmax.

    Far from the private images a teacher is often certain, but its logits remain informative (Ba and Caruana 2014).
    """
    difference = student_logits - teacher_logits
    return (difference - difference.mean(dim=1, keepdim=True)).square().mean(dim=1)


def informativeness(logits: Tensor) -> float:
    """Mutual information between images and the teacher's classes, as a fraction of its maximum: from 0 to 1.

    It is (H(mean of p) - mean of H(p)) / log c for answers p_i = softmax(logits_i), logits (N, c) with N >= 1 and
    c >= 2: the logarithm of the *Inception score* (Salimans et al. 2016), with the teacher as the Inception network,
    relative to its largest value. It is high if the teacher is certain about each image and predicts all classes. On
    unfamiliar images it is uncertain, or predicts the same class for all.

    It is 0.97 or more on a data set's own test images if classes are balanced and the teacher is certain. Teachers with
    small logits have lower values on all images: use it to compare images for one teacher, not teachers. A large value
    is necessary but not sufficient: some teachers are also certain about textures at full contrast.
    """
    logs = functional.log_softmax(logits.double(), dim=1)
    probabilities = logs.exp()
    mean = probabilities.mean(dim=0)
    told = torch.special.entr(mean).sum() - torch.special.entr(probabilities).sum(dim=1).mean()
    return min(1.0, max(0.0, float(told) / math.log(logits.shape[1])))


@dataclass(frozen=True, kw_only=True)
class GeneratorLoss:
    """Terms of the generator's loss (DPDFD Eq. 5, DPSD Eq. 8, LabelDP and DGD Eq. 2); a weight of 0 drops a term.

    Larger activations mean more realistic images, so their term is subtracted.

    Attributes:
        one_hot_weight: Weight of the cross-entropy to the discriminator's own decision.
        balance_weight: α, weight of the negative entropy of the mean prediction.
        balance_of: `batch`, or `image`: each image's own prediction, as printed.
        activation_weight: β, weight of the size of the features; below 0 the size is added, as printed.
        activation_norm: `l1` for the mean absolute feature; or the mean norm of an image's features, `l1_sum` as DGD
            has it, or `l2`.
        student_loss_weight: Weight of the student's loss on the released targets (1 as printed).
    """

    setting: ClassVar[str] = "generator_loss"

    one_hot_weight: float = 1.0
    balance_weight: float = 5.0
    activation_weight: float = 0.1
    activation_norm: Literal["l1", "l1_sum", "l2"] = "l1"
    balance_of: Literal["batch", "image"] = "batch"
    student_loss_weight: float = 0.0

    def __post_init__(self) -> None:
        for name in ("one_hot_weight", "balance_weight", "activation_weight", "student_loss_weight"):
            check_number(f"{self.setting}.{name}", getattr(self, name))
        check_choice(f"{self.setting}.activation_norm", self.activation_norm, ("l1", "l1_sum", "l2"))
        check_choice(f"{self.setting}.balance_of", self.balance_of, ("batch", "image"))

    def __call__(
        self, discriminator: nn.Module, images: Tensor, student: nn.Module | None = None, targets: Tensor | None = None
    ) -> Tensor:
        """Weighted sum of the terms on images (n, C, H, W), with their graph; see `logits_and_features`.

        The student's loss on fixed `targets` (n, c) is one of them.
        """
        if self.activation_weight:
            logits, features = logits_and_features(discriminator, images)
        else:
            logits = features = discriminator(images)
        loss = self.of(logits.float(), features.float())
        if self.student_loss_weight and student is not None and targets is not None and len(targets):
            outputs = logits if discriminator is student else student(images)
            loss = loss + self.student_loss_weight * functional.cross_entropy(outputs.float(), targets.detach())
        return loss

    def of(self, logits: Tensor, features: Tensor) -> Tensor:
        """The weighted sum of the terms of logits (n, c) and features (n, F)."""
        loss = self.one_hot_weight * one_hot_loss(logits)
        loss = loss + self.balance_weight * class_balance(logits, of=self.balance_of)
        if self.activation_weight:
            loss = loss - self.activation_weight * activation(features, norm=self.activation_norm)
        return loss


@contextmanager
def distance_to_statistics(model: nn.Module) -> Iterator[Callable[[], Tensor]]:
    """Measures how far the inputs of a network's BatchNorm layers are from the running statistics.

    The distance is ‖mean - running_mean‖₂ + ‖var - running_var‖₂ over the channels of a layer's input, summed over
    layers. Run the network within the block, then call the function that the block is given: it returns the sum, a
    differentiable scalar. Forward hooks record the inputs and are removed at the end of the block.

    Args:
        model: a classifier with BatchNorm. In eval mode its layers normalise with running statistics, in training mode
            with the batch's.

    Raises:
        ValueError: No BatchNorm layer of the model keeps statistics.
    """
    layers = [part for part in model.modules() if isinstance(part, _BatchNorm) and part.running_mean is not None]
    if not layers:
        raise ValueError(f"model: {type(model).__name__} has no BatchNorm layer to compare: set statistics_weight to 0")
    distances: list[Tensor] = []

    def measure(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        distances.append(_distance(layer, inputs[0].float()))

    handles = [layer.register_forward_pre_hook(measure) for layer in layers]
    try:
        yield lambda: torch.stack(distances).sum()
    finally:
        for handle in handles:
            handle.remove()


def logits_and_statistics(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Runs a classifier on images (N, C, H, W) once and returns its logits (N, c) and `distance_to_statistics`.

    Both are differentiable.

    Raises:
        ValueError: No BatchNorm layer of the model keeps statistics.
    """
    with distance_to_statistics(model) as distance:
        logits: Tensor = model(images)
    return logits, distance()


def _distance(layer: Any, inputs: Tensor) -> Tensor:
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    # Running variances average the unbiased estimate, which a single value per channel does not have.
    unbiased = int(inputs.numel() > inputs.shape[1])
    variance, mean = torch.var_mean(inputs, dim=axes, correction=unbiased)
    of_mean: Tensor = torch.linalg.vector_norm(mean - layer.running_mean)
    of_variance: Tensor = torch.linalg.vector_norm(variance - layer.running_var)
    return of_mean + of_variance
