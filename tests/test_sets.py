import json
import re

import pytest
from conftest import SHARED

from lmms_eval_templates import CHOICE, QUESTION, VQA, TemplateError, load_template_set, template_set
from lmms_eval_templates.sets import fill


def test_simple_is_the_paper_s_three():
    # Section 3.1.
    assert template_set("simple").templates == (
        "{question}\n{choices}",
        "Question: {question}\nChoices: {choices}",
        "Question: {question}\nSelect from the following choices: {choices}",
    )


def test_complex_is_frozen_with_its_indices():
    from importlib import resources

    stored = json.loads(resources.files("lmms_eval_templates").joinpath("sets/complex.json").read_text())
    templates = template_set("complex").templates
    assert len(set(templates)) == 100
    assert [VQA.index(text) for text in templates] == stored["indices"]
    assert stored["space_hash"] == VQA.hash


def test_ood_lies_outside_the_space_in_every_part():
    templates = template_set("ood").templates
    assert len(set(templates)) == 25
    for text in templates:
        assert text not in VQA
    # Construction: the words that lead to the placeholder are in no meta-template.
    for space, placeholder, other in ((QUESTION, "{question}", "{choices}"), (CHOICE, "{choices}", "{question}")):
        leads = [re.split(re.escape(other), text.split(placeholder)[0])[-1].split() for text in templates]
        openings = {" ".join(text.split()[:3]).lower() for text in space}
        outside = {" ".join(lead[:3]).lower() for lead in leads if lead} - openings
        assert len(outside) >= 15, outside


def test_hash_depends_on_texts_and_order(tmp_path):
    (tmp_path / "a.json").write_text('["{question} {choices}", "{choices} {question}"]')
    (tmp_path / "b.json").write_text('["{choices} {question}", "{question} {choices}"]')
    a, b = load_template_set(tmp_path / "a.json"), load_template_set(tmp_path / "b.json")
    assert a.hash != b.hash and len(a.hash) == 64 and a.name == "a"


@pytest.mark.parametrize(("name", "count"), [("simple", 3), ("complex", 100), ("heldout", 25)])
def test_published_sets_load(name, count):
    path = SHARED / "published_templates" / f"{name}_templates.json"
    if not path.exists():
        pytest.skip("the published sets are not here")
    assert len(load_template_set(path)) == count


def test_three_formats_give_the_same_set(tmp_path):
    texts = ["{question}\n{choices}", "Q {question} C {choices}"]
    (tmp_path / "list.json").write_text(json.dumps(texts))
    (tmp_path / "published.json").write_text(json.dumps({"MultiChoiceImageQa": texts}))
    (tmp_path / "manifest.json").write_text(json.dumps({"seed": 0, "templates": texts}))
    (tmp_path / "lines.txt").write_text("{question}\\n{choices}\nQ {question} C {choices}\n")
    hashes = {load_template_set(path).hash for path in tmp_path.iterdir()}
    assert len(hashes) == 1


def test_all_faults_are_reported_with_file_and_position(tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(
        json.dumps(
            [
                "{question} {choices}",
                "{question}",
                "{question} {question} {choices}",
                "{question} {choices} {answer}",
                "{question} {choices} }",
                "{question} {choices}",
                7,
            ]
        )
    )
    with pytest.raises(TemplateError) as caught:
        load_template_set(path)
    lines = str(caught.value).split("\n")
    assert all(line.startswith(f"{path}, template ") for line in lines)
    found = {int(re.search(r"template (\d+):", line)[1]): line for line in lines}
    assert sorted(found) == [2, 3, 4, 5, 6, 7]
    assert "{choices} stands 0 times" in found[2]
    assert "{question} stands 2 times" in found[3]
    assert "unknown placeholder {answer} at character 22" in found[4]
    assert "lone brace } at character 22" in found[5]
    assert "repeats template 1" in found[6]
    assert "7 is no text" in found[7]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.json", "[]", "no templates"),
        ("empty.txt", "\n\n", "no templates"),
        ("broken.json", '["a",\n', "line 2"),
        ("other.json", '{"x": 1}', "no list of templates"),
        ("blank_line.txt", "{question} {choices}\n\n{choices} {question}\n", "line 2"),
    ],
)
def test_unusable_files_are_refused(tmp_path, name, content, reason):
    (tmp_path / name).write_text(content)
    with pytest.raises(TemplateError, match=reason):
        load_template_set(tmp_path / name)


def test_missing_files_and_names_are_refused(tmp_path):
    with pytest.raises(TemplateError, match="cannot read"):
        load_template_set(tmp_path / "nowhere.json")
    with pytest.raises(TemplateError, match="simple, complex, ood"):
        template_set("compelx")


def test_fill_treats_question_and_choices_as_text():
    prompt = fill("Q: {question}\nC: {choices}", "What is {choices} or %s \\1 {x}?", "(A) {question} (B) b")
    assert prompt == "Q: What is {choices} or %s \\1 {x}?\nC: (A) {question} (B) b"
