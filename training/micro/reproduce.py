"""The paper in miniature, from drawing the data to the results page.

    python -m lmms_eval_templates.training.micro.reproduce runs/micro

Run the same command again to go on after an interruption.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lmms_eval_templates.demo.scenes import NUM_SCENES
from lmms_eval_templates.sets import TemplateError

from .data import write_mix
from .model import build
from .page import write_page
from .pretrain import STAGES, pretrain
from .results import digest, read_scores, write_results

PROGRAM = "python -m lmms_eval_templates.training.micro.reproduce"
NUM_RECORDS = 16_000
NUM_ITEMS = 0  # scenes of the benchmark to ask about: all
# Question templates of the ratios that are compared; the templated arm of the main comparison has `MAIN`.
NUM_TEMPLATES = (1, 10, 100, 1_000, 10_000)
MAIN = 1_000
CONFIG = resources.files("lmms_eval_templates.training") / "micro" / "micro.yaml"
_GPU_JOBS = 6  # one seed's models


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


def _code() -> str:
    """Hash of the package's code and data and of the size of the run: what may change a result."""
    packages = [Path(str(resources.files(f"lmms_eval_templates{part}"))) for part in ("", ".training", ".tasks")]
    found = {path for package in packages for kind in ("py", "yaml", "json") for path in package.rglob(f"*.{kind}")}
    results = {"results.json", "made.json"}  # written from a run
    contents = sorted(path.read_bytes() for path in found if path.name not in results)
    return hashlib.sha256(b"".join([*contents, f"{NUM_RECORDS} {NUM_ITEMS} {STAGES}".encode()])).hexdigest()


