"""The paper in miniature: its data, its base stage, its page. The shipped models run in test_cli.py."""

import hashlib
import json
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from lmms_eval_templates.training.collator import Collator
from lmms_eval_templates.training.micro import data, reproduce
from lmms_eval_templates.training.micro.data import instruction, lesson, write_mix
from lmms_eval_templates.training.micro.model import build
from lmms_eval_templates.training.micro.page import Results, _time, best_ratio, claims, curves, interval, page, verdict
from lmms_eval_templates.training.micro.pretrain import Stage, _loss, encode, pretrain
from PIL import Image
from scipy.stats import ttest_1samp
from transformers import AutoModelForImageTextToText

from lmms_eval_templates.cli import main
from lmms_eval_templates.demo.scenes import DIRECTIONS, POSITIONS, Draws, Thing, draw_things, scenes
from lmms_eval_templates.sets import PUBLISHED_SETS, template_set
from lmms_eval_templates.space import VQA

SHIPPED = Path(str(resources.files("lmms_eval_templates.training") / "micro" / "results.json"))


@pytest.fixture(scope="module")
def micro():
    return build(seed=0)


def test_every_word_of_templates_questions_and_answers_is_known(micro):
    _, processor = micro
    unknown = processor.tokenizer.unk_token_id
    texts = [*VQA.sample(2_000, seed=3), *(t for name in PUBLISHED_SETS for t in template_set(name).templates)]
    texts = [re.sub(r"\{question\}|\{choices\}", "", text) for text in texts]
    texts += [text for scene in scenes(300, seed=8) for text in (scene.question, *scene.choices)]
    for number in range(300):
        turns = instruction(number, seed=8)[0]["conversations"]
        texts += [turn["value"] for turn in turns]
        texts += lesson(data.DESCRIPTIONS + number, seed=8).turns
    for text, ids in zip(texts, processor.tokenizer(texts)["input_ids"], strict=True):
        assert unknown not in ids, text


def test_lessons_are_encoded_as_training_encodes_conversations(micro):
    model, processor = micro
    described, asked = (0, 64, 128, 192, 256), (data.DESCRIPTIONS + 100, data.DESCRIPTIONS + 130)
    chosen = [lesson(number, seed=1) for number in (*described, *asked)]
    records = []
    for turns, pixels in chosen:
        messages = [
            {"role": ("user", "assistant")[n % 2], "content": [{"type": "text", "text": turn}]}
            for n, turn in enumerate(turns)
        ]
        messages[0]["content"].insert(0, {"type": "image"})
        records.append({"messages": messages, "images": [Image.fromarray(pixels)], "name": "a lesson"})
    batch = Collator(processor, max_length=512)(records)
    encoded = encode(chosen, processor, model.config.image_seq_length)
    assert torch.equal(encoded.ids, batch["input_ids"])
    assert torch.equal(encoded.labels, batch["labels"])
    assert (encoded.labels >= 0).any(dim=1).all()


@pytest.mark.parametrize("make", [lambda: lesson(3, seed=5).pixels, lambda: instruction(3, seed=5)[1]])
def test_a_scene_of_the_benchmark_is_not_trained_on(make, monkeypatch):
    drawn = []
    monkeypatch.setattr(data, "draw_things", lambda draws: drawn.append(draw_things(draws)) or drawn[-1])
    before = make()
    (things,) = drawn
    monkeypatch.setattr(data, "_held_out", lambda: {frozenset(reversed(things))})
    assert not np.array_equal(make(), before)
    assert len(drawn) == 3 and drawn[1] == things
    monkeypatch.undo()
    assert {frozenset(scene.things) for scene in scenes()} == data._held_out()


