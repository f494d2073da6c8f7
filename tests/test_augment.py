"""Augmentation: every kind of record, text as data, byte-exactness, bad records. Expected texts are written by hand."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lmms_eval_templates.training.augment import augment
from lmms_eval_templates.training.manifest import AugmentSignature, manifest_path
from lmms_eval_templates.training.plan import Options
from lmms_eval_templates.training.rules import kind_of, take_apart

from lmms_eval_templates import CHOICE, QUESTION, VQA, TemplateError, load_template_set
from lmms_eval_templates.cli import main

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


def conversation(*texts, **fields):
    turns = [{"from": ("human", "gpt")[i % 2], "value": text} for i, text in enumerate(texts)]
    return {**fields, "conversations": turns}


def run(tmp_path, records, name="mix.json", **options):
    """Augments records; returns the new ones and the manifest."""
    source, target = tmp_path / name, tmp_path / f"new_{name}"
    lines = name.endswith(".jsonl")
    if isinstance(records, bytes):
        source.write_bytes(records)
    else:
        source.write_text("\n".join(map(json.dumps, records)) if lines else json.dumps(records, indent=1))
    manifest = augment(source, target, Options(**{"num_templates": 1, **options}), progress=False)
    text = target.read_text("utf-8")
    new = [json.loads(line) for line in text.split("\n") if line] if lines else json.loads(text)
    assert json.loads(manifest_path(target).read_text()) == manifest
    return new, manifest


def first_turn(record):
    return record["conversations"][0]["value"]


def around(question, index=0, seed=0, n=1):
    """The question in the template that seed and number stand for, from the template space itself."""
    template = QUESTION.sample(n, seed)[index]
    assert template.endswith("{question}")
    return template[: -len("{question}")] + question


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


GOOD = conversation("<image>\nWho?", "He", id="good", image="a.jpg")
BAD = {
    "no conversations": ({"id": "bad"}, "no conversations"),
    "empty": ({"id": "bad", "conversations": []}, "must be a list of turns"),
    "unknown role": ({"id": "bad", "conversations": [{"from": "robot", "value": "x"}]}, 'unknown role "robot"'),
    "no role": ({"id": "bad", "messages": [{"content": "x"}]}, "unknown role null"),
    "no text": ({"id": "bad", "conversations": [{"from": "human", "value": 3}]}, "must be text"),
    "odd turn": ({"id": "bad", "conversations": ["x"]}, "must be an object"),
    "odd part": ({"id": "bad", "messages": [{"role": "user", "content": ["x"]}]}, "part 1"),
    "number": (17, "not an object"),
    "list": ([GOOD], "not an object"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("form", ["mix.json", "mix.jsonl"])
def test_bad_records(tmp_path, name, place, form):
    bad, reason = BAD[name]
    records = [GOOD, GOOD, GOOD]
    records.insert(place, bad)
    if form == "mix.jsonl" and place == 0 and not isinstance(bad, dict):
        pytest.skip("a file that begins so is no JSON Lines")
    with pytest.raises(TemplateError, match=re.escape(reason)) as error:
        run(tmp_path, records, name=form)
    assert f"record {place}" in str(error.value)
    assert ('id "bad"' in str(error.value)) == isinstance(bad, dict)
    assert sorted(path.name for path in tmp_path.iterdir()) == [form]
    new, manifest = run(tmp_path, records, name=form, on_error="skip")
    assert [first_turn(record) for record in new] == ["<image>\n" + around("Who?")] * 3
    (listed,) = manifest["bad_records"]
    assert listed["record"] == place
    assert reason in listed["reason"]


G = json.dumps(GOOD)
BROKEN = {
    "trailing comma inside": (f'[{G},{{"id":1,}},{G}]', len(G) + 10, 2, 1),
    "cut off": (f'[{G},{G},{{"id":1,"conversations":[{{"from":"hum', 2 * len(G) + 36, 2, 2),
    "not closed": (f"[{G},{G}", 2 * len(G) + 2, 2, 1),
    "comma before the end": (f"[{G},{G},]", 2 * len(G) + 3, 2, 1),
    "comma missing": (f"[{G} {G},{G}]", len(G) + 2, 2, 1),
    "text after the end": (f"[{G},{G}] x", 2 * len(G) + 4, 2, 1),
    "quote missing": (f'[{G},{{"id":"x, "conversations":[]}},{G},{G}]', len(G) + 13, 3, 1),
    "brace missing": (f'[{G},{{"id":{{"a":1,{G},{G}]', len(G) + 15, 3, 1),
    "last one broken": (f'[{G},{G},{{"id":}}]', 2 * len(G) + 9, 2, 1),
    "not a number": (f'[{G},{{"id":NaN}},{G}]', len(G) + 2, 2, 1),
    "lines": (f'{G}\n{{"id":1,}}\n\n{G}\n', len(G) + 9, 2, 1),
    "two in a line": (f"{G}\n{G} {G}\n{G}", 2 * len(G) + 1, 2, 1),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("stretch", [1 << 20, 50])
def test_broken_json_is_named_by_byte(tmp_path, name, stretch, monkeypatch):
    from lmms_eval_templates.training import scan as module

    monkeypatch.setattr(module, "_STRETCH", stretch)  # bytes that are read at once
    text, byte, kept, faults = BROKEN[name]
    form = "mix.json" if text.startswith("[") else "mix.jsonl"
    with pytest.raises(TemplateError, match=f"broken JSON at byte {byte:,}: "):
        run(tmp_path, text.encode(), name=form)
    new, manifest = run(tmp_path, text.encode(), name=form, on_error="skip")
    assert [first_turn(record) for record in new] == ["<image>\n" + around("Who?")] * kept
    assert len(manifest["bad_records"]) == faults


def test_one_broken_record_in_a_large_file(tmp_path, monkeypatch):
    """The rest of the file is neither read for it nor lost."""
    from lmms_eval_templates.training import scan as module

    monkeypatch.setattr(module, "_STRETCH", 1000)
    monkeypatch.setattr(module, "_LONGEST_RECORD", 5000)
    text = "[" + ",\n".join([G] * 100 + ['{"id": "x", "conversations": [}'] + [G] * 1000) + "]"
    with pytest.raises(TemplateError, match=f"record 100 at byte {100 * (len(G) + 2) + 1:,}: broken JSON"):
        run(tmp_path, text.encode())
    new, manifest = run(tmp_path, text.encode(), on_error="skip")
    assert len(new) == 1100
    assert [bad["record"] for bad in manifest["bad_records"]] == [100]


def test_wrong_encoding_is_named_by_byte(tmp_path):
    text = f"[{G},".encode() + G.replace("He", "é").encode("latin-1") + b"]"
    with pytest.raises(TemplateError, match=f"byte {text.index(0xE9):,}: not UTF-8"):
        run(tmp_path, text)
    new, _ = run(tmp_path, text, on_error="skip")
    assert len(new) == 1


def test_records_across_the_stretches_a_file_is_read_in(tmp_path, monkeypatch):
    from lmms_eval_templates.training import scan as module

    monkeypatch.setattr(module, "_STRETCH", 7)
    records = [conversation("<image>\nWho is 图😀" + "x" * i + "?", "é" * 5, id=i, image="a.jpg") for i in range(40)]
    for name in ("mix.json", "mix.jsonl"):
        new, _ = run(tmp_path, records, name=name)
        for i, (record, old) in enumerate(zip(new, records, strict=True)):
            assert first_turn(record) == "<image>\n" + around("Who is 图😀" + "x" * i + "?")
            assert record["conversations"][1:] == old["conversations"][1:]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (b"", {}, "is empty"),
        (b"hello", {}, "begins with 'h'"),
        (b"[]", {}, "no record"),
        (json.dumps([GOOD]).encode(), {"num_templates": 2}, "2 templates for 1 questions"),
        (json.dumps([conversation("hi", "ho")]).encode(), {}, "none of 1 records"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, content, options, message):
    with pytest.raises(TemplateError, match=re.escape(message)):
        run(tmp_path, content, **options)
    assert not (tmp_path / "new_mix.json").exists()


@pytest.mark.parametrize("options", [{}, {"num_templates": 1, "ratio": 0.1}, {"num_templates": 0}, {"ratio": 2.0}])
def test_options_that_cannot_be(options):
    with pytest.raises(TemplateError):
        Options(**options)


def test_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in.json").write_text(json.dumps([GOOD] * 4))
    assert main(["augment", "in.json", "out.json", "--num-templates", "3"]) == 0
    assert "3 templates on 4 turns of 4 of 4 records" in capsys.readouterr().out
    assert main(["augment", "in.json", "in.json", "--num-templates", "3"]) == 2
    assert main(["augment", "no.json", "out.json", "--num-templates", "3"]) == 2
    assert main(["augment", "in.json", "no/out.json", "--num-templates", "3"]) == 2
    Path("in.json").write_text(json.dumps([GOOD, {"id": "bad"}, GOOD]))
    assert main(["augment", "in.json", "out.json", "--num-templates", "2"]) == 2
    assert 'record 1 (id "bad")' in capsys.readouterr().err
    assert main(["augment", "in.json", "out.json", "--num-templates", "2", "--on-error", "skip"]) == 0
    assert "left out: 1 bad records" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["o.json", "o.manifest.json", "o.json.partial", "o.manifest.json.partial"])
@pytest.mark.parametrize("link", [None, os.link, os.symlink])
def test_the_input_is_never_written_to(tmp_path, name, link):
    source = tmp_path / ("in.json" if link else name)
    source.write_text(json.dumps([GOOD]))
    if link:
        link(source, tmp_path / name)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(TemplateError, match=re.escape(f"{tmp_path / name} is the input")):
        augment(source, tmp_path / "o.json", Options(num_templates=1), progress=False)
    assert json.loads(source.read_text()) == [GOOD]
    assert sorted(tmp_path.iterdir()) == before


def test_what_stands_where_files_are_written(tmp_path):
    source, foreign = tmp_path / "in.json", tmp_path / "foreign"
    source.write_text(json.dumps([GOOD, {"id": "bad"}]))
    foreign.write_text("mine")
    os.symlink(foreign, tmp_path / "o.json.partial")
    os.link(foreign, tmp_path / "o.manifest.json.partial")
    augment(source, tmp_path / "o.json", Options(num_templates=1, on_error="skip"), progress=False)
    assert foreign.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign", "in.json", "o.json", "o.manifest.json"]
    # The names are looked at before the records, of which one is bad.
    (tmp_path / "p.manifest.json").mkdir()
    long = "x" * 250 + ".json"
    for target, message in (("p.json", "p.manifest.json is a folder"), (long, "File name too long"), ("p", "p.jsonl")):
        with pytest.raises(TemplateError, match=message):
            augment(source, tmp_path / target, Options(num_templates=1), progress=False)


def test_json_and_json_lines_have_manifests_of_their_own():
    names = ["a/mix.json", "a/mix.jsonl", "a/mix.v2.json", "a/mix.v2.jsonl"]
    assert [str(manifest_path(name)) for name in names] == [
        *("a/mix.manifest.json", "a/mix.jsonl.manifest.json"),
        *("a/mix.v2.manifest.json", "a/mix.v2.jsonl.manifest.json"),
    ]


def test_no_output_of_a_killed_run(tmp_path):
    with (tmp_path / "in.json").open("w") as file:
        file.write("[" + ",\n".join([G] * 300_000) + "]")
    command = [sys.executable, "-m", "lmms_eval_templates.cli", "augment", "in.json", "out.json"]
    process = subprocess.Popen([*command, "--num-templates", "5"], cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not (tmp_path / "out.json.partial").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "out.json").exists()


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample is not part of the repository")
def test_sample_of_the_real_mix(tmp_path):
    new, manifest = run(tmp_path, SAMPLE.read_bytes(), num_templates=7)
    old = json.loads(SAMPLE.read_text())
    changed = [str(a["id"]) for a, b in zip(new, old, strict=True) if a != b]
    assert changed == ["000000000001", "000000000002", "aokvqa_3", "ocr_7", "10", "11", "12"]
    assert manifest["kinds"] == {
        **{"question": 6, "multiple-choice": 1, "region": 1, "bounding-box": 1, "caption": 1, "text-only": 2},
    }
