import pytest

from lmms_eval_templates import TemplateError
from lmms_eval_templates.fields import FieldsAdapter, Item, clean_text, unique_ids

ADAPTER = FieldsAdapter(id="id", question="q", choices="options", answer="a", image="image")


def item(adapter=ADAPTER, **row):
    return adapter.item({"id": "r1", "q": "Q?", "options": ["x", "y", "z"], "a": "B", **row}, 3, "task_x")


@pytest.mark.parametrize("answer", ["B", "(B)", "b", "B."])
def test_letters_in_all_spellings(answer):
    assert item(a=answer).answer == 1


def test_options_written_as_a_string_up_to_nine():
    # MMMU: lists of 2 to 9 written as a Python string, quotes and all.
    options = "['$6', \"it's\", 'c', 'd', 'e', 'f', 'g', 'h', 'i']"
    found = item(options=options, a="I")
    assert found.choices == ("$6", "it's", "c", "d", "e", "f", "g", "h", "i") and found.answer == 8


def test_options_written_as_json():
    assert item(options='["a\\/b", "it\'s"]').choices == ("a/b", "it's")


def test_a_missing_choice_shifts_no_letter():
    # MMBench: columns A to D, missing ones hold the string "nan"; the answer is the column's letter.
    adapter = FieldsAdapter(id="id", question="q", choices=["A", "B", "C", "D"], answer="a", image="i", context="hint")
    row = {"id": 1, "q": "Q?", "A": "x", "B": "nan", "C": "z", "D": "nan", "a": "C", "hint": "nan"}
    found = adapter.item(row, 0, "t")
    assert (found.choices, found.answer, found.question) == (("x", "z"), 1, "Q?")
    assert adapter.item({**row, "hint": "Read this."}, 0, "t").question == "Read this.\nQ?"
    with pytest.raises(TemplateError, match="task t, row 0, id 1"):
        adapter.item({**row, "a": "B"}, 0, "t")


def test_text_and_index_answers():
    text = FieldsAdapter(id="id", question="q", choices="options", answer="a", image="i", answer_is="text")
    index = FieldsAdapter(id="id", question="q", choices="options", answer="a", image="i", answer_is="index")
    assert item(text, options=["14", "4"], a="4").answer == 1
    assert item(index, a=2).answer == 2
    for adapter, answer in ((text, "w"), (index, 3), (index, "B")):
        with pytest.raises(TemplateError, match=r"task task_x, row 3, id 'r1': the answer .* is not exactly one"):
            item(adapter, a=answer)
    with pytest.raises(TemplateError, match="not exactly one"):
        item(text, options=["4", "4"], a="4")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"a": "D"}, "answer 'D'"),
        ({"a": ""}, "answer ''"),
        ({"a": "AB"}, "answer 'AB'"),
        ({"options": ["x"]}, "1 choices"),
        ({"options": [str(i) for i in range(27)]}, "27 choices"),
        ({"options": "not a list"}, "no list of choices"),
        ({"options": None}, "no list of choices"),
        ({"options": ["x", None, "z"]}, "no list of choices"),
        ({"options": "['x' 'y' 'z']"}, "no list of choices"),
        ({"options": ["x", "<image 1>"]}, "choice B is empty"),
        ({"q": " <image 1> "}, "question in column 'q' is empty"),
    ],
)
def test_rows_that_cannot_be_asked_are_refused_by_name(row, reason):
    with pytest.raises(TemplateError, match=reason) as caught:
        item(**row)
    assert "task task_x, row 3, id 'r1'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<image 1> What is X?", "What is X?"),
        ("What is X?\n<image>", "What is X?"),
        ("As shown in <image 1>, what?", "As shown in the image, what?"),
        ("What does <image 1> show in <image 1>?", "What does the image show in the image?"),
        ("The figure <image 1> shows a cat.", "The figure shows a cat."),
        ("<image 1> shows a cat.", "The image shows a cat."),
        ("Is a < b and  c > d?", "Is a < b and  c > d?"),
    ],
)
def test_image_marks_never_reach_the_model(text, expected):
    assert clean_text(text) == expected


def test_keep_rule():
    adapter = FieldsAdapter("id", "q", "o", "a", "image", keep={"kind": ["mc", "vqa"], "image_2": None})
    assert adapter.keeps({"kind": "mc", "image_2": None})
    assert adapter.keeps({"kind": "vqa", "image_2": None})
    assert not adapter.keeps({"kind": "open", "image_2": None})
    assert not adapter.keeps({"kind": "mc", "image_2": 1})


def test_category_from_a_pattern():
    # MMMU: the subject stands in the id.
    adapter = FieldsAdapter("id", "q", "options", "a", "i", category="id", category_pattern=r"^[a-z]+_(.+)_\d+$")
    assert item(adapter, id="validation_Art_Theory_12").category == "Art_Theory"
    with pytest.raises(TemplateError, match="does not match"):
        item(adapter, id="12")


def test_repeated_ids_become_unique_whatever_the_order():
    a, b = Item("1", "c", "Q1?", ("x", "y"), 0, 0), Item("1", "c", "Q2?", ("x", "y"), 0, 1)
    forward = {i.question: i.id for i in unique_ids([a, b], "t", lambda row: "image")}
    backward = {i.question: i.id for i in unique_ids([b, a], "t", lambda row: "image")}
    assert forward == backward and len(set(forward.values())) == 2
    # The same question about two images, and about one.
    again = [Item("1", "c", "Q1?", ("x", "y"), 0, row) for row in (0, 1)]
    assert len({i.id for i in unique_ids(again, "t", str)}) == 2
    with pytest.raises(TemplateError, match="stand in the data twice"):
        unique_ids(again, "t", lambda row: "image")


def test_faulty_mappings_are_refused_with_all_faults():
    with pytest.raises(TemplateError) as caught:
        FieldsAdapter.from_mapping({"id": "id", "quesiton": "q", "answer_is": "word"}, "t")
    message = str(caught.value)
    for part in ("unknown key 'quesiton'", "question is missing", "choices is missing", "image is missing", "'word'"):
        assert part in message
    with pytest.raises(TemplateError, match="must map"):
        FieldsAdapter.from_mapping(["id"], "t")