def test_descriptions_are_true():
    things = (Thing(0, "circle", "red"), Thing(1, "square", "blue"), Thing(4, "square", "blue"))
    draws = Draws("any", 0)
    described = {request: set(make(things, draws)) for request, make in data._DESCRIBE.items()}
    grid = data._describe_grid(things, draws)
    assert grid[:2] == ["red circle", "blue square"] and grid[4] == "blue square" and grid.count("nothing") == 6
    assert described["Describe the objects."] == {
        *("the red circle is at the top left", "the blue square is at the top center"),
        "the blue square is at the middle center",
    }
    assert described["Describe the numbers."] <= {
        *("red 1", "blue 2", "circles 1", "squares 2", "green 0", "yellow 0"),
        *("purple 0", "orange 0", "triangles 0", "crosses 0"),
    }
    nothing = {f"at the {place} is nothing" for n, place in enumerate(POSITIONS) if n not in (0, 1, 4)}
    there = {"at the top left is red circle", "at the top center is blue square", "at the middle center is blue square"}
    assert described["Describe the places."] <= nothing | there
    assert described["Describe the neighbors."] <= {
        *("to the right of the red circle is blue square", "to the left of the blue square is red circle"),
        *("below the blue square is blue square", "above the blue square is blue square"),
        *(f"{d} the blue square is nothing" for d in DIRECTIONS),
        *(f"{d} the red circle is nothing" for d in ("to the left of", "above", "below")),
    }


def test_the_mix_is_llava_json_that_augment_takes(tmp_path, capsys):
    write_mix(tmp_path, 60, seed=4)
    records = json.loads((tmp_path / "mix.json").read_text())
    assert len(records) == len({record["id"] for record in records}) == 60
    for record in records:
        assert Image.open(tmp_path / "images" / record["image"]).size == (48, 48)
    assert main(["augment", str(tmp_path / "mix.json"), str(tmp_path / "t.json"), "--num-templates", "10"]) == 0
    kinds = json.loads((tmp_path / "t.manifest.json").read_text())["kinds"]
    assert set(kinds) == {"question", "multiple-choice"} and min(kinds.values()) > 10
    for before, after in zip(records, json.loads((tmp_path / "t.json").read_text()), strict=True):
        question, _, choices = before["conversations"][0]["value"].removeprefix("<image>\n").partition("\n")
        assert question in after["conversations"][0]["value"] and choices in after["conversations"][0]["value"]
        assert after["conversations"][1:] == before["conversations"][1:]


def test_the_base_stage_learns_and_depends_on_its_seed_alone(tmp_path, micro, request):
    def loss(model):
        with torch.inference_mode():
            return _loss(model, processor, lessons, slice(0, 64)).item()

    threads = torch.get_num_threads()
    request.addfinalizer(lambda: torch.set_num_threads(threads))
    torch.set_num_threads(1)  # sums of several threads may differ in their last bits
    _, processor = micro
    lessons = encode([lesson(n, seed=99) for n in range(64)], processor, 9)
    stages = [Stage(1_280, 1_280), Stage(128, 128)]
    whole = pretrain(tmp_path / "whole", stages, seed=1, device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "save", _killed_at_the_second())
        with pytest.raises(KeyboardInterrupt):
            pretrain(tmp_path / "parts", stages, seed=1, device="cpu")
    assert (tmp_path / "parts_1280.pt").exists() and not (tmp_path / "parts").exists()
    parts = pretrain(tmp_path / "parts", stages, seed=1, device="cpu")
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "whole"]
    assert loss(AutoModelForImageTextToText.from_pretrained(whole)) < loss(build(seed=1)[0]) - 1


def _killed_at_the_second():
    save, saved = torch.save, []

    def interrupted(*arguments):
        if saved:
            raise KeyboardInterrupt
        saved.append(save(*arguments))

    return interrupted


def test_verdicts_are_those_of_a_t_test():
    differences = [3.1, 2.0, 4.4]
    expected = ttest_1samp(differences, 0).confidence_interval(0.95)
    found = interval(differences)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert verdict(interval([3.1, 2.9, 3.0])) == "holds"
    assert verdict(interval([-3.1, -2.9, -3.0])) == "does not hold"
    assert verdict(interval([3.0, -2.0, 1.0])) == verdict(interval([5.0])) == "unclear"


# Avg. of original and templated data by set and seed, worked through by hand in the tests below.
_AVG = {
    "simple": {0: (80.0, 81.0, 82.0), 10: (76.0, 77.0, 78.5)},
    "complex": {0: (50.0, 52.0, 54.0), 10: (70.0, 71.0, 72.0)},
    "ood": {0: (60.0, 60.0, 60.0), 10: (59.0, 63.0, 61.0)},
}
_MAX_MIN = {"simple": 1.0, "complex": 30.0, "ood": 20.0}


