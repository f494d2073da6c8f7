"""Logs that must not be merged silently: each case is named, with what the user can do."""

from __future__ import annotations

import hashlib
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
    chosen = read_runs([f"fickle={copy}"], only=["*/2099*_simple", "*/20[!9]*_ood"]).runs
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
    content = json.loads(path.read_text())
    metadata = content["configs"]["demo_tm_ood"]["metadata"]
    metadata["templates"][0] += " "
    path.write_text(json.dumps(content))
    arguments = f"fickle={copy}", *sources(logs, "steady")
    message = refused(capsys, *arguments)
    assert f"demo_tm_ood: {path}: the templates have another hash than the signature says" in message
    digits = hashlib.sha256(json.dumps(metadata["templates"]).encode()).hexdigest()[:12]
    metadata["signature"] = re.sub(r"templates_hash:\w+", f"templates_hash:{digits}", metadata["signature"])
    path.write_text(json.dumps(content))
    assert "signatures differ in templates_hash within one template set ood" in refused(capsys, *arguments)


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


def test_a_results_file_with_nan_or_none_to_read_can_be_left_out(copy, capsys):
    """lmms-eval writes NaN where --limit left no complete item."""
    again(copy, "20991231_235959")
    (path,) = copy.rglob("20991231_235959_results.json")
    text = re.sub(r'"tm_(\w+),none": [-\d.e]+', r'"tm_\1,none": NaN', path.read_text())
    assert "NaN" in text
    for log in path.parent.glob("20991231_235959_samples_*"):
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:1]))
    path.write_text(text)
    assert "cut by --limit: to ask about fewer items, set TM_ITEMS" in refused(
        capsys, f"fickle={copy}", "--only", "*/2099*"
    )
    for damaged in (text, "", "{", "[" * 100_000):
        path.write_text(damaged)
        for choice in ({"latest": True}, {"only": ["*/202*"]}):
            runs = read_runs([f"fickle={copy}"], **choice).runs
            assert [run.header.date[:3] for run in runs] == ["202"] * 3
    message = refused(capsys, f"fickle={copy}")
    assert "fickle/20991231_235959/results: " in message
    assert "--latest" in message


@pytest.mark.parametrize(
    ("section", "change", "named"),
    [
        ("generation_kwargs", {"max_new_tokens": 2}, "generation_kwargs"),
        ("config", {"gen_kwargs": {"temperature": 1}}, "--gen_kwargs"),
        ("config", {"model": "other_class"}, "--model"),
        ("config", {"model_args": "pretrained=a,peft=b"}, "pretrained, peft or revision"),
    ],
)
def test_runs_of_one_name_that_are_not_one_models_are_refused(copy, capsys, section, change, named):
    again(copy, "20991231_235959")
    (path,) = copy.rglob("20991231_235959_results.json")
    (older,) = copy.rglob("202[0-8]*_results.json")
    content = json.loads(path.read_text())
    for part in [content["config"]] if section == "config" else [c[section] for c in content["configs"].values()]:
        part.update(change)
    path.write_text(json.dumps(content))
    message = refused(capsys, f"fickle={copy}", "--only", "*/2099*_ood", "--only", "*/202[0-8]*_simple")
    assert f"runs of one name differ in {named}, so they are not one model's" in message
    assert "--only" in message
    assert "NAME=FOLDER" in message
    # As two models, though in one folder, they may stand in one report.
    read = read_runs([f"old={older}", f"new={path}"])
    assert {run.model for run in read.runs} == {"old", "new"}
    noted = any("models generated with different settings" in note for note in read.notes)
    assert noted == (section == "generation_kwargs")


def test_names_with_brackets_and_dates_that_are_equal(copy, tmp_path, capsys):
    again(copy, "20991231_235959")
    message = refused(capsys, f"tuned[1]={copy}")
    pattern = re.search(r"--only '([^']+)'", message)[1]
    assert {run.header.date[:4] for run in read_runs([f"tuned[1]={copy}"], only=[pattern]).runs} == {"2099"}
    twin = Path(shutil.copytree(copy, tmp_path / "twin"))
    message = refused(capsys, f"a={copy}", f"a={twin}", "--latest")
    assert "some have the same date" in message
    assert str(results := next(twin.rglob("2099*_results.json"))) in message
    assert len(read_runs([f"a={results}"]).runs) == 3


def test_every_pattern_that_matches_nothing_is_named(copy, capsys):
    message = refused(capsys, f"fickle={copy}", "--only", "*_ood", "--only", "*_odd")
    assert "--only *_odd: matches none of the runs" in message


@pytest.mark.parametrize("kept", [0, 40])
def test_samples_cut_within_the_first_line_are_orphans(copy, capsys, kept):
    log = samples_file(copy, "ood")
    (log.parent / "20991231_235959_samples_demo_tm_ood.jsonl").write_bytes(log.read_bytes()[:kept])
    (log.parent / "20991231_235959_samples_mmbench_en.jsonl").touch()
    message = refused(capsys, f"fickle={copy}")
    assert "fickle/20991231_235959/demo_tm_ood: samples without a results file" in message
    assert "mmbench_en" not in message
