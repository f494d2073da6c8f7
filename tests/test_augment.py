"""Augmentation: every kind of record, text as data, byte-exactness. Expected texts are written by hand."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from lmms_eval_templates.training.manifest import AugmentSignature, manifest_path
from lmms_eval_templates.training.rules import kind_of, take_apart
from training_data import around, conversation, first_turn, run

from lmms_eval_templates import CHOICE, QUESTION, VQA, TemplateError, load_template_set

SAMPLE = Path(__file__).parents[2] / "shared" / "cases" / "llava_mix_sample.json"

SHORT = "Answer the question using a single word or phrase."
LETTER = "Answer with the option's letter from the given choices directly."
KINDS = {
    # visual question answering, in the wordings of LLaVA-1.5's parts
    f"<image>\nIs this man a pro?\n{SHORT}": "question",
    f"<image>\nWhat is the genre of this book?\n{SHORT}": "question",
    "What might be the reason for the crowd in the image?\n<image>": "question",
    "What do you see happening in this image?\n<image>": "question",
    "<image>\nWhat does the sign say?\nReference OCR token: EXIT, 12\n" + SHORT: "question",
    "<image>\nExplain why the man in the picture is laughing.": "question",
    "<image>\nWhat is the title of this book?": "question",
    "<image>\nCan you tell me what color the bus in the picture is?": "question",
    "<image>\nIn which region of the world was this taken?": "question",
    "<image>\n图片里有什么？": "question",
    f"<image>\nWhat will he do?\nA. swim\nB. run\n{LETTER}": "multiple-choice",
    "<image>\nWhat will he do?\n(A) swim\n(B) run": "multiple-choice",
    "<image>\nWhat will he do?\nOptions: (A) swim (B) run": "multiple-choice",
    "<image>\nProvide a one-sentence caption for the provided image.\nReference OCR token: A. B": "caption",
    "Can you describe the main features of this image for me?\n<image>": "caption",
    "Write a detailed description of the given image.\n<image>": "caption",
    "<image>\nAnalyze the image in a comprehensive and detailed manner.": "caption",
    "Explain the visual content of the image in great detail.\n<image>": "caption",
    "<image>\nIn one sentence, describe the scene.": "caption",
    "<image>\nPlease provide a short description for this region: [0.10, 0.20, 0.55, 0.90].": "region",
    "<image>\nPlease provide the bounding box coordinate of the region this sentence describes: a dog.": "bounding-box",
    "<image>\n": "empty",
    # letters that name parts of the picture
    "<image>\nWhat is shown in panel (a) and panel (b)?": "question",
    f"<image>\nIs the object (a) red or (b) blue?\n{SHORT}": "question",
    "<image>\nAccording to (A) the sign and (B) the light, may I cross?": "question",
    f"<image>\nWhat differs between Fig. (a) and Fig. (b)? {SHORT}": "question",
}


@pytest.mark.parametrize("text", KINDS)
def test_kind(text):
    assert kind_of(take_apart(text)) == KINDS[text]


@pytest.mark.parametrize(
    ("before", "question", "after"),
    [
        ("<image>\n", "What is on the table?\n" + SHORT, ""),
        ("", "What are the main colors?", "\n<image>"),
        ("<image>\n<image>\n", "What changed between the two pictures?", ""),
        ("<image>\n", "Does the sign say {question} or {choices}, 100% or %s, {0} or {}?", ""),
        ("<image>\n", "图片里有什么？", ""),
        ("<image>\n", 'What does 😀 in \u2028 this \\ "line" \t mean?\u2028Really?\u2029\x85No?', ""),
        ("<image>\n", "Compare the left <image> with the right.", ""),
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_open_question(tmp_path, before, question, after, ascii_only):
    record = conversation(before + question + after, "Answer", id="a", image="a.jpg")
    source = json.dumps([record], ensure_ascii=ascii_only).encode()
    (new,), _ = run(tmp_path, source)
    assert first_turn(new) == before + around(question) + after
    record["conversations"][0]["value"] = first_turn(new)
    assert new == record
    expected = json.dumps([record], ensure_ascii=ascii_only)
    for code in ("0085", "2028", "2029"):  # str.splitlines() ends a line there
        expected = expected.replace(chr(int(code, 16)), f"\\u{code}")
    assert (tmp_path / "new_mix.json").read_bytes() == expected.encode()


@pytest.mark.parametrize("choices", ["A. swim\nB. run\nC. {choices}", "(A) swim\n(B) run", "(A) swim (B) run"])
def test_choices_get_a_choice_template_and_the_format_line_stays_last(tmp_path, choices):
    record = conversation(f"<image>\nWhat {{question}} next?\n{choices}\n{LETTER}", "B", id="a", image="a.jpg")
    (new,), _ = run(tmp_path, [record])
    choice = CHOICE.sample(1, 0)[0].replace("{choices}", choices, 1)
    assert first_turn(new) == f"<image>\n{around('What {question} next?')}\n{choice}\n{LETTER}"


INLINE = "(A) swim (B) run"
WRAPPED = "A. swim\nB. run, and\n rest\n\nC. eat\n\nD. sleep"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"What next? {INLINE} Answer with the letter.", ("What next?", INLINE, " Answer with the letter.")),
        (f"Choose. {INLINE} please answer in one word", ("Choose.", INLINE, " please answer in one word")),
        ("What next? (A) Answer (B) Choose the bus", ("What next?", "(A) Answer (B) Choose the bus", "")),
        (f"In (a) and (b), who? {INLINE}", ("In (a) and (b), who?", INLINE, "")),
        (f"What next?\n{WRAPPED}\n{LETTER}", ("What next?", WRAPPED, f"\n{LETTER}")),
        ("What next?\n\nA. swim\n\nB. run", ("What next?", "A. swim\n\nB. run", "")),
        ("One?\nA. x\nB. y\nTwo?\nA. z\nB. w", ("One?", "A. x\nB. y", "\nTwo?\nA. z\nB. w")),
        (f"What next?\nOptions: {INLINE}", ("What next?", INLINE, "")),
        ("What next?\nChoices:\nA. x\nB. y\nGo.", ("What next?", "A. x\nB. y", "\nGo.")),
    ],
)
def test_where_choices_begin_and_end(text, parts):
    assert take_apart(text) == ("", *parts)


UNCHANGED = [text for text, kind in KINDS.items() if kind in ("caption", "region", "bounding-box", "empty")]


def test_other_instructions_stay_unless_all_are_asked_for(tmp_path):
    records = [conversation(text, "x", id=i, image="a.jpg") for i, text in enumerate([*UNCHANGED, "Who?\n<image>"])]
    new, manifest = run(tmp_path, records)
    assert new[:-1] == records[:-1]
    assert first_turn(new[-1]) == around("Who?") + "\n<image>"
    assert manifest["kinds"] == {"caption": 6, "region": 1, "bounding-box": 1, "empty": 1, "question": 1}
    new, _ = run(tmp_path, records, all_instructions=True)
    changed = [a != b for a, b in zip(new, records, strict=True)]
    assert changed == [text.strip() != "<image>" for text in UNCHANGED] + [True]


def test_text_only_records_stay_or_get_templates_that_mention_no_image(tmp_path):
    text = conversation("Write a line that prints {'a': 1}", "print({'a': 1})", id="wg_8", model="")
    continued = {
        "id": "wg_9",
        "conversations": [{"from": "gpt", "value": "the rest"}, {"from": "human", "value": "Thanks, go on."}],
    }
    question = conversation("<image>\nWho?", "He", id="q", image="a.jpg")
    new, manifest = run(tmp_path, [text, question, continued])
    assert (new[0], new[2]) == (text, continued)
    assert manifest["kinds"] == {"question": 1, "text-only": 2}
    new, manifest = run(tmp_path, [text, question, continued], text_only="image-free")
    (template,) = (entry["template"] for entry in manifest["used"]["image_free"])
    assert template in QUESTION
    assert not re.search("image|picture", template)
    assert first_turn(new[0]) == template.replace("{question}", "Write a line that prints {'a': 1}")
    assert new[2]["conversations"][1]["value"] == template.replace("{question}", "Thanks, go on.")
    assert first_turn(new[1]) == "<image>\n" + around("Who?")


def test_first_question_or_all(tmp_path):
    record = conversation("<image>\nWho?", "He", "Describe the image.", "x", "Where?", "There", id=1, image=["a.jpg"])
    (new,), _ = run(tmp_path, [record])
    changed = [a != b for a, b in zip(new["conversations"], record["conversations"], strict=True)]
    assert changed == [True, False, False, False, False, False]
    (new,), manifest = run(tmp_path, [record], turns="all", num_templates=2)
    assert {new["conversations"][0]["value"][8:], new["conversations"][4]["value"]} in (
        {around("Who?", i, n=2), around("Where?", 1 - i, n=2)} for i in (0, 1)
    )
    assert [new["conversations"][i] for i in (1, 2, 3, 5)] == [record["conversations"][i] for i in (1, 2, 3, 5)]
    assert manifest["changed_turns"] == 2


MESSAGES = {
    "llama_factory": {
        "messages": [{"role": "user", "content": "<image>Who?"}, {"role": "assistant", "content": "He"}],
        "images": ["a.jpg"],
    },
    "trl": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Who?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "He"}]},
        ],
        "images": ["a.jpg"],
    },
    "image_in_part": {
        "meta": {"content": "Who?", "text": "Who?"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Who?"}, {"type": "image", "image": "a.jpg"}]},
            {"role": "assistant", "content": "He", "text": "Who?"},
        ],
    },
}


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("name", ["mix.json", "mix.jsonl"])
def test_messages_form(tmp_path, kind, name):
    record = MESSAGES[kind]
    (new,), _ = run(tmp_path, [record], name=name)
    expected = json.loads(json.dumps(record))
    turn = next(turn for turn in expected["messages"] if turn["role"] == "user")
    if kind == "llama_factory":
        turn["content"] = "<image>" + around("Who?")
    else:
        part = next(part for part in turn["content"] if part["type"] == "text")
        part["text"] = around("Who?")
    assert new == expected


STRANGE = rb"""[
{"x":1.50e0 , "id" : 12345678901234567890123, "n":{"value": "<image>\nWho?", "from":"human"},
  "conversations":[ {"from":"human","value":"<image>\nWho\u003f \ud83d\ude00" , "value2":"\u0041\/"},
	{"from":"gpt","value":"\u00e9\/A\ud800"}],"image":"a\/b.jpg"} ,
   {"conversations":[{"value":"Really?\n<image>","from":"human"}], "image":"EACUTE.jpg","id":1e5}

]
""".replace(b"EACUTE", "é".encode())


def test_everything_else_is_the_same_bytes(tmp_path):
    run(tmp_path, STRANGE)
    new = (tmp_path / "new_mix.json").read_bytes()
    for question, turn in ((b'"<image>\\nWho\\u003f \\ud83d\\ude00"', 0), (b'"Really?\\n<image>"', 1)):
        text = json.loads(question)
        core = text.removeprefix("<image>\n").removesuffix("\n<image>")
        expected = json.dumps(text.replace(core, around(core))).encode()
        assert new.count(expected) == 1, turn
        new = new.replace(expected, question)
    assert new == STRANGE


@pytest.mark.parametrize(
    "turn",
    [
        r'{"from": "human", "v\u0061lue": "<image>\nWho?"}',
        r'{"from": "human", "value": "<image>\nWho?", "more": {"value": "<image>\nWho?"}}',
        r'{"more": [{"value": ["value", "\"value\": \"Who?\""]}], "value": "<image>\nWho?", "from": "human"}',
    ],
)
def test_the_text_is_found_among_others_like_it(tmp_path, turn):
    answer = r'{"from": "gpt", "value": "\"value\": \"<image>\\nWho?\""}'
    source = f'[{{"value": "<image>", "image": "a", "conversations": [{turn}, {answer}]}}]'
    run(tmp_path, source.encode())
    old, new = r'"<image>\nWho?"}', json.dumps("<image>\n" + around("Who?")) + "}"
    if "more" in turn:
        old, new = r'"value": "<image>\nWho?", ', '"value": ' + json.dumps("<image>\n" + around("Who?")) + ", "
    assert source.count(old) == 1
    assert (tmp_path / "new_mix.json").read_text() == source.replace(old, new)


MARK = '"<image>\\nWho?"'


@pytest.mark.parametrize(
    "record",
    [
        r'{"meta": {"value": WHO}, "image": "a", "conversations": [{"from": "human", "v\u0061lue": WHO}]}',
        r'{"meta": {"value": 5}, "image": "a", "conversations": [{"from": "human", "v\u0061lue": WHO}]}',
        r'{"meta": {"x\"value": WHO}, "image": "a", "conversations": [{"from": "human", "value": WHO}]}',
        r'{"messages": 5, "image": "a", "conversations": [{"from": "human", "value": WHO}]}',
        r'{"messages": [3], "image": "a", "conversations": [{"from": "human", "value": WHO, "content": [7]}]}',
        r'{"conversations": [{"from": "human", "value": [{"type": "image"}, {"type": "text", "text": WHO}]}]}',
    ],
)
def test_the_text_is_found_beside_odd_keys(tmp_path, record):
    start, middle, end = record.rpartition("WHO")
    source = "[" + start.replace("WHO", MARK) + MARK + end + "]"
    _, manifest = run(tmp_path, source.encode())
    assert manifest["kinds"] == {"question": 1}
    expected = "[" + start.replace("WHO", MARK) + json.dumps("<image>\n" + around("Who?")) + end + "]"
    assert middle and (tmp_path / "new_mix.json").read_text() == expected


def test_a_key_that_stands_twice_is_refused(tmp_path):
    source = '[{"image": "a", "conversations": [{"from": "human", "value": "What?", "value": "Who?"}]}]'
    with pytest.raises(TemplateError, match="key 'value' stands 2 times"):
        run(tmp_path, source.encode())


def test_templates_are_dealt_evenly_and_the_manifest_counts_them(tmp_path):
    records = [conversation(f"<image>\nWho is {i}?", "He", id=i, image="a.jpg") for i in range(1000)]
    records.insert(3, conversation("hello", "hi", id="t"))
    new, manifest = run(tmp_path, records, num_templates=30, seed=4)
    drawn = QUESTION.sample(30, 4)
    counts = dict.fromkeys(drawn, 0)
    for record, old in zip(new, records, strict=True):
        if "image" in record:
            core = first_turn(old).removeprefix("<image>\n")
            counts[first_turn(record).removeprefix("<image>\n").replace(core, "{question}")] += 1
    assert set(counts.values()) == {33, 34}
    used = manifest["used"]["image"]
    assert [(entry["template"], entry["count"]) for entry in used] == list(counts.items())
    assert [QUESTION[entry["index"]] for entry in used] == drawn
    assert [CHOICE[entry["choice_index"]] for entry in used] == [entry["choice_template"] for entry in used]
    assert (manifest["records"], manifest["changed_records"], manifest["seed"]) == (1001, 1000, 4)
    assert manifest["ratio"] == 30 / 1001
    assert manifest["input_sha256"] == hashlib.sha256((tmp_path / "mix.json").read_bytes()).hexdigest()
    assert manifest["space_hash"] == VQA.hash
    for name in AugmentSignature.__dataclass_fields__:
        assert f"{name}:" in manifest["signature"]


def test_both_pools_are_counted_and_none_is_short(tmp_path):
    records = [conversation(f"<image>\nWho is {i}?", "He", id=i, image="a.jpg") for i in range(60)]
    records += [conversation(f"Say {i}", "x", id=i) for i in range(20)]
    for options in ({"num_templates": 40}, {"ratio": 0.5, "num_templates": None}):
        _, manifest = run(tmp_path, records, text_only="image-free", **options)
        used = [entry["template"] for pool in manifest["used"].values() for entry in pool if entry["count"]]
        assert manifest["pools"] == {
            "image": {"templates": 30, "changed_turns": 60},
            "image_free": {"templates": 10, "changed_turns": 20},
        }
        assert (len(used), manifest["num_templates"]) == (40, len(set(used)))
        assert manifest["ratio"] == len(set(used)) / 80
    unasked = {"id": "u", "conversations": [{"from": "gpt", "value": "x"}]}
    with pytest.raises(TemplateError, match=r"10 templates for 2 questions in .* take 8 or fewer in all"):
        run(tmp_path, records[:62] + [unasked] * 18, text_only="image-free", num_templates=40)
    free = len(QUESTION.image_free())
    with pytest.raises(TemplateError, match=f"there are {free:,} of them; take {free:,} or fewer"):
        run(tmp_path, [records[-1]] * (free + 1), text_only="image-free", num_templates=free + 1)


@pytest.mark.parametrize(("ratio", "expected"), [(7.5e-3, 8), (1.5e-2, 15), (1e-4, 1)])
def test_ratio_of_templates_to_records(tmp_path, ratio, expected):
    records = [conversation("<image>\nWho?", "He", id=i, image="a.jpg") for i in range(1000)]
    _, manifest = run(tmp_path, records, ratio=ratio, num_templates=None)
    assert manifest["num_templates"] == expected


@pytest.mark.parametrize(("n", "evaluated"), [(7, 7), (150, 100)])
def test_the_manifest_is_an_in_domain_set(tmp_path, n, evaluated, monkeypatch):
    from lmms_eval_templates.settings import Settings

    records = [conversation("<image>\nWho?", "He", id=i, image="a.jpg") for i in range(200)]
    run(tmp_path, records, num_templates=n)
    manifest = manifest_path(tmp_path / "new_mix.json")
    loaded = Settings.from_environment({"TM_TEMPLATES": str(manifest)}).templates
    assert loaded == load_template_set(manifest)
    assert len(loaded) == evaluated
    assert all(template in VQA for template in loaded.templates)
    assert [t.split("{question}")[0] + "{question}" for t in loaded.templates] == QUESTION.sample(n, 0)[:evaluated]


def test_same_output_in_every_process(tmp_path):
    records = [conversation(f"<image>\nWho is {i}?", "He", id=i, image="a.jpg") for i in range(50)]
    records += [conversation("hello", "hi", id="t")] * 5
    (tmp_path / "in.json").write_text(json.dumps(records))
    outputs = []
    for seed in ("0", "1"):
        command = [sys.executable, "-m", "lmms_eval_templates.cli", "augment", "in.json", f"out{seed}.json"]
        command += ["--num-templates", "20", "--seed", "3", "--text-only", "image-free", "--turns", "all"]
        subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": seed}, check=True)
        outputs.append([(tmp_path / f"out{seed}{ending}.json").read_bytes() for ending in ("", ".manifest")])
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0][0]) != records


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample is not part of the repository")
def test_sample_of_the_real_mix(tmp_path):
    new, manifest = run(tmp_path, SAMPLE.read_bytes(), num_templates=7)
    old = json.loads(SAMPLE.read_text())
    changed = [str(a["id"]) for a, b in zip(new, old, strict=True) if a != b]
    assert changed == ["000000000001", "000000000002", "aokvqa_3", "ocr_7", "10", "11", "12"]
    assert manifest["kinds"] == {
        **{"question": 6, "multiple-choice": 1, "region": 1, "bounding-box": 1, "caption": 1, "text-only": 2},
    }
