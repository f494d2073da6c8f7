"""Logs that must not be merged silently: each case is named, with what the user can do."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from made_up_runs import ITEMS, copy, elsewhere, logs, refused, results_file, samples_file, sources  # noqa: F401

from lmms_eval_templates.cli import main
from lmms_eval_templates.reports.runs import read_runs
from lmms_eval_templates.sets import TemplateError


def again(folder: Path, date: str) -> None:
    """A second run of the same tasks."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        shutil.copy(path, path.with_name(re.sub(r"^\d{8}_\d{6}", date, path.name)))


def test_two_runs_of_a_task_are_named_with_the_choices(copy, tmp_path, capsys):
    again(copy, "20991231_235959")
    message = refused(capsys, f"fickle={copy}", "-o", tmp_path / "report")
    assert "fickle: 2 runs of demo (complex), demo (ood), demo (simple)" in message
    assert "--only 'fickle/20991231_235959/*'" in message
    assert "--latest" in message
    assert "--only" in message
    assert not (tmp_path / "report").exists()
    newest = read_runs([f"fickle={copy}"], latest=True)
    assert {run.header.date for run in newest.runs} == {"20991231_235959"}
    assert sum("is newer" in note for note in newest.notes) == 3
    chosen = read_runs([f"fickle={copy}"], only=["*/2099*_simple", "*/2[!0]*", "*/20[!9]*_ood"]).runs
    assert [(run.setting, run.header.date[:4] == "2099") for run in chosen] == [("ood", False), ("simple", True)]


def test_models_that_lmms_eval_calls_alike_are_not_merged(logs, capsys):
    message = refused(capsys, logs / "steady", logs / "fickle")
    assert "tm_replay: 2 runs of demo" in message
    assert "NAME=FOLDER" in message


def test_an_interrupted_run_is_named(copy, capsys, tmp_path):
    log = samples_file(copy, "complex")
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:-130]))
    message = refused(capsys, f"fickle={copy}")
    assert f"18 of {ITEMS} items were answered with all 100 templates" in message
    assert "--limit" in message
    log.write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    assert f"line {len(lines)}: is cut off: the run was interrupted" in refused(capsys, f"fickle={copy}")
    log.unlink()
    assert "--log_samples" in refused(capsys, f"fickle={copy}")
    assert main(["report", f"fickle={copy}", "--only", "*_ood", "-o", str(tmp_path / "report")]) == 0


def test_latest_falls_back_on_the_newest_complete_run(copy):
    again(copy, "20991231_235959")
    (log,) = copy.rglob("20991231_235959_samples_demo_tm_ood.jsonl")
    log.write_bytes(log.read_bytes()[:-30])
    read = read_runs([f"fickle={copy}"], latest=True)
    newest = {run.setting: run.header.date == "20991231_235959" for run in read.runs}
    assert newest == {"simple": True, "complex": True, "ood": False}
    assert any("cut off" in note for note in read.notes)


def test_samples_without_results_are_named(copy, capsys):
    log = samples_file(copy, "ood")
    shutil.copy(log, log.with_name("20991231_235959_samples_demo_tm_ood.jsonl"))
    message = refused(capsys, f"fickle={copy}")
    assert "fickle/20991231_235959/demo_tm_ood: samples without a results file" in message
    assert "--latest" in message
    assert any("left out" in note for note in read_runs([f"fickle={copy}"], latest=True).notes)
    with pytest.raises(TemplateError, match="no complete run among these logs"):
        read_runs([f"fickle={copy}"], only=["*/2099*"], latest=True)


def test_a_log_with_two_runs_in_it_is_refused(copy, capsys):
    log = samples_file(copy, "ood")  # lmms-eval appends, so that two runs of one second share a file
    log.write_bytes(log.read_bytes() * 2)
    assert "was answered twice" in refused(capsys, f"fickle={copy}")


def test_results_that_are_not_the_samples_are_refused(copy, capsys):
    path = results_file(copy)
    content = json.loads(path.read_text())
    content["results"]["demo_tm_ood"]["tm_avg,none"] += 1
    path.write_text(json.dumps(content))
    message = refused(capsys, f"fickle={copy}")
    assert re.search(r"demo_tm_ood: tm_avg is [\d.]+ in .*results.json and [\d.]+ by .*demo_tm_ood.jsonl", message)


@pytest.mark.parametrize(
    ("field", "value", "group"),
    [
        ("match", "strict", "within one report"),
        ("seed", "7", "within one report"),
        ("items_hash", "0123456789ab", "within one benchmark demo"),
    ],
)
def test_different_signatures_are_named(logs, copy, capsys, field, value, group):
    path = results_file(copy)
    content = json.loads(path.read_text())
    metadata = content["configs"]["demo_tm_ood"]["metadata"]
    metadata["signature"] = re.sub(rf"\|{field}:[^|]*", f"|{field}:{value}", metadata["signature"])
    path.write_text(json.dumps(content))
    message = refused(capsys, f"fickle={copy}", *sources(logs, "steady"))
    assert f"signatures differ in {field} {group}" in message
    assert f"{field}:{value}  fickle/" in message
    assert "steady/" in message
    assert "--only" in message


def test_another_template_set_under_the_same_name_is_named(logs, copy, capsys):
    path = results_file(copy)
    path.write_text(
        re.sub(r"templates:ood\|templates_hash:\w+", "templates:ood|templates_hash:aaaaaaaaaaaa", path.read_text())
    )
    message = refused(capsys, f"fickle={copy}", *sources(logs, "steady"))
    assert "signatures differ in templates_hash within one template set ood" in message


def test_a_run_counts_once_and_has_one_name(logs, capsys):
    inner = results_file(logs / "steady").parent
    assert len(read_runs([str(logs / "steady"), str(inner)]).runs) == 3
    message = refused(capsys, *sources(logs, "steady"), f"other={inner}")
    assert "was given two names, 'steady' and 'other'" in message


def test_versions_that_differ_are_noted(logs, copy):
    path = results_file(copy)
    path.write_text(re.sub(r"lmms_eval:[\d.]+", "lmms_eval:0.9", path.read_text()))
    notes = read_runs([f"fickle={copy}", *sources(logs, "steady")]).notes
    assert any("different versions: lmms_eval" in note for note in notes)


def test_tasks_that_are_not_ours_are_named(copy):
    path = results_file(copy)
    content = json.loads(path.read_text())
    content["configs"]["mmbench_en_dev"] = {"metadata": {"version": 0}}
    path.write_text(json.dumps(content))
    assert "not ours, left out: mmbench_en_dev" in read_runs([f"fickle={copy}"]).notes


def test_what_cannot_be_read_is_named(tmp_path, copy, capsys):
    assert "no such folder" in refused(capsys, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "--log_samples" in refused(capsys, tmp_path / "empty")
    assert "matches none of the runs" in refused(capsys, f"fickle={copy}", "--only", "nothing")
    results_file(copy).write_text("{")
    assert "no results file of lmms-eval" in refused(capsys, f"fickle={copy}")
