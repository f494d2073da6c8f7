"""Submissions and the leaderboard, from logs of real lmms-eval runs."""

from __future__ import annotations

import copy
import csv
import hashlib
import json
import shutil
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from made_up_runs import ITEMS, MODELS, logs, results_file, samples_file, sources  # noqa: F401

from lmms_eval_templates.cli import main
from lmms_eval_templates.reports.statistics import analyse, overall
from lmms_eval_templates.reports.submission import _figures, _matrix, _overall, schema


@pytest.fixture(scope="module")
def files(logs, tmp_path_factory) -> dict[str, Path]:
    """A submission of each model."""
    folder = tmp_path_factory.mktemp("submissions")
    for model in MODELS:
        assert main(["submit", *sources(logs, model), "-o", str(folder / f"{model}.json")]) == 0
    return {model: folder / f"{model}.json" for model in MODELS}


@pytest.fixture
def content(files) -> dict:
    return json.loads(files["fickle"].read_text())


def check(capsys, tmp_path: Path, content: object) -> str:
    path = tmp_path / "submission.json"
    path.write_text(json.dumps(content))
    assert main(["submit", "--check", str(path)]) == 2
    return capsys.readouterr().err


def test_a_submission_passes_its_check(files, capsys):
    assert main(["submit", "--check", *map(str, files.values())]) == 0
    out = capsys.readouterr().out
    assert all(f"{model}, 3 runs, all figures follow from the answers" in out for model in MODELS)


def test_a_submission_says_what_is_asked_for(files, logs, content):
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.Draft202012Validator(schema()).validate(content)
    assert content["model"] == {"name": "fickle", "type": "tm_replay", "args": ["samples=responses/fickle"]}
    assert {"lmms-eval", "lmms-eval-templates", "torch", "transformers", "python"} <= set(content["versions"])
    assert content["versions"]["lmms-eval"] == "0.7.3"
    assert "cores" in content["hardware"] or " x " in content["hardware"]
    records = [json.loads(line)["tm_avg"] for line in samples_file(logs / "fickle", "ood").open()]
    ids = sorted({record["item"] for record in records})
    run = next(run for run in content["runs"] if run["setting"] == "ood")
    assert run["item_ids_hash"] == hashlib.sha256(json.dumps(ids).encode()).hexdigest()
    right = np.zeros((ITEMS, 25))
    for record in records:
        right[ids.index(record["item"]), record["template"]] = record["prediction"] == record["answer"]
    assert run["accuracies"] == pytest.approx(list(100 * right.mean(axis=0)))
    assert run["metrics"]["tm_avg"] == pytest.approx(100 * right.mean())
    letters = np.array([list(row) for row in run["predictions"]])
    assert ((letters == np.array(list(run["answers"]))[:, None]) == right).all()


def test_submitting_twice_gives_the_same_file(files, logs, tmp_path):
    assert main(["submit", *sources(logs, "fickle"), "-o", str(tmp_path / "again.json")]) == 0
    assert (tmp_path / "again.json").read_bytes() == files["fickle"].read_bytes()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("overall", "avg", "value"), 99.0),
        (("overall", "avg", "low"), 1.0),
        (("overall", "max_min", "high"), 1.0),
        (("overall", "worst"), 50.0),
        (("overall", "p_value"), 0.5),
        (("runs", 1, "metrics", "tm_avg"), 99.0),
        (("runs", 1, "metrics", "tm_consistency"), 99.0),
        (("runs", 1, "metrics", "tm_null_max_min"), 1.0),
        (("runs", 1, "metrics", "tm_embedded"), 1.0),
        (("runs", 0, "accuracies", 2), 12.5),
        (("runs", 2, "max_min", "low"), 99.0),
    ],
)
def test_a_changed_figure_is_named(content, capsys, tmp_path, path, value):
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    field = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    message = check(capsys, tmp_path, content)
    assert f"{field}: is {value}, but the answers in the file give" in message
    assert message.count("\n") == 1  # this field and no other


def test_a_changed_answer_is_found_in_the_figures(content, capsys, tmp_path):
    row = content["runs"][1]["predictions"][3]
    content["runs"][1]["predictions"][3] = ("A" if row[0] != "A" else "B") + row[1:]
    message = check(capsys, tmp_path, content)
    assert "runs[1].metrics.tm_consistency: is" in message