def _results(averages, seconds=(), jobs=2):
    """Results with these Avg. by set, number of templates and seed; templates halve Max-Min."""
    models = []
    for n in averages["simple"]:
        for seed in (2, 0, 1):  # in no order
            scores = {
                s: {"tm_avg": averages[s][n][seed], "tm_max_min": _MAX_MIN[s] / (1 + bool(n)) + seed * bool(n),
                    "tm_null_max_min": 12.0, "tm_unmatched": 3.0}
                for s in PUBLISHED_SETS
            }  # fmt: skip
            models.append({"num_templates": n, "seed": seed, "ratio": n / 1000, "scores": scores})
    recipe = {"main": 10, "jobs": jobs, "device": "cpu", "seconds": dict(seconds)}
    return Results({"recipe": recipe, "models": models})


def test_claims_by_hand():
    found = {claim: (difference, outcome) for claim, difference, outcome in claims(_results(_AVG))}
    # Differences 20, 19, 18: mean 19, deviation 1; t(0.975, 2) = 4.303, over the root of 3.
    difference, outcome = found["higher Avg. on Complex"]
    assert tuple(difference) == pytest.approx((19, 19 - 2.484, 19 + 2.484), abs=1e-3) and outcome == "holds"
    # -1, 3, 1: mean 1, deviation 2.
    difference, outcome = found["higher Avg. on OOD"]
    assert tuple(difference) == pytest.approx((1, 1 - 4.968, 1 + 4.968), abs=1e-3) and outcome == "unclear"
    # -4, -4, -3.5: mean -3.833, deviation 0.289; wholly below -2.
    difference, outcome = found["Avg. on Simple not hurt (by 2 points or more)"]
    assert difference.mean == pytest.approx(-3.8333, abs=1e-3) and outcome == "does not hold"
    # Falls of 10, 9, 8 and 15, 14, 13.
    assert found["smaller Max-Min on OOD (fall shown)"][0].mean == 9
    assert found["smaller Max-Min on Complex (fall shown)"][0].mean == 14


@pytest.mark.parametrize(
    ("last", "outcome"),
    [((75.0, 75.5, 76.0), "holds"), ((79.0, 82.0, 78.0), "unclear"), ((85.0, 85.5, 86.0), "does not hold")],
)
def test_a_best_ratio_is_better_than_both_ends(last, outcome):
    by_count = {
        0: (50.0, 50.0, 50.0),
        1: (60.0, 60.5, 61.0),
        10: (70.0, 70.0, 70.0),
        100: (80.0, 80.5, 81.5),
        1000: last,
    }
    best, (over_smallest, over_largest), found = best_ratio(_results(dict.fromkeys(PUBLISHED_SETS, by_count)))
    assert (best, found) == (100, outcome)
    # Leads of 20, 20, 20.5; two numbers to pick from, so t(1 - 0.05 / 4, 2) = 6.205.
    half = 6.205 * 0.28868 / 3**0.5
    assert tuple(over_smallest) == pytest.approx((20.1667, 20.1667 - half, 20.1667 + half), abs=1e-3)
    assert over_largest.mean == pytest.approx((80 + 80.5 + 81.5 - sum(last)) / 3)


# 10 minutes for all, 5 and 9 for two arms and 6 for a third, on two workers, on one each, on one for all.
@pytest.mark.parametrize(("jobs", "minutes", "with_ratios"), [(2, 17, 20), (16, 17, 17), (1, 24, 30)])
def test_the_time_of_one_seed_by_hand(jobs, minutes, with_ratios):
    seconds = {"base": 600, "tuned/original_seed_0/adapter": 300, "logs/templates_10_seed_0": 540,
               "tuned/original_seed_1/adapter": 9000}  # fmt: skip
    text = _time(_results(_AVG, seconds, jobs))
    assert f"about {minutes} minutes" in text
    seconds["tuned/templates_100_seed_0/adapter"] = 360
    with_ratio = {setting: {**_AVG[setting], 100: (1.0, 1.0, 1.0)} for setting in PUBLISHED_SETS}
    text = _time(_results(with_ratio, seconds, jobs))
    assert f"{with_ratios} with all ratios" in text


