"""Whole lmms-eval runs of tm_hf on the demo benchmark and a tiny LLaVA, against lmms-eval's own llava_hf."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lmms_eval_templates.demo.tiny_llava import build
from lmms_eval_templates.metrics import RECORD_METRIC, Cell

ITEMS, TEMPLATES = 6, 100
PROMPTS = ITEMS * TEMPLATES
TASK = "demo_tm_complex"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    build(folder / "tiny")
    return folder


def start(folder: Path, name: str, model: list[str], launcher: tuple[str, ...] = ()) -> subprocess.Popen:
    environment = {**os.environ, "TM_ITEMS": str(ITEMS), "TM_EMBEDDER": "none", "OMP_NUM_THREADS": "1"}
    command = [
        *(sys.executable, *launcher, "-m", "lmms_eval", *model, "--tasks", TASK),
        *("--batch_size", "1", "--log_samples", "--output_path", str(folder / name)),
    ]
    with open(folder / f"{name}.log", "w") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)


def finished(folder: Path, name: str, process: subprocess.Popen) -> dict:
    """The results file's content, and the answers by document."""
    assert process.wait(timeout=150) == 0
    (results,) = (folder / name).rglob("*_results.json")
    (samples,) = (folder / name).rglob(f"*_samples_{TASK}.jsonl")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    cells = [Cell.from_record(line[RECORD_METRIC]) for line in lines]
    answers = {(cell.item, cell.template): line["filtered_resps"] for cell, line in zip(cells, lines, strict=True)}
    return {**json.loads(results.read_text()), "answers": answers}


TM_HF = ["--model", "tm_hf", "--model_args", "pretrained=tiny,device=cpu"]


@pytest.fixture(scope="module")
def host(folder: Path) -> dict:
    options = ["--model", "llava_hf", "--device", "cpu", "--model_args", "pretrained=tiny,device_map=cpu"]
    return finished(folder, "host", start(folder, "host", options))


@pytest.fixture(scope="module")
def resumed(folder: Path) -> dict:
    """A run with --use_cache, killed midway, and then run again; `kept` answers were in its log."""
    options = [*TM_HF, "--use_cache", str(folder / "cache")]
    process = start(folder, "killed", options)
    kept = 0
    while kept < 150:
        assert process.poll() is None, (folder / "killed.log").read_text()
        time.sleep(0.01)
        kept = _finished_requests(folder)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = _finished_requests(folder)
    return {**finished(folder, "resumed", start(folder, "resumed", options)), "kept": kept}


def _finished_requests(folder: Path) -> int:
    return sum(log.read_bytes().count(b"\n") for log in (folder / "cache").rglob("rank_*.audit.jsonl"))


def test_a_killed_run_goes_on_where_it_was(folder, resumed):
    assert not list((folder / "killed").rglob("*_results.json"))
    assert 150 <= resumed["kept"] < PROMPTS
    work = resumed["throughput"]
    assert work["avg_prompts_packed"] + work["avg_prompts_grouped"] + work["avg_prompts_single"] == (
        PROMPTS - resumed["kept"]
    )


def test_the_answers_are_those_of_llava_hf(host, resumed):
    assert len(resumed["answers"]) == PROMPTS
    assert resumed["answers"] == host["answers"]
    assert len({str(answer) for answer in host["answers"].values()}) > PROMPTS / 4  # image and wording do matter
    assert resumed["results"] == host["results"]


def test_two_ranks_give_one_ranks_metrics_and_keep_images_together(folder, resumed):
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    ranks = finished(folder, "ranks", start(folder, "ranks", [*TM_HF, "--use_cache", str(folder / "cache")], launcher))
    assert ranks["answers"] == resumed["answers"]
    assert ranks["results"] == resumed["results"]
    # Rows are dealt to ranks in another order, so nothing may be taken from the cache of the run with one rank: a row's
    # number and text may be the same and its image another. What is in `metadata` is in the cache's keys.
    assert ranks["configs"][TASK]["metadata"]["world_size"] == 2
    assert "world_size" not in resumed["configs"][TASK]["metadata"]
    work = ranks["throughput"]
    assert work["avg_prompts_packed"] == PROMPTS
    # Every image's prefix is computed once: no image is split, as the items divide by the ranks.
    prefixes = work["avg_prefix_tokens"] / PROMPTS
    assert work["avg_saved_tokens"] == pytest.approx(prefixes * (PROMPTS - ITEMS))
    assert work["avg_prefix_share"] == pytest.approx(work["avg_prefix_tokens"] / work["avg_prompt_tokens"])
    assert work["total_gen_tokens"] > PROMPTS


def test_the_log_says_which_mode_runs_and_why(folder, resumed):
    lines = [line for line in (folder / "resumed.log").read_text().splitlines() if "prompts run" in line]
    assert len(lines) == 1
    assert f"{TASK}: prompts run packed: logits agree with plain generate" in lines[0]
    assert "template/s" in (folder / "resumed.log").read_text()
