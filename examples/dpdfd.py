"""A private teacher of handwritten digits, and a student by DPDFD that never sees one: `python examples/dpdfd.py`.

The teacher is asked about procedural images alone. What is printed is the record-level epsilon: of a teacher that was
trained without privacy it protects nobody. `DPSGDTeacher` trains one whose students it does protect.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lightning import Trainer, seed_everything

from datamodules import Digits, SyntheticSteps
from lightning_modules import DPDFD, Teacher
from lightning_modules.images.source import Images
from lightning_modules.teachers.config import TeacherConfig
from privacy import GradientAnnotator


def main(folder: Path, *, teacher_epochs: int, steps: int) -> DPDFD:
    """Trains a teacher, transcribes it, and returns the module that holds the student."""
    seed_everything(0)
    quiet = {"accelerator": "cpu", "logger": False, "enable_model_summary": False, "default_root_dir": folder}
    teacher = Teacher(num_classes=10, image_shape=(1, 8, 8))
    trainer = Trainer(max_epochs=teacher_epochs, enable_checkpointing=False, **quiet)
    trainer.fit(teacher, datamodule=Digits())
    trainer.save_checkpoint(folder / "teacher.ckpt")  # private: it stays here

    student = DPDFD(
        num_classes=10,
        image_shape=(1, 8, 8),
        batch_size=256,
        teacher=TeacherConfig(path=str(folder / "teacher.ckpt"), network="SmallCNN"),
        images=Images(source="prior"),
        annotator=GradientAnnotator(noise_multiplier=100.0, norm_bound=1e-3),
    )
    data = SyntheticSteps(dataset=Digits(), steps_per_epoch=steps, batch_size=256)
    trainer = Trainer(max_epochs=1, enable_checkpointing=False, **quiet)
    trainer.fit(student, datamodule=data)
    trainer.test(student, datamodule=data)
    print(student.guarantee().headline())
    print(f"The whole statement: {folder / 'public' / 'guarantee.md'}")
    return student


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/example"))
    parser.add_argument("--teacher-epochs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    main(options.folder, teacher_epochs=options.teacher_epochs, steps=options.steps)
