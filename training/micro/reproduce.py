"""The paper in miniature, from drawing the data to the results page.

    python -m lmms_eval_templates.training.micro.reproduce runs/micro

Run the same command again to go on after an interruption.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from lmms_eval_templates.demo.scenes import NUM_SCENES
from lmms_eval_templates.reports.figures import INSTALL, matplotlib_missing
from lmms_eval_templates.sets import TemplateError

from .data import write_mix
from .model import build
from .page import write_page
from .pretrain import STAGES, pretrain
from .results import digest, read_scores, write_results

NUM_RECORDS = 16_000
# Question templates of the ratios that are compared; the templated arm of the main comparison has `MAIN`.
NUM_TEMPLATES = (1, 10, 100, 1_000, 10_000)
MAIN = 1_000
COMMAND = "python -m lmms_eval_templates.training.micro.reproduce runs/micro"
CONFIG = resources.files("lmms_eval_templates.training") / "micro" / "micro.yaml"


@dataclass(frozen=True)
class Arm:
    """A model to tune.

    Attributes:
        num_templates: question templates in its data, 0 for the original data.
        seed: of the templates, the LoRA weights and the order of the data.
    """

    num_templates: int
    seed: int

    @property
    def name(self) -> str:
        data = f"templates_{self.num_templates}" if self.num_templates else "original"
        return f"{data}_seed_{self.seed}"


def arms(seeds: Sequence[int]) -> list[Arm]:
    """The main comparison first, then the other ratios."""
    others = [n for n in NUM_TEMPLATES if n != MAIN]
    return [Arm(n, seed) for seed in seeds for n in (0, MAIN)] + [Arm(n, seed) for seed in seeds for n in others]


class Reproduction:
    """Runs what is not there yet, each part in a place of its own below `folder`."""

    def __init__(self, folder: Path, device: str, jobs: int):
        self.folder, self.device, self.jobs = folder.resolve(), device, jobs
        folder.mkdir(parents=True, exist_ok=True)

    def run(self, chosen: Sequence[Arm]) -> list[dict[str, Any]]:
        """Data, base, and of each arm the tuning and the evaluation.

        Returns:
            What was measured, in the order of `chosen`.

        Raises:
            TemplateError: a command failed; what is finished stays.
        """
        self._once(self.folder / "mix.json", lambda: write_mix(self.folder, NUM_RECORDS, seed=0))
        base = self.folder / "base"
        self._once(base, lambda: pretrain(base, STAGES, seed=0, device=self.device))
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(self._arm, chosen))

    def _arm(self, arm: Arm) -> dict[str, Any]:
        mix, tuned = self.folder / "mix.json", self.folder / "tuned" / arm.name
        if arm.num_templates:
            original, mix = mix, self.folder / "mixes" / f"{arm.name}.json"
            mix.parent.mkdir(exist_ok=True)
            numbers = (f"--num-templates={arm.num_templates}", f"--seed={arm.seed}")
            self._command(mix, "lmms_eval_templates.cli", "augment", original, mix, *numbers)
        settings = {
            "model": self.folder / "base",
            "data": mix,
            "image_folder": self.folder / "images",
            "output": tuned,
            "seed": arm.seed,
            "device": "cpu" if self.device == "cpu" else "auto",
        }
        changes = [f"{key}={value}" for key, value in settings.items()]
        self._command(tuned / "adapter", "lmms_eval_templates.training.finetune", CONFIG, *changes)
        model = self.model(arm)
        model.parent.mkdir(exist_ok=True)
        self._command(model, "lmms_eval_templates.training.merge", tuned / "adapter", model)
        return {
            **asdict(arm),
            "ratio": arm.num_templates / NUM_RECORDS,
            "data_sha256": digest(mix),
            "scores": self._evaluate(arm, model),
        }

    def model(self, arm: Arm) -> Path:
        """Where an arm's merged model lies."""
        return self.folder / "models" / arm.name

    def export(self, seed: int) -> None:
        """Writes `weights/`: the two models of a seed in float16, with what made them."""
        import torch
        from transformers import AutoModelForImageTextToText, AutoProcessor

        made: dict[str, Any] = {"command": COMMAND, "seed": seed, "sha256": {}}
        for name, num_templates in (("original", 0), ("templated", MAIN)):
            source, target = self.model(Arm(num_templates, seed)), self.folder / "weights" / name
            AutoModelForImageTextToText.from_pretrained(source, dtype=torch.float16).save_pretrained(target)
            AutoProcessor.from_pretrained(source).save_pretrained(target)
            made["sha256"][name] = hashlib.sha256((target / "model.safetensors").read_bytes()).hexdigest()
        (self.folder / "weights" / "made.json").write_text(json.dumps(made, indent=1) + "\n", "utf-8")

    def _evaluate(self, arm: Arm, model: Path) -> dict[str, Any]:
        """Scores from the real lmms-eval, which exits with 0 whatever happens."""
        logs = self.folder / "logs" / arm.name
        partial = logs.with_name(logs.name + ".partial")
        arguments = f"pretrained={model},dtype=float32,device={self.device}"

        def evaluate() -> None:
            shutil.rmtree(partial, ignore_errors=True)
            self._run(
                partial,
                *("lmms_eval", "--model", "tm_hf", "--model_args", arguments, "--tasks", "demo_tm"),
                *("--log_samples", "--output_path", partial),
            )
            read_scores(partial)
            os.replace(partial, logs)

        self._once(logs, evaluate)
        return read_scores(logs)

    def _once(self, result: Path, action: Callable[[], object]) -> None:
        if result.exists():
            return
        begin = time.monotonic()
        action()
        seconds = time.monotonic() - begin
        print(f"{seconds:5.0f} s  {result.relative_to(self.folder)}", flush=True)
        with open(self.folder / "seconds.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps({"part": str(result.relative_to(self.folder)), "seconds": round(seconds, 1)}) + "\n")

    def _command(self, result: Path, module: str, *arguments: object) -> None:
        """Runs a Python module, unless its result is there."""
        self._once(result, lambda: self._run(result, module, *arguments))

    def _run(self, result: Path, module: str, *arguments: object) -> None:
        """What the module prints goes to a file beside its result."""
        printed = result.with_name(result.name + ".txt")
        printed.parent.mkdir(parents=True, exist_ok=True)
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TM_")}
        environment = {**inherited, "OMP_NUM_THREADS": threads, "TM_ITEMS": "0", "TM_EMBEDDER": "none"}
        command = [sys.executable, "-m", module, *map(str, arguments)]
        with open(printed, "w", encoding="utf-8") as file:
            status = subprocess.run(command, stdout=file, stderr=file, env=environment, cwd=self.folder).returncode
        if status or not result.exists():
            raise TemplateError(f"{module} failed (exit status {status}); {printed} says why")


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    import torch

    parser = argparse.ArgumentParser(
        prog="python -m lmms_eval_templates.training.micro.reproduce",
        description="Train the micro-LLaVA on original and on templated data, evaluate, and write results.json and "
        "the page. Run the same command again to go on where it stopped.",
        epilog="example: python -m lmms_eval_templates.training.micro.reproduce runs/micro --seeds 0",
    )
    parser.add_argument("folder", type=Path, help="where everything is written")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds (default: 0 1 2)")
    parser.add_argument("--no-ratios", action="store_true", help="leave the comparison of ratios out")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="models at once (default: %(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parsed = parser.parse_args(arguments)
    chosen = [arm for arm in arms(parsed.seeds) if not parsed.no_ratios or arm.num_templates in (0, MAIN)]
    if not parsed.no_ratios and matplotlib_missing():
        print(f"reproduce: error: {INSTALL}", file=sys.stderr)
        return 2
    reproduction = Reproduction(parsed.folder, parsed.device, parsed.jobs)
    try:
        models = reproduction.run(chosen)
    except TemplateError as error:
        print(f"reproduce: error: {error}", file=sys.stderr)
        return 2
    folder = reproduction.folder
    seconds = [json.loads(line) for line in (folder / "seconds.jsonl").read_text("utf-8").splitlines()]
    recipe = {
        "lessons": sum(stage.lessons for stage in STAGES),
        "records": NUM_RECORDS,
        "main": MAIN,
        "items": NUM_SCENES,
        "parameters": build(seed=0)[0].num_parameters(),
        "device": parsed.device,
        "jobs": parsed.jobs,
    }
    write_results(folder / "results.json", models, {**recipe, "seconds": seconds})
    write_page(folder / "results.json", folder / "micro.md")
    reproduction.export(parsed.seeds[0])
    print(f"results: {folder / 'results.json'}\npage: {folder / 'micro.md'}\nweights: {folder / 'weights'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