@pytest.mark.parametrize(
    "path",
    [
        ("hardware",),
        ("overall", "p_value"),
        ("model", "args"),
        ("versions", "lmms-eval"),
        ("runs", 1, "signature"),
        ("runs", 1, "item_ids_hash"),
        ("runs", 1, "metrics", "tm_std"),
    ],
)
def test_a_missing_field_is_named(content, capsys, tmp_path, path):
    place = content
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    assert f"'{path[-1]}' is a required property" in check(capsys, tmp_path, content)


def test_what_no_schema_can_say_is_checked(content, capsys, tmp_path):
    run = content["runs"][1]
    run["items_hash"] = "0" * 12
    content["runs"][0]["predictions"][4] = "AB"
    content["runs"][2]["answers"] = "A"
    content["versions"]["lmms-eval"] = "9"
    digits = run["templates_hash"]
    content["template_sets"][digits][0] = "Something else: {question} {choices}"
    content["runs"].append(copy.deepcopy(content["runs"][0]))
    message = check(capsys, tmp_path, content)
    for fault in (
        "runs[1].items_hash: is '000000000000', but the signature says",
        "runs[0].predictions[4]: has 2 letters, must have one for each of 3",
        f"runs[2].answers: has 1 entries, must have {ITEMS}",
        "versions.lmms-eval: is '9', but the signatures say '0.7.3'",
        f"template_sets.{digits}: the templates have another hash",
        "runs[3]: a second run of demo with the simple templates",
    ):
        assert fault in message


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}', "NaN", "[" * 100_000, "[" * 900 + "]" * 900])
def test_what_is_no_submission_is_refused(text, tmp_path, capsys):
    path = tmp_path / "submission.json"
    path.write_text(text)
    assert main(["submit", "--check", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_figure_that_is_no_number_is_refused(content, capsys, tmp_path):
    content["overall"]["worst"] = float("nan")
    assert "overall.worst: is nan" in check(capsys, tmp_path, content)


def test_a_number_beyond_all_floats_is_refused_by_its_field(content, capsys, tmp_path):
    content["runs"][0]["metrics"]["tm_avg"] = 10**400
    assert "runs[0].metrics.tm_avg: is 1000" in check(capsys, tmp_path, content)


def test_a_date_that_does_not_exist_and_a_task_of_another_benchmark_are_refused(content, capsys, tmp_path):
    content["date"] = "2026-02-30"
    content["runs"][1]["task"] = "blink_tm_complex"
    message = check(capsys, tmp_path, content)
    assert "date: is '2026-02-30'" in message
    assert "runs[1].task: is 'blink_tm_complex', which is no task of the benchmark 'demo'" in message


@pytest.mark.parametrize("option", [["-o", "x.json"], ["--latest"], ["--only", "x"], ["--hardware", "abacus"]])
def test_check_takes_no_option_of_writing(files, capsys, option):
    assert main(["submit", "--check", str(files["fickle"]), *option]) == 2
    assert f"writes nothing: leave out {option[0]}" in capsys.readouterr().err


def test_what_would_not_pass_the_check_is_not_written(logs, tmp_path, capsys):
    folder = Path(shutil.copytree(logs / "steady", tmp_path / "steady"))
    for path in [results_file(folder), *folder.rglob("*_samples_*")]:
        path.rename(path.with_name("20260231_000000" + path.name[15:]))
    assert main(["submit", str(folder), "-o", str(tmp_path / "submission.json")]) == 2
    assert "submission.json: date: is '2026-02-31'" in capsys.readouterr().err
    assert not (tmp_path / "submission.json").exists()


def test_only_one_model_can_be_submitted(logs, tmp_path, capsys):
    output = tmp_path / "submission.json"
    assert main(["submit", *sources(logs), "-o", str(output)]) == 2
    assert "choose one with --only" in capsys.readouterr().err
    assert not output.exists()
    assert main(["submit", *sources(logs), "--only", "fickle/*", "--hardware", "abacus", "-o", str(output)]) == 0
    assert json.loads(output.read_text())["hardware"] == "abacus"


def test_a_run_of_one_item_is_reported_without_intervals_and_not_submitted(logs, tmp_path, capsys):
    folder = Path(shutil.copytree(logs / "steady", tmp_path / "steady"))
    path, log = results_file(folder), samples_file(folder, "simple")
    lines = log.read_text().splitlines(keepends=True)
    item = json.loads(lines[0])["tm_avg"]["item"]
    kept = [line for line in lines if json.loads(line)["tm_avg"]["item"] == item]
    log.write_text("".join(kept))
    results = json.loads(path.read_text())
    results["configs"] = {"demo_tm_simple": results["configs"]["demo_tm_simple"]}
    metadata = results["configs"]["demo_tm_simple"]["metadata"]
    metadata["signature"] = metadata["signature"].replace(f"|items:{ITEMS}|", "|items:1|")
    scores = results["results"]["demo_tm_simple"]
    right = 100.0 * json.loads(kept[0])["tm_avg"]["correct"]  # steady answers alike with every template
    scores |= {"tm_avg,none": right, "tm_best,none": right, "tm_worst,none": right}
    path.write_text(json.dumps(results))
    assert main(["report", f"steady={folder}", "-o", str(tmp_path / "report")]) == 0
    assert "demo with the simple templates: 1 items are too few" in capsys.readouterr().out
    with (tmp_path / "report" / "statistics.csv").open(newline="") as rows:
        (row,) = csv.DictReader(rows)
    assert (float(row["Avg. mean"]), row["Avg. low"], row["Avg. high"]) == (right, "", "")
    assert main(["submit", f"steady={folder}", "-o", str(tmp_path / "submission.json")]) == 2
    assert "a run of one item has no interval" in capsys.readouterr().err


def test_unknown_hardware_must_be_named(logs, tmp_path, capsys):
    folder = Path(shutil.copytree(logs / "steady", tmp_path / "steady"))
    path = results_file(folder)
    results = json.loads(path.read_text())
    for config in results["configs"].values():
        del config["metadata"]["environment"]
    path.write_text(json.dumps(results))
    arguments = ["submit", str(folder), "-o", str(tmp_path / "submission.json")]
    assert main(arguments) == 2
    assert "name it with --hardware" in capsys.readouterr().err
    assert main([*arguments, "--hardware", "abacus"]) == 0
    assert main(["submit", "--check", str(tmp_path / "submission.json")]) == 0


# ---- leaderboard


def board(folder: Path) -> list[dict[str, str]]:
    with (folder / "leaderboard.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def test_the_leaderboard_ranks(files, tmp_path):
    assert main(["leaderboard", *map(str, files.values()), "-o", str(tmp_path / "board")]) == 0
    rows = board(tmp_path / "board")
    contents = {model: json.loads(path.read_text()) for model, path in files.items()}
    averages = {m: np.mean([r["metrics"]["tm_avg"] for r in c["runs"]]) for m, c in contents.items()}
    assert [row["Model"] for row in rows] == sorted(averages, key=averages.get, reverse=True)
    assert [float(row["Rank"]) for row in rows] == [1, 2, 3]
    for row in rows:
        runs = contents[row["Model"]]["runs"]
        assert float(row["Avg. mean"]) == pytest.approx(averages[row["Model"]])
        assert float(row["Max-Min mean"]) == pytest.approx(np.mean([np.ptp(r["accuracies"]) for r in runs]))
        assert float(row["Worst case"]) == pytest.approx(np.mean([min(r["accuracies"]) for r in runs]))
        ranks = []
        for number, run in enumerate(runs):
            for template, accuracy in enumerate(run["accuracies"]):
                others = [c["runs"][number]["accuracies"][template] for c in contents.values()]
                ranks.append(1 + sum(other > accuracy + 1e-9 for other in others))
        assert float(row["Rank over templates best"]) == min(ranks)
        assert float(row["Rank over templates worst"]) == max(ranks)
    assert {path.name for path in (tmp_path / "board").iterdir()} == {
        *(f"{table}.{suffix}" for table in ("leaderboard", "table2") for suffix in ("md", "csv", "tex")),
        *("index.html", ".lmms-eval-templates"),
    }


def test_different_sets_of_one_name_are_not_paired_by_index(files, tmp_path):
    """A second benchmark whose "simple" set has other templates, and fewer."""
    paths = []
    ranks = {"fickle": set(), "steady": set()}
    contents = {}
    for model in ranks:
        content = json.loads(files[model].read_text())
        content["runs"] = [run for run in content["runs"] if run["setting"] == "simple"]
        run = copy.deepcopy(content["runs"][0])
        templates = content["template_sets"][run["templates_hash"]][:2]
        digits = hashlib.sha256(json.dumps(templates).encode()).hexdigest()[:12]
        content["template_sets"][digits] = templates
        run |= {"benchmark": "blink", "task": "blink_tm_simple", "templates_hash": digits}
        run["signature"] = run["signature"].replace(content["runs"][0]["templates_hash"], digits)
        run["predictions"] = [row[:2] for row in run["predictions"]]
        run |= {"embedded": run["embedded"][:2], "accuracies": run["accuracies"][:2]}
        content["runs"].append(run)
        analyses = [analyse(_matrix(run), run["benchmark"], 0) for run in content["runs"]]
        for of_run, analysis in zip(content["runs"], analyses, strict=True):
            of_run |= _figures(analysis)
        content["overall"] = _overall(overall(analyses))
        contents[model] = content
        paths.append(tmp_path / f"{model}.json")
        paths[-1].write_text(json.dumps(content))
    assert main(["leaderboard", *map(str, paths), "-o", str(tmp_path / "board")]) == 0
    for number in (0, 1):
        accuracies = [contents[model]["runs"][number]["accuracies"] for model in ranks]
        for column in zip(*accuracies, strict=True):
            for model, value in zip(ranks, column, strict=True):
                ranks[model].add(1 + sum(other > value + 1e-9 for other in column))
    for row in board(tmp_path / "board"):
        of_model = ranks[row["Model"]]
        assert float(row["Rank over templates best"]) == min(of_model)
        assert float(row["Rank over templates worst"]) == max(of_model)


def test_the_papers_rows_have_no_rank(files, tmp_path):
    assert main(["leaderboard", str(files["fickle"]), "--with-paper", "-o", str(tmp_path / "board")]) == 0
    rows = {row["Model"]: row for row in board(tmp_path / "board")}
    assert rows["fickle"]["Rank"] == "1"
    paper = rows["LLaVA-1.5-7B"]
    assert paper["Rank"] == ""
    assert (round(float(paper["Avg. mean"]), 2), round(float(paper["Max-Min mean"]), 2)) == (48.94, 13.93)


@pytest.mark.parametrize("what", ["templates", "items", "runs"])
def test_submissions_that_cannot_be_compared_are_refused_unless_told(files, logs, tmp_path, capsys, what):
    other = tmp_path / "other.json"
    if what == "runs":
        assert main(["submit", *sources(logs, "steady"), "--only", "*_simple", "-o", str(other)]) == 0
        expected = "Demo with the Complex templates: not run by steady"
    else:
        content = json.loads(files["steady"].read_text())
        for run in content["runs"]:
            if what == "items":
                old, new = run["items_hash"], "f" * 12
                run["items_hash"] = new
                expected = f"items_hash:{'f' * 12} (steady)"
            else:
                old = run["templates_hash"]
                content["template_sets"][old][0] += " "
                templates = content["template_sets"].pop(old)
                new = hashlib.sha256(json.dumps(templates).encode()).hexdigest()[:12]
                content["template_sets"][new] = templates
                run["templates_hash"] = new
                expected = f"templates_hash:{new} (steady)"
            run["signature"] = run["signature"].replace(old, new)
        other.write_text(json.dumps(content))
    arguments = ["leaderboard", str(files["fickle"]), str(other), "-o", str(tmp_path / "board")]
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert "--mixed" in message
    assert not (tmp_path / "board").exists()
    assert main([*arguments, "--mixed"]) == 0
    assert {row["Rank over templates best"] for row in board(tmp_path / "board")} == {""}
    assert "not a fair comparison" in (tmp_path / "board" / "index.html").read_text()


def test_two_submissions_of_a_model_are_refused(files, tmp_path, capsys):
    path = str(files["fickle"])
    assert main(["leaderboard", path, path, "-o", str(tmp_path / "board")]) == 2
    assert "several submissions of fickle" in capsys.readouterr().err
