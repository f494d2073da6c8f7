import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from lmms_eval_templates import plugin
from lmms_eval_templates.fields import FieldsAdapter
from lmms_eval_templates.sets import PUBLISHED_SETS

BENCHMARKS = ("blink", "demo", "mmbench", "mmmu", "seedbench", "tma")
YAMLS = sorted(plugin.tasks_path().rglob("*.yaml"))


def test_tasks_on_disk_are_the_promised_ones():
    found = {path.stem for path in YAMLS}
    promised = {f"{b}_tm_{s}" for b in BENCHMARKS for s in PUBLISHED_SETS} | {f"{b}_tm" for b in BENCHMARKS}
    assert found == promised | set(BENCHMARKS) | {"template_matters"}


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: path.stem)
def test_every_yaml_is_what_its_name_says(path):
    config = yaml.safe_load(path.read_text())
    if "group" in config:
        assert config["group"] == path.stem
        assert {(m["metric"], m["aggregation"], m["weight_by_size"]) for m in config["aggregate_metric_list"]} == {
            ("tm_avg", "mean", False),
            ("tm_max_min", "mean", False),
        }
        assert all(list(path.parent.glob(f"**/{member}.yaml")) for member in config["task"])
    elif "task" in config:
        benchmark, template_set = path.stem.split("_tm_")
        assert config == {"task": path.stem, "include": f"{benchmark}.yaml", "template_set": template_set}
    else:
        FieldsAdapter.from_mapping(config["template_fields"], path.stem)


def test_bare_lmms_eval_finds_every_task(lmms_eval):
    run = lmms_eval("--tasks", "list")
    for path in YAMLS:
        if path.stem not in BENCHMARKS:
            assert f"- {path.stem}" in run.output, path.stem


def test_registered_models_exist():
    for path in plugin.MODELS.values():
        module, name = path.rsplit(".", 1)
        assert hasattr(import_module(module), name)


def test_a_changed_host_is_one_warning_and_keeps_the_models(monkeypatch):
    from lmms_eval.tasks import TaskManager

    monkeypatch.delattr(TaskManager, "_get_config")
    monkeypatch.delattr(TaskManager, "_template_matters", raising=False)
    with pytest.warns(UserWarning, match="cannot add its tasks to this version of lmms-eval"):
        manifests = plugin.register()
    assert {m.model_id for m in manifests} == set(plugin.MODELS)


def test_a_wheel_holds_tasks_bank_and_sets_and_works_from_any_folder(tmp_path):
    root = Path(__file__).parents[1]
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(tmp_path),
        str(root),
    ]
    subprocess.run(build, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in YAMLS:
        assert f"lmms_eval_templates/tasks/{path.relative_to(plugin.tasks_path())}" in names
    assert "lmms_eval_templates/tasks/demo/scenes.parquet" in names
    assert "training/__init__.py" not in names and "lmms_eval_templates/training/__init__.py" in names
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import lmms_eval_templates as t, lmms_eval_templates.training, lmms_eval_templates.plugin as p; "
        "print(t.__file__, len(t.template_set('complex')), len(list(p.tasks_path().rglob('*_tm_*.yaml'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [str(tmp_path / "site/lmms_eval_templates/__init__.py"), "100", "18"], done.stderr
