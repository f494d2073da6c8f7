"""`lmms-eval-templates demo`: two small models on the embedded benchmark, and the report; nothing is downloaded."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from importlib import resources
from pathlib import Path

from ..settings import Settings

NAME = "demo"
HELP = "run lmms-eval on the embedded benchmark and two embedded models, and write a report; takes a minute or two"
EXAMPLE = "lmms-eval-templates demo --output demo"
# A micro-LLaVA tuned on the original data, and one tuned on the same data with templates.
MODELS = ("original", "templated")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", default="demo", help="folder for logs and the report (default: %(default)s)")
    parser.add_argument("--items", type=int, default=50, help="scenes to ask about, 0 for all (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    # The models answer in the words of the choices, which needs no embedder.
    environment = {**os.environ, "TM_ITEMS": str(args.items), "TM_EMBEDDER": "none"}
    Settings.from_environment(environment)
    output = Path(args.output).resolve()
    output.mkdir(parents=True, exist_ok=True)
    weights = Path(str(resources.files("lmms_eval_templates.demo"))) / "weights"
    for model in MODELS:
        logs = output / "logs" / model
        command = [
            *(sys.executable, "-m", "lmms_eval", "--model", "tm_hf"),
            *("--model_args", f"pretrained={weights / model},dtype=float32,device=cpu"),
            *("--tasks", "demo_tm", "--log_samples", "--output_path", str(logs)),
        ]
        print(f"TM_ITEMS={args.items} TM_EMBEDDER=none {shlex.join(['lmms-eval', *command[3:]])}", flush=True)
        before = set(logs.rglob("*_results.json"))
        result = subprocess.run(command, cwd=output, env=environment)
        if result.returncode or before == set(logs.rglob("*_results.json")):  # lmms-eval exits with 0 after errors
            print(f"lmms-eval-templates: error: lmms-eval wrote no results to {logs}; see above", file=sys.stderr)
            return 1
    return _report(output)


def _report(output: Path) -> int:
    from . import main

    logs = [f"{model}={output / 'logs' / model}" for model in MODELS]
    status = main(["report", *logs, "--latest", "--output", str(output / "report")])
    if status == 0:
        print((output / "report" / "table2.md").read_text("utf-8"))
    return status
