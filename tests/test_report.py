"""The report command on logs of real lmms-eval runs."""

from __future__ import annotations

import csv
import filecmp
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from made_up_runs import ITEMS, copy, elsewhere, logs, refused, results_file, samples_file, sources  # noqa: F401
from PIL import Image

from lmms_eval_templates.cli import main
from lmms_eval_templates.reports.figures import draw_all
from lmms_eval_templates.reports.ratios import read_ratios
from lmms_eval_templates.reports.runs import read_runs
from lmms_eval_templates.reports.summary import summarise
from lmms_eval_templates.sets import TemplateError


@pytest.fixture(scope="module")
def report(logs, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "report"
    assert main(["report", *sources(logs), "--with-paper", "-o", str(folder)]) == 0
    return folder


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / f"{name}.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


def raw(logs: Path, model: str, setting: str) -> tuple[np.ndarray, np.ndarray]:
    """Predictions (-1: none) and answers from the sample log, shape [items, templates]."""
    records = [json.loads(line)["tm_avg"] for line in samples_file(logs / model, setting).open()]
    records.sort(key=lambda r: (r["item"], r["template"]))
    shape = ITEMS, -1
    predictions = np.array([-1 if r["prediction"] is None else r["prediction"] for r in records]).reshape(shape)
    return predictions, np.array([r["answer"] for r in records]).reshape(shape)


def test_every_figure_follows_from_the_sample_logs(logs, report):
    rows = {(row["Model"], row["Templates"]): row for row in table(report, "statistics")}
    table2 = {(row["Model"], row[""]): row for row in table(report, "table2") if row["source"] == "this report"}
    names = {"simple": ("Simple", "S"), "complex": ("Complex", "ID"), "ood": ("OOD", "OOD")}
    for model in ("steady", "fickle", "hostile"):
        averages, ranges = [], []
        for setting, (shown, short) in names.items():
            predictions, answers = raw(logs, model, setting)
            accuracies = 100 * (predictions == answers).mean(axis=0)
            num_templates = len(accuracies)
            agree = [
                np.mean([p[s] == p[t] != -1 for s in range(num_templates) for t in range(num_templates) if s != t])
                for p in predictions
            ]
            expected = {
                "Items": ITEMS,
                "Avg. mean": accuracies.mean(),
                "Max-Min measured": accuracies.max() - accuracies.min(),
                "Templates' accuracy best": accuracies.max(),
                "Templates' accuracy worst": accuracies.min(),
                "Templates' accuracy std": accuracies.std(),
                "Answers consistent": 100 * np.mean(agree),
                "Answers embedded": 0,
                "Answers unmatched": 100 * (predictions == -1).mean(),
            }
            row = rows[model, shown]
            assert {name: float(row[name]) for name in expected} == pytest.approx(expected)
            averages.append(accuracies.mean())
            ranges.append(np.ptp(accuracies))
            assert float(table2[model, "Avg."][f"Demo {short}"]) == pytest.approx(averages[-1])
            listed = {
                int(r["Number"]): float(r["Accuracy"])
                for r in table(report, "templates")
                if (r["Model"], r["Templates"]) == (model, shown)
            }
            assert [listed[t] for t in range(num_templates)] == pytest.approx(list(accuracies))
        assert float(table2[model, "Avg."]["Overall"]) == pytest.approx(np.mean(averages))
        assert float(table2[model, "Max-Min"]["Overall"]) == pytest.approx(np.mean(ranges))


def test_statistics_tell_the_sensitive_model_from_the_steady_one(report):
    rows = {(row["Model"], row["Templates"]): row for row in table(report, "statistics")}
    steady, fickle = rows["steady", "Complex"], rows["fickle", "Complex"]
    assert float(steady["Max-Min measured"]) == 0
    assert float(steady["Max-Min p"]) == 1
    assert float(fickle["Max-Min p"]) < 0.01
    assert float(fickle["Max-Min low"]) > 0


def test_pairs_follow_from_the_sample_logs(logs, report):
    counts = {}
    for model in ("steady", "hostile"):
        predictions, answers = raw(logs, model, "complex")
        counts[model] = (predictions == answers).sum(axis=0)
    (row,) = [
        row
        for row in table(report, "pairs")
        if row["Templates"] == "Complex" and {row["Better"], row["Worse"]} == {"steady", "hostile"}
    ]
    better, worse = counts[row["Better"]], counts[row["Worse"]]
    assert float(row["Difference"]) == pytest.approx(100 * (better - worse).mean() / ITEMS)
    assert float(row["Difference"]) > 0
    assert float(row["Order holds"]) == pytest.approx(100 * (better > worse).mean())
    assert float(row["Ties"]) == pytest.approx(100 * (better == worse).mean())


def test_best_and_worst_templates_come_with_their_texts(logs, report):
    rows = [r for r in table(report, "best_and_worst") if (r["Model"], r["Templates"]) == ("fickle", "Complex")]
    assert len(rows) == 20
    accuracies = [float(row["Accuracy"]) for row in rows]
    assert accuracies == sorted(accuracies, reverse=True)
    templates = json.loads(results_file(logs / "fickle").read_text())["configs"]["demo_tm_complex"]["metadata"][
        "templates"
    ]
    assert all(row["Template"] == templates[int(row["Number"])] for row in rows)


def test_the_papers_rows_are_marked(report):
    rows = table(report, "table2")
    papers = [row for row in rows if row["source"].startswith("from the paper")]
    assert len(papers) == 18
    assert {row["Overall"][:5] for row in papers if row["Model"] == "LLaVA-1.5-7B"} == {"48.94", "13.93"}
    assert [row["BLINK S"] for row in rows if row["source"] == "this report"] == [""] * 6


def test_pictures_are_written_as_png_and_svg(report):
    names = {path.stem for path in (report / "figures").iterdir()}
    assert names == {
        *("range_demo", "distribution_demo"),
        *("heatmap_demo_simple", "heatmap_demo_complex", "heatmap_demo_ood"),
    }
    for name in names:
        with Image.open(report / "figures" / f"{name}.png") as picture:
            grey = np.asarray(picture.convert("L"))
        assert picture.width > 900
        assert np.ptp(grey) > 150  # black on white
        assert "<svg" in (report / "figures" / f"{name}.svg").read_text()[:1000]


def test_the_heat_maps_scale_is_monotone_in_grey():
    import matplotlib

    red, green, blue = matplotlib.colormaps["cividis_r"](np.linspace(0, 1, 50))[:, :3].T
    assert (np.diff(0.2126 * red + 0.7152 * green + 0.0722 * blue) < 0).all()


def test_the_same_logs_give_the_same_bytes(logs, tmp_path):
    for seed in ("0", "1"):
        command = [sys.executable, "-m", "lmms_eval_templates.cli", "report", *sources(logs), "-o", f"report{seed}"]
        subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed}, check=True)
    first, second = tmp_path / "report0", tmp_path / "report1"
    files = sorted(str(path.relative_to(first)) for path in first.rglob("*") if path.is_file())
    assert len(files) == 7 * 3 + 5 * 2 + 2
    assert filecmp.cmpfiles(first, second, files, shallow=False) == (files, [], [])


