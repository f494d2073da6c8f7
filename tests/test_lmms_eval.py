"""The real lmms-eval command, with responses whose every cell is known."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmark_data import BENCHMARKS, BLINK_SUBTASKS, TMA_SPLITS, picture
from conftest import write_responses

from lmms_eval_templates import template_set

README = Path(__file__).parents[1] / "README.md"

# Item id -> letter of the right answer, read off tests/benchmark_data.py by hand.
ANSWERS = {
    "blink": {
        f"val_{s}_{i}": "AB"[i % 2] if s == "Relative_Depth" else "ABC"[i] for s in BLINK_SUBTASKS for i in range(3)
    },
    "mmbench": {str(100 + i): "AB"[i % 2] for i in range(6)},
    "seedbench": {str(1000 + i): "ABCD"[i % 4] for i in (0, 2, 3, 5, 7)},
    "tma": {f"{split}/{i}": "AB"[i] for split in TMA_SPLITS for i in range(2)},
    "mmmu": {"validation_Accounting_0": "C", "validation_Art_Theory_1": "I", "validation_Math_3": "A"},
}
SIZES = {"simple": 3, "complex": 100, "ood": 25}


def scripted(benchmark, num_templates):
    """Right where item number + template number is no multiple of 3. Returns responses and the boolean matrix."""
    responses, correct = {}, []
    for i, (item, letter) in enumerate(sorted(ANSWERS[benchmark].items())):
        row = [(i + t) % 3 != 0 for t in range(num_templates)]
        wrong = "B" if letter == "A" else "A"
        responses |= {(item, t): f"({letter})" if right else f"The answer is {wrong}." for t, right in enumerate(row)}
        correct.append(row)
    return responses, np.array(correct)


def test_all_fifteen_tasks_and_their_groups(benchmarks, lmms_eval, tmp_path):
    (tmp_path / "script").mkdir()
    expected = {}
    for benchmark in BENCHMARKS:
        for variant, size in SIZES.items():
            responses, correct = scripted(benchmark, size)
            task = f"{benchmark}_tm_{variant}"
            write_responses(tmp_path / "script" / f"x_samples_{task}.jsonl", responses)
            accuracy = 100 * correct.mean(axis=0)
            expected[task] = (accuracy.mean(), np.ptp(accuracy), accuracy.std())
    run = lmms_eval(
        *("--model", "tm_replay", "--model_args", f"samples={tmp_path / 'script'}"),
        *("--tasks", "template_matters", "--include_path", benchmarks / "tasks"),
    )
    assert run.returncode == 0, run.output[-4000:]
    for task, (average, max_min, std) in expected.items():
        values = run.metrics(task)
        assert values["tm_avg"] == pytest.approx(average), task
        assert values["tm_max_min"] == pytest.approx(max_min), task
        assert values["tm_std"] == pytest.approx(std), task
        assert (values["tm_unmatched"], values["tm_embedded"]) == (0, 0), task
    # Table 2's Overall is the plain mean over the fifteen columns, whatever their sizes.
    for group, members in {
        "template_matters": list(expected),
        **{f"{b}_tm": [t for t in expected if t.startswith(f"{b}_")] for b in BENCHMARKS},
    }.items():
        assert run.metrics(group)["tm_avg"] == pytest.approx(np.mean([expected[t][0] for t in members]))
        assert run.metrics(group)["tm_max_min"] == pytest.approx(np.mean([expected[t][1] for t in members]))
    # The prompt is the template with question and choices put in, and nothing else.
    sample = next(
        s for s in run.samples("mmbench_tm_simple") if s["tm_avg"]["item"] == "102" and s["tm_avg"]["template"] == 1
    )
    assert sample["input"] == "Question: The hint of 2.\nWhich one is 2?\nChoices: (A) a2 (B) b2"
    sample = next(s for s in run.samples("mmmu_tm_simple") if s["tm_avg"]["item"] == "validation_Accounting_0")
    assert sample["input"].startswith("Number 0: what does the image show in the image?\n(A) $6 (B) $7 (C) it's 8")


FOUR = ["{question}\n{choices}", "Q: {question}\nC: {choices}", "{question} Which? {choices}", "{choices}\n{question}"]

# Every cell by hand, for mmbench's items 100 and 102 (answer A) and 101, 103, 105 (answer B), 104 (A):
# response, then (prediction, step) as the encoder and the strings must give it.
CELLS = {
    "100": [
        ("A", 0, "identifier"),
        ("(A) a0", 0, "both"),
        ("a0", 0, "content"),
        ("The answer is (A).", 0, "identifier"),
    ],
    "101": [("B", 1, "identifier"), ("B", 1, "identifier"), ("A", 0, "identifier"), ("A", 0, "identifier")],
    "102": [("A", 0, "identifier"), ("B", 1, "identifier"), ("B", 1, "identifier"), ("", None, None)],
    "103": [("b3", 1, "content"), ("B.", 1, "identifier"), ("C", 2, "identifier"), ("b3.", 1, "content")],
    "104": [
        ("A", 0, "identifier"),
        ("A", 0, "identifier"),
        ("A", 0, "identifier"),
        ("the fourth, d4 or so", 3, "content"),
    ],
    "105": [("A", 0, "identifier"), ("A", 0, "identifier"), ("A", 0, "identifier"), ("  ", None, None)],
}


@pytest.fixture
def hand_worked(benchmarks, tmp_path):
    (tmp_path / "four.json").write_text(json.dumps(FOUR))
    write_responses(tmp_path / "log.jsonl", {(i, t): cell[0] for i, row in CELLS.items() for t, cell in enumerate(row)})
    return (
        *("--model", "tm_replay", "--model_args", f"samples={tmp_path / 'log.jsonl'}"),
        *("--tasks", "mmbench_tm_complex", "--include_path", benchmarks / "tasks"),
    )


def test_every_metric_against_values_worked_out_by_hand(hand_worked, lmms_eval, tmp_path):
    one = lmms_eval(*hand_worked, TM_TEMPLATES=tmp_path / "four.json", PYTHONHASHSEED=1)
    values = one.metrics("mmbench_tm_complex")
    # Right answers a template, of six items:
    #   template 0: 100 101 102 103 104      = 5
    #   template 1: 100 101     103 104      = 4
    #   template 2: 100             104      = 2
    #   template 3: 100         103          = 2
    percent = [100 * n / 6 for n in (5, 4, 2, 2)]
    assert values["tm_avg"] == pytest.approx(100 * 13 / 24)
    assert values["tm_best"] == pytest.approx(100 * 5 / 6)
    assert values["tm_worst"] == pytest.approx(100 * 2 / 6)
    assert values["tm_max_min"] == pytest.approx(50)
    assert values["tm_std"] == pytest.approx(np.sqrt(np.mean([(p - 100 * 13 / 24) ** 2 for p in percent])))
    # Agreeing pairs of six: 100 all 6; 101 1 + 1; 102 1 (two B), 103 3 (three B), 104 3 (three A), 105 3.
    assert values["tm_consistency"] == pytest.approx(100 * np.mean([6, 2, 1, 3, 3, 3]) / 6)
    assert values["tm_unmatched"] == pytest.approx(100 * 2 / 24)
    assert values["tm_embedded"] == 0
    assert 0 < values["tm_p_value"] <= 1 and 0 < values["tm_null_max_min"] < 50

    cells = {(s["tm_avg"]["item"], s["tm_avg"]["template"]): s["tm_avg"] for s in one.samples("mmbench_tm_complex")}
    for item, row in CELLS.items():
        for t, (_, prediction, step) in enumerate(row):
            cell = cells[item, t]
            assert (cell["prediction"], cell["step"]) == (prediction, step), (item, t)
            assert cell["correct"] == (prediction == int(item) % 2)

    signature = one.results["configs"]["mmbench_tm_complex"]["metadata"]["signature"]
    fields = dict(part.split(":", 1) for part in signature.split("|"))
    assert (fields["templates"], fields["items"], fields["match"], fields["embedder"]) == (
        "four",
        "6",
        "robust",
        "none",
    )

    two = lmms_eval(
        *hand_worked,
        launcher=(sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29641"),
        TM_TEMPLATES=tmp_path / "four.json",
        PYTHONHASHSEED=2,
        ACCELERATE_USE_CPU="true",
        OMP_NUM_THREADS=1,
    )
    assert two.returncode == 0, two.output[-4000:]
    assert len(two.results["configs"]) == 1
    assert two.metrics("mmbench_tm_complex") == values
    again = {(s["tm_avg"]["item"], s["tm_avg"]["template"]): s["tm_avg"] for s in two.samples("mmbench_tm_complex")}
    assert again == cells


def test_a_limit_that_cuts_inside_an_item(hand_worked, lmms_eval, tmp_path):
    run = lmms_eval(*hand_worked, "--limit", "10", TM_TEMPLATES=tmp_path / "four.json")
    asked = {}
    for sample in run.samples("mmbench_tm_complex"):
        asked.setdefault(sample["tm_avg"]["item"], []).append(sample["tm_avg"]["correct"])
    assert sorted(map(len, asked.values())) == [2, 4, 4]
    (cut,) = [item for item, row in asked.items() if len(row) == 2]
    whole = np.array([row for row in asked.values() if len(row) == 4])
    assert run.metrics("mmbench_tm_complex")["tm_avg"] == pytest.approx(100 * whole.mean())
    assert run.metrics("mmbench_tm_complex")["tm_max_min"] == pytest.approx(100 * np.ptp(whole.mean(axis=0)))
    assert re.search(rf"1 of 3 items were not asked with all 4 templates .* {cut}", run.output)


def test_embeddings_decide_what_strings_leave_open(benchmarks, lmms_eval, tmp_path, encoder):
    """Table-ready score with the real encoder, and the paper's strict strings on the same responses."""
    (tmp_path / "one.txt").write_text("{question} {choices}\n")
    responses = dict.fromkeys([f"val_{s}_{i}" for s in BLINK_SUBTASKS for i in range(3)], "A.")
    responses["val_Counting_2"] = "a couple"  # of zero, one, two, three the nearest in meaning is "two", the right one
    write_responses(tmp_path / "log.jsonl", {(item, 0): text for item, text in responses.items()})
    arguments = (
        *("--model", "tm_replay", "--model_args", f"samples={tmp_path / 'log.jsonl'}"),
        *("--tasks", "blink_tm_complex", "--include_path", benchmarks / "tasks"),
    )
    run = lmms_eval(*arguments, TM_TEMPLATES=tmp_path / "one.txt", TM_EMBEDDER=encoder)
    values = run.metrics("blink_tm_complex")
    assert values["tm_embedded"] == pytest.approx(100 / 18)
    # Right: item 0 of each subtask, item 2 of Relative_Depth (A), and the embedded one.
    assert values["tm_avg"] == pytest.approx(100 * 8 / 18)
    strict = lmms_eval(*arguments, TM_TEMPLATES=tmp_path / "one.txt", TM_MATCH="strict")
    assert strict.metrics("blink_tm_complex")["tm_unmatched"] == 100
    assert "no response named a choice" in strict.output

    # The run's own log can be replayed, but not for other prompts.
    again = ("--model", "tm_replay", "--model_args", f"samples={tmp_path / 'logs'}", *arguments[4:])
    (tmp_path / "other.txt").write_text("{choices} {question}\n")
    refused = lmms_eval(*again, TM_TEMPLATES=tmp_path / "other.txt")
    assert refused.returncode != 0 and "was recorded with another prompt" in refused.output


