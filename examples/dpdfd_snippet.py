"""DPDFD by the function that one of its authors published, to see what such a student learns from. It is not private.

From the root of the repository, with a teacher in teachers/ (see docs/dpdfd.md):

    PYTHONPATH=examples LightningCLI fit --config sweeps/dpdfd_mnist.yaml --model dpdfd_snippet.SnippetDPDFD \
        --model.annotator.budget.target_epsilon null --model.images.source generator --model.images.reset_every 25 \
        --model.images.generator '{name: DAFLGenerator, arguments: {width: 8}}' # and --model.keep false
"""

from typing import Any

import torch
from torch.nn.functional import kl_div

from lightning_modules import DPDFD
from lightning_modules.losses.functional import kd

STABILITY = 1e-3


class SnippetDPDFD(DPDFD):
    """`utils.py` of <https://github.com/llbbcc/DPDFD> in the place of Algorithm 1's lines 4 to 12.

    The gradient of the batch's mean loss is divided by its largest entry, and each row replaced by the mean over the
    batch with noise of standard deviation σ/B, so that targets tell no label of any image. On the way the loss, without
    noise, is propagated to the student's weights. Whether that gradient is still there when the targets' is added
    depends on where the caller zeroes gradients, which the repository does not show.

    Args:
        keep: That gradient is still there.
        **shared: See `DPDFD`. Of `annotator` only the noise multiplier counts: what is not private has no budget.
    """

    unused = ("student.balance", "student.replay")

    def __init__(self, *, keep: bool = True, **shared: Any) -> None:
        super().__init__(**shared)
        self.keep = keep

    def update_student(self, images: torch.Tensor) -> torch.Tensor:
        reason = "the student follows the teacher's gradients without noise"
        teacher = self.teacher.unprotected(self.annotator, reason=reason).to(images.device)
        optimizer, images = self.optimizer("student"), images.detach()
        optimizer.zero_grad()
        outputs = self.student(images)
        (gradient,) = torch.autograd.grad(
            loss := kd(outputs, teacher(images).detach()).mean(), outputs, retain_graph=True
        )
        self.manual_backward(loss, retain_graph=True)
        mean = (gradient / (gradient.max().abs() + STABILITY)).mean(dim=0)
        noise = self.annotator.noise_multiplier / self.batch_size * torch.randn_like(outputs)
        targets = (outputs - mean - noise).softmax(dim=1)
        if not self.keep:
            optimizer.zero_grad()
        self.manual_backward(kl_div(outputs.log_softmax(dim=1), targets, reduction="batchmean"))
        optimizer.step()
        return targets.detach()
