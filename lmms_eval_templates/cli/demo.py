"""`lmms-eval-templates demo`: a whole evaluation on the embedded benchmark and model; nothing is downloaded."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from ..settings import Settings

NAME = "demo"
HELP = "run lmms-eval on the embedded benchmark and a tiny model; takes about a minute on two cores"
EXAMPLE = "lmms-eval-templates demo --output demo_logs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", default="demo_logs", help="folder for results and sample logs (default: %(default)s)"
    )
    parser.add_argument(
        "--items", type=int, default=100, help="scenes to ask about, 0 for all 120 (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    from ..demo.tiny_llava import build

    # The model's answers are random words, which no embedder can tell the meaning of.
    environment = {**os.environ, "TM_ITEMS": str(args.items), "TM_EMBEDDER": "none"}
    Settings.from_environment(environment)
    output = Path(args.output).resolve()
    with tempfile.TemporaryDirectory() as folder:
        print("Building a tiny LLaVA with random weights ...", flush=True)
        build(Path(folder) / "tiny_llava")
        command = [
            *(sys.executable, "-m", "lmms_eval", "--model", "tm_hf"),
            *("--model_args", "pretrained=tiny_llava,device=cpu"),
            *("--tasks", "demo_tm", "--log_samples", "--output_path", str(output)),
        ]
        shown = shlex.join(["lmms-eval", *command[3:]])
        print(f"TM_ITEMS={args.items} TM_EMBEDDER=none {shown}", flush=True)
        before = set(output.rglob("*_results.json"))
        result = subprocess.run(command, cwd=folder, env=environment)
    written = sorted(set(output.rglob("*_results.json")) - before)
    if result.returncode or not written:  # lmms-eval prints its errors but exits with 0
        print(f"lmms-eval-templates: error: lmms-eval wrote no results to {output}; see above", file=sys.stderr)
        return 1
    print(
        "The weights are random, so the scores say nothing about any model: with four choices, guessing gives 25, and "
        "an answer that names no choice counts as wrong (tm_unmatched).\n"
        f"Results and sample logs: {written[-1].parent}"
    )
    return 0