def test_a_real_model_answers_every_template(benchmarks, lmms_eval, tiny_llava):
    run = lmms_eval(
        *("--model", "llava_hf", "--model_args", f"pretrained={tiny_llava},device_map=cpu", "--device", "cpu"),
        *("--tasks", "blink_tm_complex", "--include_path", benchmarks / "tasks", "--batch_size", "1"),
        *("--gen_kwargs", "max_new_tokens=2"),
        TM_ITEMS=2,
    )
    samples = run.samples("blink_tm_complex")
    assert len(samples) == 200
    templates = template_set("complex").templates
    for sample in samples:
        subtask, number = re.fullmatch(r"val_(.+)_(\d)", sample["tm_avg"]["item"]).groups()
        choices = (
            "(A) A is closer (B) B is closer" if subtask == "Relative_Depth" else "(A) zero (B) one (C) two (D) three"
        )
        template = templates[sample["tm_avg"]["template"]]
        question = f"{subtask} question {number}?"
        assert sample["input"] == template.replace("{question}", question).replace("{choices}", choices)
    assert len({s["filtered_resps"] for s in samples}) > 1


def test_the_readme_s_dataset_of_one_s_own(lmms_eval, tmp_path):
    import datasets

    folder = tmp_path / "mine"
    folder.mkdir()
    rows = [
        {"number": n, "ask": f"Which pet is {n}?", "options": ["cat", "dog"], "solution": "dog", "photo": picture(n)}
        for n in range(3)
    ]
    features = {"number": "int64", "ask": "string", "solution": "string"}
    features = {k: datasets.Value(v) for k, v in features.items()}
    features |= {"options": [datasets.Value("string")], "photo": datasets.Image()}
    datasets.Dataset.from_list(rows, features=datasets.Features(features)).to_parquet(folder / "pets.parquet")
    (folder / "pets_tm_complex.yaml").write_text(re.search(r"```yaml\n(.*?)```", README.read_text(), re.S)[1])
    responses = {(str(n), t): "Dog" if t < 60 else "cat" for n in range(3) for t in range(100)}
    write_responses(tmp_path / "log.jsonl", responses)
    run = lmms_eval(
        *("--model", "tm_replay", "--model_args", f"samples={tmp_path / 'log.jsonl'}"),
        *("--tasks", "pets_tm_complex", "--include_path", folder),
    )
    assert run.metrics("pets_tm_complex")["tm_avg"] == pytest.approx(60)
    assert run.metrics("pets_tm_complex")["tm_max_min"] == 100

    # A set in a file is looked up beside the YAML, and refused before a model loads if it is not there.
    (folder / "pets_tm_complex.yaml").write_text(
        (folder / "pets_tm_complex.yaml").read_text().replace("template_set: complex", "template_set: mine.txt")
    )
    arguments = ("--tasks", "pets_tm_complex", "--include_path", folder)
    missing = lmms_eval("--model", "llava_hf", "--model_args", "pretrained=/no/such/model", *arguments)
    assert missing.output.count(f"error: cannot read template set {folder}/mine.txt") == 1
    assert missing.returncode != 0 and "/no/such/model" not in missing.output
    (folder / "mine.txt").write_text("{question} {choices}\n")

    # An answer that is none of the choices is refused by name, once.
    rows[1]["solution"] = "bird"
    datasets.Dataset.from_list(rows, features=datasets.Features(features)).to_parquet(folder / "pets.parquet")
    refused = lmms_eval(*("--model", "tm_replay", "--model_args", f"samples={tmp_path / 'log.jsonl'}"), *arguments)
    assert refused.returncode != 0
    assert refused.output.count("error: task pets_tm_complex, row 1, number 1: the answer 'bird'") == 1


