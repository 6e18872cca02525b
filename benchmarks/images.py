"""Whether decoding is the limit: ViT-B/16 learning from JPEG files of 512 pixels, and from tensors that are ready.

    python benchmarks/images.py --workers 14 --out benchmarks/results
    python benchmarks/images.py --tiny

Side by side in one process, one after the other: ours from tensors, ours from JPEG (decoded, cropped and flipped in
loader processes), the HF Trainer from tensors and from JPEG (decoded and scaled in its dataloader's processes). Images
are made: smooth colours with grain, of the size that photographs have as JPEG. `--tiny` takes a small model and few
images, to see that all of it runs on a CPU. Needs torch, transformers, accelerate, pyarrow, pillow and this tree.
"""

import argparse
import io
import json
import os
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import architectures
import numpy as np
import pyarrow as pa
import torch
from PIL import Image

from skytune.config import AugmentConfig, Precision
from skytune.data.batches import Padding, TokenTable
from skytune.data.pixels import Augmentation, Pixels
from skytune.training.select_step import open_steps

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def photograph(seed: int, pixels: int) -> bytes:
    """Return a JPEG file's content."""
    random = np.random.default_rng(seed)
    smooth = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((pixels, pixels), 3)
    grain = random.normal(0, 12, (pixels, pixels, 1))
    into = io.BytesIO()
    Image.fromarray((np.asarray(smooth) + grain).clip(0, 255).astype(np.uint8)).save(into, "JPEG", quality=90)
    return into.getvalue()


def jpeg_table(rows: int, pixels: int, held: int = 256) -> TokenTable:
    """Return a train split of JPEG files, a few hundred again and again, with crop and flip."""
    from transformers import ViTImageProcessorPil

    contents = [photograph(seed, pixels) for seed in range(min(held, rows))]
    column = pa.array([contents[row % len(contents)] for row in range(rows)], pa.large_binary())
    found = TokenTable(
        pa.table({"image": column, "labels": np.arange(rows) % 2}), Padding(pixels=Pixels(ViTImageProcessorPil()))
    )
    assert found.images is not None
    found.images.augmentation = Augmentation(AugmentConfig(crop=0.25, flip=0.5), 0, 2)
    return found


class Files(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The same images for the HF Trainer: each decoded and scaled by itself, as its examples do, with the same crop."""

    def __init__(self, table: TokenTable) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {name: tensor[0] for name, tensor in self.table.batch(np.array([row]), epoch=0).items()}


def hf_trainer(model: Any, data: Any, batch: int, steps: int, warm: int, workers: int) -> float:
    """Return seconds a step of the HF Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):
        started = seconds = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == warm:
                self.started = architectures.synchronized()

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.seconds = architectures.synchronized() - self.started

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=batch,
            max_steps=steps,
            bf16=torch.cuda.is_available(),
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_num_workers=workers,
        )
        Trainer(model=model, args=settings, train_dataset=data, callbacks=[clock]).train()
    return clock.seconds / (steps - warm)


class Ready(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Tensors for the HF Trainer, one a row."""

    def __init__(self, table: architectures.Images) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        return {name: tensor[0] for name, tensor in self.table.batch(np.array([row])).items()}


def main() -> int:
    """Take the times, print them, write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 1) - 2), help="loader processes")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pixels", type=int, default=512, help="of the JPEG files' sides")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    batch, options = (4, TINY) if given.tiny else (given.batch, {})
    warm, count = (2, 4) if given.tiny else (24, 96)
    rows = batch * 8 * (warm + count)
    precision = Precision.bf16 if torch.cuda.is_available() else Precision.fp32
    ready, files = architectures.Images(rows, 64), jpeg_table(rows, given.pixels)
    rates: dict[str, float] = {}
    for name, table, workers in (("tensors", ready, 0), ("JPEG", files, given.workers)):
        model = architectures.model_of("vit-base", **options)
        loader: Any = {"loader": {"num_workers": workers}}
        steps = open_steps(*architectures.parts_of(model, table, batch, precision, **loader))
        rates[f"ours, {name}"] = batch / architectures.timed(steps, warm, count)
        steps.close()
        print(
            f"ours, {name}: {rates[f'ours, {name}']:.0f} images/s ({steps.run.report.get('steps_taken')})", flush=True
        )
    for name, data, workers in (("tensors", Ready(ready), given.workers), ("JPEG", Files(files), given.workers)):
        model = architectures.model_of("vit-base", **options)
        seconds = hf_trainer(model, data, batch, warm + count, warm, workers)
        rates[f"HF Trainer, {name}"] = batch / seconds
        print(f"HF Trainer, {name}: {batch / seconds:.0f} images/s", flush=True)
    share = rates["ours, JPEG"] / rates["ours, tensors"]
    print(
        f"from JPEG at {share:.0%} of tensors, {rates['ours, JPEG'] / rates['HF Trainer, JPEG']:.2f} times HF Trainer"
    )
    if given.out:
        head = {
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
            "torch": torch.__version__,
            "date": date.today().isoformat(),
            "workers": given.workers,
            "command": "python benchmarks/images.py " + " ".join(sys.argv[1:]),
        }
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "images.json").write_text(json.dumps({**head, "images_per_s": rates}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
