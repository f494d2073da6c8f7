"""Time and memory of a report on 15 tasks x 10 models x 10,000 samples: 1.5M lines of sample logs.

    python benchmarks/report.py                  # writes made-up logs (3 GB) into a temporary folder, reports on them
    python benchmarks/report.py --models 2       # smaller
    python benchmarks/report.py --keep FOLDER    # keeps logs and report

Limits: 2 minutes, 2 GB. The time to read the same files line by line with `json.loads` alone is shown beside them.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from lmms_eval_templates.matching import LETTERS
from lmms_eval_templates.metrics import METRICS, RECORD_METRIC, Cell, all_metrics, build_matrix
from lmms_eval_templates.sets import PUBLISHED_SETS, TemplateSet, fill
from lmms_eval_templates.signature import Signature, run_environment
from lmms_eval_templates.space import VQA

BENCHMARKS = ("blink", "mmbench", "seedbench", "tma", "mmmu")
NUM_ITEMS, NUM_TEMPLATES = 100, 100  # a task
NUM_CHOICES = 4
CONTEXT = "A line of context, as long as MMBench's hints and MMMU's questions are. " * 14  # lines of 2 KB


def sample(cell: Cell, number: int, templates: TemplateSet) -> dict:
    """A line of a sample log."""
    question = f"{CONTEXT}What is shown in picture {cell.item}?"
    return {
        "doc_id": number,
        "target": LETTERS[cell.answer],
        "filtered_resps": f"The answer is {LETTERS[cell.prediction or 0]}.",
        "token_counts": [{"output_tokens": 6}],
        "doc_hash": "0" * 64,
        **dict.fromkeys(METRICS),
        RECORD_METRIC: cell.record(),
        "input": fill(templates.templates[cell.template], question, "(A) cat (B) dog (C) bird (D) fish"),
    }


def write_task(folder: Path, model: int, benchmark: str, setting: str) -> tuple[str, dict, dict]:
    """Writes a sample log; returns the task, its configuration and its scores, as a results file has them."""
    # Real sets of 3 and 25 templates would make smaller logs than those that the limits are for.
    templates = TemplateSet(setting, tuple(VQA.sample(NUM_TEMPLATES, PUBLISHED_SETS.index(setting))))
    random = np.random.default_rng([model, BENCHMARKS.index(benchmark), PUBLISHED_SETS.index(setting)])
    ease = np.random.default_rng(BENCHMARKS.index(benchmark)).normal(size=(NUM_ITEMS, 1))
    quality = np.random.default_rng([model, PUBLISHED_SETS.index(setting)]).normal(size=NUM_TEMPLATES)
    quality *= 0.1 * (1 + model)
    right = random.random((NUM_ITEMS, NUM_TEMPLATES)) < 1 / (1 + np.exp(-(ease + quality + 0.1 * model)))
    task = f"{benchmark}_tm_{setting}"
    cells = []
    with (folder / f"20260131_120000_samples_{task}.jsonl").open("w") as log:
        for item, template in np.ndindex(NUM_ITEMS, NUM_TEMPLATES):
            answer = item % NUM_CHOICES
            prediction = answer if right[item, template] else (answer + 1) % NUM_CHOICES
            cells.append(Cell(f"{benchmark}_{item}", template, answer, prediction, "identifier"))
            log.write(json.dumps(sample(cells[-1], len(cells) - 1, templates)) + "\n")
    scores = {f"{name},none": value for name, value in all_metrics(build_matrix(cells, NUM_TEMPLATES)).items()}
    signature = Signature(
        templates=setting,
        templates_hash=templates.hash[:12],
        space_hash=VQA.hash[:12],
        items=NUM_ITEMS,
        items_hash=str(BENCHMARKS.index(benchmark)) * 12,
        subset="sampled",
        seed=0,
        match="robust",
        embedder="none",
        version="0",
        lmms_eval="0",
    )
    metadata = {
        "templates": list(templates.templates),
        "signature": str(signature),
        "environment": run_environment(),
    }
    return task, {"task": task, "dataset_path": "none", "metadata": metadata}, scores


def write_model(folder: Path, model: int) -> None:
    """Writes the logs of one made-up model; each is a little better and more sensitive than the one before."""
    folder.mkdir(parents=True)
    tasks = [write_task(folder, model, benchmark, setting) for benchmark in BENCHMARKS for setting in PUBLISHED_SETS]
    results = {
        "results": {task: scores for task, _, scores in tasks},
        "configs": {task: config for task, config, _ in tasks},
        "config": {"model": "made_up", "model_args": f"pretrained=model-{model}"},
        "model_name": f"model-{model}",
    }
    (folder / "20260131_120000_results.json").write_text(json.dumps(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        for model in range(args.models):
            if not (folder / "logs" / f"model-{model}").exists():
                write_model(folder / "logs" / f"model-{model}", model)
        logs = sorted((folder / "logs").rglob("*.jsonl"))
        print(f"{len(logs)} sample logs, {sum(log.stat().st_size for log in logs) / 1e9:.2f} GB")
        start = time.perf_counter()
        lines = sum(1 for log in logs for line in log.open() if json.loads(line))
        plain = time.perf_counter() - start
        command = [sys.executable, "-m", "lmms_eval_templates.cli", "report", str(folder / "logs")]
        start = time.perf_counter()
        subprocess.run([*command, "--with-paper", "-o", str(folder / "report")], check=True)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        print(f"{lines:,} lines: report {seconds:.1f} s, peak memory {peak:.2f} GB; json.loads alone {plain:.1f} s")
        if seconds > 120 or peak > 2:
            sys.exit("over the limits of 120 s and 2 GB")


if __name__ == "__main__":
    main()