def test_the_paper_s_own_rows(benchmarks, lmms_eval, tmp_path):
    """TM_SUBSET=paper: another repository, its split `eval`, all of its rows."""
    import datasets

    rows = datasets.Dataset.from_parquet(str(benchmarks / "tma" / "data" / f"{TMA_SPLITS[0]}-00000-of-00001.parquet"))
    (tmp_path / "subset" / "data").mkdir(parents=True)
    rows.to_parquet(tmp_path / "subset" / "data" / "eval-00000-of-00001.parquet")
    (tmp_path / "tasks").mkdir()
    shipped = benchmarks / "tasks" / "tma_tm_simple.yaml"
    (tmp_path / "tasks" / "tma_tm_simple.yaml").write_text(
        f"task: tma_tm_simple\ninclude: {shipped}\npaper_subset: {tmp_path / 'subset'}\n"
    )
    write_responses(tmp_path / "log.jsonl", {(str(i), t): "AB"[i] if t else "C" for i in range(2) for t in range(3)})
    run = lmms_eval(
        *("--model", "tm_replay", "--model_args", f"samples={tmp_path / 'log.jsonl'}"),
        *("--tasks", "tma_tm_simple", "--include_path", tmp_path / "tasks"),
        TM_SUBSET="paper",
    )
    assert run.metrics("tma_tm_simple")["tm_avg"] == pytest.approx(100 * 2 / 3)
    assert "|items:2|" in run.results["configs"]["tma_tm_simple"]["metadata"]["signature"]


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("TM_ITEMS", "some", "TM_ITEMS='some': must be a whole number"),
        ("TM_EMBEDDER", "no/such-model", "TM_EMBEDDER='no/such-model': cannot load this model"),
    ],
)
def test_bad_settings_are_refused_before_a_model_loads(lmms_eval, setting, value, message):
    run = lmms_eval(
        "--model", "llava_hf", "--model_args", "pretrained=/no/such/model", "--tasks", "demo_tm", **{setting: value}
    )
    assert run.returncode != 0
    assert run.output.count(f"lmms-eval-templates: error: {message}") == 1
    assert "/no/such/model" not in run.output and "Traceback" not in run.output