@contextmanager
def own(folder: Path, device: str) -> Iterator[int]:
    """Makes `folder` and locks it.

    Yields:
        The lock's file descriptor. Children that inherit it keep others out even when they outlive this process.

    Raises:
        TemplateError: another process works in `folder`, or what lies there was made by other code or elsewhere.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TemplateError(f"another reproduction is at work in {folder}; wait for it or end it") from error
        recipe, known = folder / "recipe.txt", f"{device} {_code()}"
        if not recipe.exists() and not (folder / "mix.json").exists():
            partial = folder / "recipe.partial"
            partial.write_text(known, "utf-8")
            os.replace(partial, recipe)
        if not recipe.exists() or recipe.read_text("utf-8") != known:
            raise TemplateError(f"{folder} was made by another version or on another device; name a new folder")
        yield lock
    finally:
        os.close(lock)


class Reproduction:
    """Runs what is not there yet, each part in a place of its own below `folder`.

    Args:
        folder: exists.
        device: "cpu" or "cuda".
        jobs: arms that are tuned and evaluated at once.
        lock: file descriptor that keeps other processes out of `folder`; what is started here holds it too.
    """

    def __init__(self, folder: Path, device: str, jobs: int, lock: int):
        self.folder, self.device, self.jobs, self.lock = folder.resolve(), device, jobs, lock

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

    def export(self, seed: int, command: str) -> None:
        """Writes `weights/`: the two models of a seed in float16, with what made them."""
        import torch
        from transformers import AutoModelForImageTextToText, AutoProcessor

        weights = self.folder / "weights"
        partial = weights.with_name("weights.partial")
        shutil.rmtree(partial, ignore_errors=True)
        made: dict[str, Any] = {"command": command, "seed": seed, "sha256": {}}
        for name, num_templates in (("original", 0), ("templated", MAIN)):
            source, target = self.model(Arm(num_templates, seed)), partial / name
            AutoModelForImageTextToText.from_pretrained(source, dtype=torch.float16).save_pretrained(target)
            AutoProcessor.from_pretrained(source).save_pretrained(target)
            made["sha256"][name] = hashlib.sha256((target / "model.safetensors").read_bytes()).hexdigest()
        (partial / "made.json").write_text(json.dumps(made, indent=1) + "\n", "utf-8")
        shutil.rmtree(weights, ignore_errors=True)
        os.replace(partial, weights)

    def seconds(self, chosen: Sequence[Arm]) -> dict[str, float]:
        """What each part of `chosen` took, all tries together."""
        names = {arm.name for arm in chosen}
        sums: dict[str, float] = {}
        for line in (self.folder / "seconds.jsonl").read_text("utf-8").splitlines():
            part, seconds = json.loads(line).values()
            arm = next((name for name in part.replace(".", "/").split("/") if "_seed_" in name), None)
            if arm is None or arm in names:
                sums[part] = round(sums.get(part, 0.0) + seconds, 1)
        return sums

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
        part, begin = str(result.relative_to(self.folder)), time.monotonic()
        print(f"begins   {part}", flush=True)
        try:
            action()
        finally:
            seconds = time.monotonic() - begin
            with open(self.folder / "seconds.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps({"part": part, "seconds": round(seconds, 1)}) + "\n")
        print(f"{seconds:5.0f} s  {part}", flush=True)

    def _command(self, result: Path, module: str, *arguments: object) -> None:
        """Runs a Python module, unless its result is there."""
        self._once(result, lambda: self._run(result, module, *arguments))

    def _run(self, result: Path, module: str, *arguments: object) -> None:
        """What the module prints goes to a file beside its result."""
        printed = result.with_name(result.name + ".txt")
        printed.parent.mkdir(parents=True, exist_ok=True)
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TM_")}
        settings = {"OMP_NUM_THREADS": threads, "TM_ITEMS": str(NUM_ITEMS), "TM_EMBEDDER": "none"}
        environment = {"CUDA_VISIBLE_DEVICES": "0", **inherited, **settings}  # one GPU unless the caller says which
        command = [sys.executable, "-m", module, *map(str, arguments)]
        with open(printed, "w", encoding="utf-8") as file:
            status = subprocess.run(
                command, stdout=file, stderr=file, env=environment, cwd=self.folder, pass_fds=[self.lock]
            ).returncode
        if status or not result.exists():
            raise TemplateError(f"{module} failed (exit status {status}); {printed} says why")


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    import torch

    arguments = sys.argv[1:] if arguments is None else arguments
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Train the micro-LLaVA on original and on templated data, evaluate, and write results.json and "
        "the page. On 2 cores the whole takes about an hour, one seed with --no-ratios a quarter; each part is named "
        "as it begins and ends. Run the same command again to go on where it stopped.",
        epilog=f"example: {PROGRAM} runs/micro --seeds 0",
    )
    parser.add_argument("folder", type=Path, help="where everything is written")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds (default: 0 1 2)")
    parser.add_argument("--no-ratios", action="store_true", help="leave the comparison of ratios out")
    parser.add_argument("--jobs", type=int, help=f"models at once (default: one a core, {_GPU_JOBS} on a GPU)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default=device, help="default: %(default)s")
    parsed = parser.parse_args(arguments)
    # Before an hour of work, not after.
    if find_spec("peft") is None or (not parsed.no_ratios and find_spec("matplotlib") is None):
        print("reproduce: error: needs pip install 'lmms-eval-templates[train,report]'", file=sys.stderr)
        return 2
    every = arms(list(dict.fromkeys(parsed.seeds)))
    chosen = [arm for arm in every if not parsed.no_ratios or arm.num_templates in (0, MAIN)]
    jobs = parsed.jobs or (_GPU_JOBS if parsed.device == "cuda" else os.cpu_count() or 1)
    jobs = max(1, min(jobs, len(chosen)))
    try:
        with own(parsed.folder, parsed.device) as lock:
            _reproduce(
                Reproduction(parsed.folder, parsed.device, jobs, lock), chosen, f"{PROGRAM} {shlex.join(arguments)}"
            )
    except TemplateError as error:
        print(f"reproduce: error: {error}", file=sys.stderr)
        return 2
    return 0


def _reproduce(reproduction: Reproduction, chosen: Sequence[Arm], command: str) -> None:
    models, folder = reproduction.run(chosen), reproduction.folder
    recipe = {
        "command": command,
        "lessons": sum(stage.lessons for stage in STAGES),
        "records": NUM_RECORDS,
        "main": MAIN,
        "items": NUM_ITEMS or NUM_SCENES,
        "parameters": build(seed=0)[0].num_parameters(),
        "device": reproduction.device,
        "jobs": reproduction.jobs,
        "seconds": reproduction.seconds(chosen),
    }
    write_results(folder / "results.json", models, recipe)
    write_page(folder / "results.json", folder / "micro.md")
    reproduction.export(chosen[0].seed, command)
    print(f"results: {folder / 'results.json'}\npage: {folder / 'micro.md'}\nweights: {folder / 'weights'}")


if __name__ == "__main__":
    sys.exit(main())
