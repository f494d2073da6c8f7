"""Augmentation: records and files that cannot be used, and what is left behind then."""

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
from lmms_eval_templates.training.manifest import manifest_path
from lmms_eval_templates.training.plan import Options
from training_data import around, conversation, first_turn, run

from lmms_eval_templates import TemplateError
from lmms_eval_templates.cli import main

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