def test_without_matplotlib_tables_still_work(logs, tmp_path):
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from lmms_eval_templates.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "report", *sources(logs, "fickle"), "-o", "report"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pip install 'lmms-eval-templates[report]'" in done.stderr
    assert table(tmp_path / "report", "statistics")
    assert "pip install &#39;lmms-eval-templates[report]&#39;" in (tmp_path / "report" / "index.html").read_text()
    assert not (tmp_path / "report" / "figures").exists()


def test_a_score_that_rests_on_unmatched_answers_is_marked(logs, report):
    shares = [100 * (raw(logs, "hostile", setting)[0] == -1).mean() for setting in ("simple", "complex", "ood")]
    note = f"hostile: {max(shares):.0f}% of its answers on demo with the"
    page = (report / "index.html").read_text()
    assert note in page
    assert "fickle: " not in page[page.index('class="notes"') : page.index('id="results"')]


def test_commands_that_reproduce_a_run_are_on_the_page(report):
    page = (report / "index.html").read_text()
    assert (
        f"TM_ITEMS={ITEMS} TM_EMBEDDER=none lmms-eval --model tm_replay --model_args samples=responses/steady" in page
    )


def test_an_image_that_is_not_at_hand_is_said_to_be_missing(copy, tmp_path):
    path = results_file(copy)
    path.write_text(path.read_text().replace("scenes.parquet", "nowhere.parquet"))
    assert main(["report", f"fickle={copy}", "-o", str(tmp_path / "report")]) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "The image is not shown: its dataset is not at hand" in page
    assert 'alt="Image of item' not in page


# ---- where the report goes


def test_an_earlier_report_is_replaced_and_nothing_else(copy, tmp_path, capsys):
    output = tmp_path / "report"
    arguments = ["report", f"fickle={copy}", "--only", "*_simple", "-o", str(output)]
    assert main(arguments) == 0
    (output / "stale.png").touch()
    assert main(arguments) == 0
    assert not (output / "stale.png").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    assert "holds no earlier report" in refused(capsys, f"fickle={copy}", "-o", mine)
    assert (mine / "thesis.tex").read_text() == "years of work"
    assert {path.name for path in tmp_path.iterdir()} == {"report", "mine", "fickle"}


def test_a_failing_report_leaves_nothing(copy, tmp_path, capsys):
    assert "no model 'x'" in refused(capsys, f"fickle={copy}", "--ratio", "x=1", "-o", tmp_path / "report")
    assert {path.name for path in tmp_path.iterdir()} == {"fickle"}


# ---- template-to-data ratios


def test_ratios_are_drawn(logs, tmp_path):
    summary = summarise(read_runs(sources(logs)))
    ratios = read_ratios(summary, ["steady=0", "fickle=1.5e-3,7B", "hostile=7.5e-3,7B"])
    assert ratios["hostile"] == (7.5e-3, "7B")
    (picture,) = [picture for picture in draw_all(summary, ratios, tmp_path) if picture.name == "ratio"]
    accuracy = summary.analyses["fickle"]["demo", "complex"].metrics["tm_avg"]
    assert f"Demo Complex 7B at 0.0015: {accuracy:.1f}" in picture.description
    baseline = {"steady": ratios["steady"]}
    assert all(picture.name != "ratio" for picture in draw_all(summary, baseline, tmp_path))


def test_ratios_come_from_the_training_datas_manifest(logs, tmp_path):
    summary = summarise(read_runs(sources(logs, "steady")))
    manifest = tmp_path / "mix.manifest.json"
    manifest.write_text('{"num_templates": 5000, "records": 665298, "ratio": 0.0075154}')
    assert read_ratios(summary, [f"steady={manifest}"]) == {"steady": (0.0075154, "")}
    with pytest.raises(TemplateError, match=r"'much' is no ratio; allowed is a number of 0 or more"):
        read_ratios(summary, ["steady=much"])
    with pytest.raises(TemplateError, match="is no ratio"):
        read_ratios(summary, ["steady=-1"])
    manifest.write_text("{}")
    with pytest.raises(TemplateError, match="holds no 'ratio'"):
        read_ratios(summary, [f"steady={manifest}"])
