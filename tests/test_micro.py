"""The paper in miniature: its data, its base stage, its page. The shipped models run in test_cli.py."""

import json
import re
from importlib import resources
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from lmms_eval_templates.training.collator import Collator
from lmms_eval_templates.training.micro import data
from lmms_eval_templates.training.micro.data import instruction, lesson, write_mix
from lmms_eval_templates.training.micro.model import build
from lmms_eval_templates.training.micro.page import Results, _time, best_ratio, claims, figure, interval, page, verdict
from lmms_eval_templates.training.micro.pretrain import Stage, encode, pretrain
from PIL import Image
from scipy.stats import ttest_1samp

from lmms_eval_templates.cli import main
from lmms_eval_templates.demo.scenes import Draws, draw_things, scenes
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


def test_a_scene_of_the_benchmark_is_not_trained_on(monkeypatch):
    draws = Draws("some", 0)
    first, second = draw_things(draws), draw_things(draws)
    assert data._drawn(Draws("some", 0)) == first
    monkeypatch.setattr(data, "_held_out", lambda: {frozenset(reversed(first))})
    assert data._drawn(Draws("some", 0)) == second
    monkeypatch.undo()
    assert {frozenset(scene.things) for scene in scenes()} == data._held_out()


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


def test_the_base_stage_learns_and_depends_on_its_seed_alone(tmp_path):
    from transformers import AutoModelForImageTextToText

    folders = [pretrain(tmp_path / name, [Stage(1_280, 1_280)], seed=1, device="cpu") for name in ("a", "b")]
    weights = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert weights[0] == weights[1]
    trained, fresh = AutoModelForImageTextToText.from_pretrained(folders[0]), build(seed=1)[0]
    _, processor = build(seed=1)
    lessons = encode([lesson(n, seed=99) for n in range(64)], processor, 9)
    from lmms_eval_templates.training.micro.pretrain import _loss

    with torch.inference_mode():
        before, after = (_loss(model, processor, lessons, slice(0, 64)).item() for model in (fresh, trained))
    assert after < before - 1


def test_verdicts_are_those_of_a_t_test():
    differences = [3.1, 2.0, 4.4]
    expected = ttest_1samp(differences, 0).confidence_interval(0.95)
    found = interval(differences)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert verdict(interval([3.1, 2.9, 3.0])) == "holds"
    assert verdict(interval([-3.1, -2.9, -3.0])) == "does not hold"
    assert verdict(interval([3.0, -2.0, 1.0])) == verdict(interval([5.0])) == "unclear"


def _model(num_templates, seed, avg, max_min):
    scores = {s: {"tm_avg": avg + seed, "tm_max_min": max_min, "tm_unmatched": 0.0} for s in PUBLISHED_SETS}
    return {"num_templates": num_templates, "seed": seed, "ratio": num_templates / 1000, "scores": scores}


def _results(averages, seconds=()):
    models = [_model(n, seed, avg, 20.0 - avg / 10) for seed in (0, 1, 2) for n, avg in averages.items()]
    return Results({"recipe": {"main": 10, "jobs": 2, "device": "cpu", "seconds": seconds}, "models": models})


def test_claims_by_hand():
    outcomes = {claim: (d.mean, outcome) for claim, d, outcome in claims(_results({0: 50.0, 10: 70.0}))}
    assert outcomes["higher Avg. on OOD"] == (20.0, "holds")
    assert outcomes["smaller Max-Min on OOD (fall shown)"] == (2.0, "holds")
    assert outcomes["Avg. on Simple not hurt (by 2 points or more)"] == (20.0, "holds")


@pytest.mark.parametrize(
    ("averages", "best", "outcome"),
    [
        ({0: 50.0, 1: 60.0, 10: 70.0, 100: 80.0, 1000: 75.0}, 100, "holds"),
        ({0: 50.0, 1: 60.0, 10: 70.0, 100: 72.0, 1000: 75.0}, 100, "does not hold"),
    ],
)
def test_a_best_ratio_is_better_than_both_ends(averages, best, outcome):
    found, (over_smallest, over_largest), verdict_ = best_ratio(_results(averages))
    assert (found, verdict_) == (best, outcome)
    assert over_smallest.mean == averages[best] - averages[1] and over_largest.mean == averages[best] - averages[1000]


def test_the_time_of_one_seed_by_hand():
    seconds = [("base", 600), ("tuned/original_seed_0/adapter", 300), ("logs/templates_10_seed_0", 540),
               ("tuned/templates_100_seed_0/adapter", 1200), ("tuned/original_seed_1/adapter", 9000)]  # fmt: skip
    text = _time(_results({0: 1.0, 10: 2.0, 100: 3.0}, [{"part": part, "seconds": s} for part, s in seconds]))
    assert "17 minutes" in text and "27 with the other ratios" in text  # 10 + (5 + 9) / 2; and 20 / 2 more


def test_the_ratio_curve_is_drawn_the_same_each_time(tmp_path):
    results = _results({0: 50.0, 1: 60.0, 10: 70.0, 100: 80.0})
    for name in ("a.svg", "b.svg"):
        figure(results, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")


def test_the_shipped_page_says_what_the_results_say():
    docs = Path(__file__).parents[1] / "docs" / "micro.md"
    assert docs.read_text("utf-8") == page(Results(json.loads(SHIPPED.read_text("utf-8"))))
