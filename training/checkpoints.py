"""Checkpoints that are known to be whole, and stopping on a signal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import distributed
from transformers import TrainerCallback

_MARK = "complete.json"  # name and size of every file; written last
_ONE_SIGNAL = 5.0  # seconds in which signals count as one: a terminal and torchrun both pass on Ctrl-C


def wait_for_all() -> None:
    """Returns once every rank has come here."""
    if distributed.is_initialized():
        distributed.barrier()


class MarkComplete(TrainerCallback):
    """Marks a checkpoint as complete once every rank has written its part."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        wait_for_all()
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero:
            sizes = {str(p.relative_to(folder)): p.stat().st_size for p in sorted(folder.rglob("*")) if p.is_file()}
            sizes.pop(_MARK, None)
            partial = folder / (_MARK + ".partial")
            partial.write_text(json.dumps(sizes, indent=1), "utf-8")
            os.replace(partial, folder / _MARK)
        wait_for_all()


def newest_checkpoint(output: Path, remove: bool) -> Path | None:
    """The last complete checkpoint in a folder; warns of each newer, half-written one that it passes over.

    Args:
        output: of the run.
        remove: whether to delete those, which would push good ones out of the number that is kept. For one rank to do.
    """
    numbered = [p for p in output.glob("checkpoint-*") if p.name.removeprefix("checkpoint-").isdigit()]
    for folder in sorted(numbered, key=lambda p: -int(p.name.removeprefix("checkpoint-"))):
        if fault := _fault(folder):
            if remove:
                warnings.warn(f"passing over {folder}, and removing it: {fault}", stacklevel=2)
                shutil.rmtree(folder)
        else:
            return folder
    return None


def _fault(folder: Path) -> str | None:
    try:
        sizes = json.loads((folder / _MARK).read_text("utf-8"))
    except (OSError, ValueError):
        return "it was not written to the end"
    for name, size in sizes.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            return f"{name} is not the {size:,} bytes that were written"
    return None


class StopOnSignal(TrainerCallback):
    """Ctrl-C, or SIGTERM from a scheduler: finish the step, write a checkpoint, stop, on all ranks together.

    A second signal stops at once.

    Attributes:
        stopped: whether that happened.
    """

    def __init__(self) -> None:
        self.stopped, self._asked, self._when = False, False, 0.0
        self._previous = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if not self._asked:
            self._asked, self._when = True, time.monotonic()
            print("stopping after this step; a checkpoint is written first", flush=True)
        elif time.monotonic() - self._when > _ONE_SIGNAL:
            raise KeyboardInterrupt

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        asked = torch.tensor(int(self._asked), device=args.device)
        if distributed.is_initialized():
            distributed.all_reduce(asked, op=distributed.ReduceOp.MAX)
        if asked.item():
            self.stopped = state.global_step < state.max_steps
            control.should_save = control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
