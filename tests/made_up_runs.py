"""Three made-up models, whose answers the real lmms-eval scored: what reports and submissions are tested on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from lmms_eval_templates.cli import main
from lmms_eval_templates.matching import LETTERS
from lmms_eval_templates.plugin import tasks_path
from lmms_eval_templates.sets import PUBLISHED_SETS, template_set

ITEMS = 20
# How good a model is, and how far wording moves it; the hostile one also tries to break into the page.
MODELS = {"steady": (1.5, 0.0), "fickle": (0.5, 3.0), "hostile": (-1.0, 1.0)}
ATTACK = "</pre><script>document.title = 'broken into'</script> | & \\ $ %"


def _write_responses(folder: Path, model: str) -> None:
    """Sample logs for `tm_replay`: a response to every demo item with every template."""
    folder.mkdir(parents=True)
    scenes = pq.read_table(tasks_path() / "demo" / "scenes.parquet", columns=["id", "choices", "answer"]).to_pylist()
    ability, sensitivity = MODELS[model]
    for setting in PUBLISHED_SETS:
        num_templates = len(template_set(setting))
        random = np.random.default_rng([list(MODELS).index(model), num_templates])
        effect = sensitivity * random.normal(size=num_templates)
        with (folder / f"20260101_000000_samples_demo_tm_{setting}.jsonl").open("w") as log:
            for number, scene in enumerate(scenes):
                answer = LETTERS.index(scene["answer"])
                ease, luck = np.random.default_rng(number).normal(size=2)
                for template in range(num_templates):
                    # Without sensitivity only the item decides, so that all templates get the same answer.
                    right = ability + ease + effect[template] + 0.5 * luck > 0
                    response = LETTERS[answer if right else (answer + 1) % len(scene["choices"])]
                    if model == "hostile" and (number + template) % 4 == 0:
                        response = ATTACK
                    cell = {
                        "item": scene["id"],
                        "template": template,
                        "answer": answer,
                        "prediction": None,
                        "step": None,
                    }
                    log.write(json.dumps({"tm_avg": cell, "filtered_resps": response}) + "\n")


def _run(folder: Path) -> None:
    """Calls the lmms-eval command once a model, in one process, because it takes long to start."""
    code = (
        "import sys\nfrom lmms_eval.__main__ import cli_evaluate\n"
        "for model in sys.argv[1:]:\n"
        "    sys.argv = ['lmms-eval', '--model', 'tm_replay', '--model_args', f'samples=responses/{model}',\n"
        "                '--tasks', 'demo_tm', '--log_samples', '--output_path', f'logs/{model}']\n"
        "    cli_evaluate()\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TM_")}
    environment |= {"TM_ITEMS": str(ITEMS), "TM_EMBEDDER": "none", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment["HF_HOME"] = str(folder / "hf")
    done = subprocess.run(
        [sys.executable, "-c", code, *MODELS], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    for model in MODELS:
        assert list((folder / "logs" / model).rglob("*_results.json")), done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture(scope="session")
def logs(tmp_path_factory) -> Path:
    """A folder with `steady`, `fickle` and `hostile`, each lmms-eval's output folder."""
    folder = tmp_path_factory.getbasetemp() / "made_up_runs"
    if not folder.exists():  # each test file that imports this fixture has its own
        for model in MODELS:
            _write_responses(folder / "responses" / model, model)
        _run(folder)
    return folder / "logs"


def sources(logs: Path, *models: str) -> list[str]:
    """The arguments that name the models; lmms-eval calls them all tm_replay."""
    return [f"{model}={logs / model}" for model in models or MODELS]


def results_file(folder: Path) -> Path:
    (path,) = folder.rglob("*_results.json")
    return path


def samples_file(folder: Path, setting: str) -> Path:
    (path,) = folder.rglob(f"*_samples_demo_tm_{setting}.jsonl")
    return path


@pytest.fixture
def copy(logs, tmp_path) -> Path:
    """A copy of one model's logs, to be damaged."""
    return Path(shutil.copytree(logs / "fickle", tmp_path / "fickle"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch) -> None:
    """The default output is a folder here."""
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


def refused(capsys, *arguments: object) -> str:
    assert main(["report", *map(str, arguments)]) == 2
    return capsys.readouterr().err