def test_the_ratio_curve_shows_means_and_seeds():
    by_count = {0: (50.0,) * 3, 1: (60.0,) * 3, 10: (70.0, 72.0, 77.0), 100: (80.0,) * 3}
    averages, spans = curves(_results(dict.fromkeys(PUBLISHED_SETS, by_count))).axes
    lines = {line.get_label(): line for line in averages.lines}
    assert lines["OOD"].get_xdata().tolist() == [0.001, 0.01, 0.1]
    assert lines["OOD"].get_ydata() == pytest.approx([60, 73, 80])
    points = [line.get_ydata().tolist() for line in averages.lines if line.get_linestyle() == "None"]
    assert [60.0, 72.0, 80.0] in points
    assert spans.get_title() == "Max-Min" and spans.lines[0].get_ydata() == pytest.approx([1.5, 1.5, 1.5])


def test_the_shipped_page_says_what_the_results_say():
    docs = Path(__file__).parents[1] / "docs" / "micro.md"
    content, shown = json.loads(SHIPPED.read_text("utf-8")), docs.read_text("utf-8")
    assert shown == page(Results(content))
    for name, num_templates in (("original", 0), ("templated", content["recipe"]["main"])):
        averages = [m["scores"]["ood"]["tm_avg"] for m in content["models"] if m["num_templates"] == num_templates]
        row = next(line for line in shown.splitlines() if line.startswith(f"| {name} |"))
        assert row.split("|")[6].split()[0] == f"{sum(averages) / len(averages):.1f}"
    assert (docs.parent / "micro.svg").exists()


def test_the_shipped_weights_are_those_of_the_record():
    weights = Path(str(resources.files("lmms_eval_templates.demo"))) / "weights"
    made = json.loads((weights / "made.json").read_text("utf-8"))
    assert set(made["sha256"]) == {"original", "templated"}
    for name, known in made["sha256"].items():
        assert hashlib.sha256((weights / name / "model.safetensors").read_bytes()).hexdigest() == known


def test_the_whole_reproduction_runs_and_goes_on(tmp_path, monkeypatch, capsys):
    """All parts for real, of little data; the second call finds everything done."""
    monkeypatch.setattr(reproduce, "STAGES", [Stage(128, 128)])
    monkeypatch.setattr(reproduce, "NUM_RECORDS", 64)
    monkeypatch.setattr(reproduce, "MAIN", 10)
    monkeypatch.setattr(reproduce, "NUM_ITEMS", 5)
    folder = tmp_path / "micro"
    arguments = [str(folder), "--seeds", "0", "0", "--no-ratios", "--device", "cpu"]
    assert reproduce.main(arguments) == 0, capsys.readouterr().err
    results = json.loads((folder / "results.json").read_text())
    assert [(m["num_templates"], m["seed"]) for m in results["models"]] == [(0, 0), (10, 0)]
    (log,) = (folder / "logs" / "original_seed_0").rglob("*_results.json")
    logged = json.loads(log.read_text())["results"]["demo_tm_ood"]["tm_avg,none"]
    assert results["models"][0]["scores"]["ood"]["tm_avg"] == logged
    assert "items:5" in results["models"][0]["scores"]["ood"]["signature"]
    assert results["recipe"]["command"].endswith(f"{folder} --seeds 0 0 --no-ratios --device cpu")
    assert sorted(path.name for path in (folder / "weights").iterdir()) == ["made.json", "original", "templated"]
    assert not list(folder.rglob("*.partial")) and not list(folder.glob("base_*.pt"))
    printed = capsys.readouterr().out
    assert printed.index("begins   base") < printed.index(" s  base\n")
    assert printed.count(" s  tuned/original_seed_0/adapter") == 1
    assert reproduce.main(arguments) == 0
    assert not re.search("begins| s  ", capsys.readouterr().out)


def test_a_folder_belongs_to_one_reproduction(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "micro"
    arguments = [str(folder), "--no-ratios", "--device", "cpu"]
    with reproduce.own(folder, "cpu"):
        assert reproduce.main(arguments) == 2
    assert "another reproduction is at work" in capsys.readouterr().err
    with reproduce.own(folder, "cpu"):  # free again, and the same
        pass
    assert reproduce.main([*arguments, "--device", "cuda"]) == 2
    assert "on another device" in capsys.readouterr().err
    monkeypatch.setattr(reproduce, "NUM_RECORDS", 65)
    assert reproduce.main(arguments) == 2
    assert "another version" in capsys.readouterr().err
    (folder / "recipe.txt").unlink()
    (folder / "mix.json").write_text("[]")
    assert reproduce.main(arguments) == 2
    assert "another version" in capsys.readouterr().err
