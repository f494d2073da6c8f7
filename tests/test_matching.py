import json
import time
from pathlib import Path

import pytest
from conftest import SHARED

from lmms_eval_templates import match_answer

PETS = ["cat", "dog", "bird", "fish"]
NUMBERS = ["1", "2", "12", "21"]
CLOSER = ["A is closer", "B is closer"]
NINE = [str(n) for n in range(1, 10)]

# response, choices, expected choice, expected step. Judged by hand: what would a person say that the response means?
CASES = [
    # identifiers
    ("B", PETS, 1, "identifier"),
    ("(b)", PETS, 1, "identifier"),
    ("[B]", PETS, 1, "identifier"),
    ('"B"', PETS, 1, "identifier"),
    ("**B**", PETS, 1, "identifier"),
    ("$B$", PETS, 1, "identifier"),
    ("Option B", PETS, 1, "identifier"),
    ("A.", PETS, 0, "identifier"),
    ("USER: B", PETS, 1, "identifier"),
    ("I think it's B.", PETS, 1, "identifier"),
    ("Ｂ．", PETS, 1, "identifier"),
    ("答案：（B）", PETS, 1, "identifier"),
    ("我选择B。", PETS, 1, "identifier"),
    ("H", NINE, 7, "identifier"),
    ("I", NINE, 8, "identifier"),
    ("(A)", ["A is darker", "B is darker", "About the same"], 0, "identifier"),
    ("Point A", CLOSER, 0, "identifier"),
    # contents
    ("'dog'", PETS, 1, "content"),
    ("The animal is a dog.", PETS, 1, "content"),
    ("A cat is on the mat", PETS, 0, "content"),
    ("I see a fish swimming.", PETS, 3, "content"),
    ("dog dog dog", PETS, 1, "content"),
    ("two", NUMBERS, 1, "content"),
    ("There are twelve birds.", NUMBERS, 2, "content"),
    ("3.5 meters", ["3", "3.5", "5"], 1, "content"),
    ("1,000", ["1", "1,000", "100"], 1, "content"),
    ("50%", ["5", "50", "50%"], 2, "content"),
    ("C++ is used", ["C", "C++"], 1, "content"),
    ("No, there is no dog.", ["yes", "no"], 1, "content"),
    ("The dark red one", ["red", "dark red", "light red", "blue"], 1, "content"),
    ("None of the above", ["x", "None of the above"], 1, "content"),
    ("I think 3", NINE, 2, "content"),
    # both
    ("B: dog", PETS, 1, "both"),
    ("b) dog", PETS, 1, "both"),
    ("(B)dog", PETS, 1, "both"),
    ("**B. dog**", PETS, 1, "both"),
    ("The correct option is B: dog", PETS, 1, "both"),
    ("The answer would be option (C), bird.", PETS, 2, "both"),
    ("Point B is closer.", CLOSER, 1, "content"),
    # statements in longer texts
    ("The answer is A", PETS, 0, "identifier"),
    ("The answer is A because it meows", PETS, 0, "identifier"),
    ("the answer is a dog.", PETS, 1, "content"),
    ("Answer: A dog", PETS, 1, "content"),
    ("I'd go with D.", PETS, 3, "identifier"),
    ("Between A and B, I choose B.", PETS, 1, "identifier"),
    ("Option C is the correct answer.", PETS, 2, "identifier"),
    ("A is wrong. B is wrong. C is right.", PETS, 2, "identifier"),
    ("Option A is incorrect; option B is incorrect; so the answer is C.", PETS, 2, "identifier"),
    ("The dog is the correct answer, not the cat.", PETS, 1, "content"),
    ("It is not a cat, it is a dog.", PETS, 1, "content"),
    ("The answer is not A. It is B.", PETS, 1, "identifier"),
    ("The answer is A, not B.", PETS, 0, "identifier"),
    # containers
    ("<think>I think A</think>The answer is (B)", PETS, 1, "identifier"),
    ("Therefore the answer is \\boxed{\\text{C}}.", PETS, 2, "identifier"),
    ('```json\n{"answer": "C"}\n```', PETS, 2, "identifier"),
    ("B<|im_end|>", PETS, 1, "identifier"),
    ("A. cat\nB. dog\nC. bird\nD. fish\n\nAnswer: C", PETS, 2, "identifier"),
    # nothing decided
    ("Both A and B are possible.", PETS, None, None),
    ("Answer: A or B", PETS, None, None),
    ("The answer is either A or B", PETS, None, None),
    ("Neither A nor B", PETS, None, None),
    ("(B) cat", PETS, None, None),
    ("A bird and a dog", PETS, None, None),
    ("There is no cat in the image.", PETS, None, None),
    ("The answer is (F).", PETS, None, None),
    ("I", PETS, None, None),
    ("As an AI model I cannot see images.", PETS, None, None),
    ("<think>The answer is A", PETS, None, None),
    ("A. cat\nB. dog\nC. bird\nD. fish", PETS, None, None),
    ("Catalog", PETS, None, None),
    ("2.5", NUMBERS, None, None),
    ("-2", NUMBERS, None, None),
    ("   ", PETS, None, None),
]


@pytest.mark.parametrize(("response", "choices", "choice", "step"), CASES, ids=[case[0][:30] for case in CASES])
def test_what_a_person_would_say(response, choices, choice, step):
    assert match_answer(response, choices) == (choice, step)


def test_two_thousand_replies_of_a_hundred_kinds():
    """Replies as models write them, each judged by what a careful reader takes it to mean.

    The matcher was developed on them, and seven that it still misjudges are not in the file: this guards against
    relapses and says nothing about the share of unseen replies that it gets right.
    """
    lines = (Path(__file__).parent / "answers.jsonl").read_text("utf-8").splitlines()
    cases = [json.loads(line) for line in lines]
    assert len(cases) > 2000
    wrong = [case for case in cases if match_answer(case["response"], case["choices"]).choice != case["expected"]]
    assert not wrong, wrong


def test_replies_written_independently_of_the_matcher():
    """Replies in the ways of three kinds of models, written by who had not seen the matcher.

    Of the first 600, strings decided 387, 3 of them wrongly, before the matcher was changed on their account; of the
    240 written after that, 182, none wrongly. What strings leave open, mostly synonyms, goes to sentence embeddings.
    """
    lines = (Path(__file__).parent / "unseen_answers.jsonl").read_text("utf-8").splitlines()
    cases = [json.loads(line) for line in lines]
    assert len(cases) == 840
    decided = [(case, match_answer(case["response"], case["choices"]).choice) for case in cases]
    wrong = [case for case, choice in decided if choice not in (None, case["expected"])]
    assert len(wrong) <= 1, wrong  # a caption, cut off, that names two numbers
    assert sum(choice is not None for _, choice in decided) >= 578


FITS = ["Yes, the piece fits", "No, the piece does not fit"]


@pytest.mark.parametrize(
    ("response", "choice"),
    [
        *(("no it does not", 1), ("No, it does not.", 1), ("Yes.", 0), ("yes", 0), ("(B) No", 1)),
        *(("Yes, the piece fits.", 0), ("There is no piece.", None), ("No idea.", None), ("Yes and no.", None)),
    ],
)
def test_choices_that_begin_with_yes_and_no(response, choice):
    assert match_answer(response, FITS).choice == choice


# A reader sees an answer where strings alone may go wrong, so that they leave it open.
HARD = [
    ("A. cat ❌\nB. dog ✅\nC. bird ❌\nD. fish ❌", ["cat", "dog", "bird", "fish"], 1),
    ("(A) cat ❌, (B) dog ✅, (C) bird ❌, (D) fish ❌", ["cat", "dog", "bird", "fish"], 1),
    ("Cat ❌ Dog ✅ Bird ❌ Fish ❌", ["cat", "dog", "bird", "fish"], 1),
    ("A. cat ✘\nB. dog ✔\nC. bird ✘\nD. fish ✘", ["cat", "dog", "bird", "fish"], 1),
    ("A) cat - ❌ no whiskers\nB) dog - ✅ clear match\nC) bird - ❌\nD) fish - ❌", ["cat", "dog", "bird", "fish"], 1),
    ("- Cat ❌\n- Dog ✅", ["cat", "dog"], 1),
    ("(A) Yes ❌\n(B) No ✅", ["Yes", "No"], 1),
    ("Point A is closer to the camera. The point behind it is B.", ["A", "B"], 0),
    ("A is closer to the camera, while the point further away is B.", ["A", "B"], 0),
    ("Image B resembles the reference most. The next most similar one is C.", ["A", "B", "C", "D"], 1),
    ("B looks the same as the reference. The odd one out is D.", ["cat", "dog", "bird", "fish"], 1),
    ("At first glance I'd guess 3, but counting carefully there are 4.", ["2", "3", "4", "5"], 2),
    ("I would guess there are 3 people, yet a closer look shows 4.", ["2", "3", "4", "5"], 2),
    ("We can estimate B is at 5 m. Point A is nearer.", ["A", "B"], 0),
    ("Let's estimate: A is about 2 m away, B about 1 m. B is closer.", ["A", "B"], 1),
    ("We can estimate 12 for 2019 and 18 for 2020; the increase is 6.", ["6", "12", "18"], 0),
    ("I'd guess the red car is parked. The moving one is blue.", ["red", "blue", "green"], 1),
    ("Point b is farther away; the closer one is point a", ["A", "B"], 0),
    ("Picture b shows the back, the odd one is picture a", ["A", "B"], 0),
    ("45-degree angle, half of 90 degrees", ["45 degrees", "90 degrees"], 0),
]


@pytest.mark.parametrize(("response", "choices", "reader"), HARD, ids=[case[0][:30] for case in HARD])
def test_no_other_choice_than_a_reader_would_take(response, choices, reader):
    assert match_answer(response, choices).choice in (None, reader)


@pytest.mark.parametrize(
    "noise", ["A ", "(A) cat (B) dog ", "cat dog ", "答案是", " \n", "((", "\\boxed{", '{"a":', "no, "]
)
def test_a_model_that_repeats_itself_costs_no_time(noise):
    began = time.perf_counter()
    match_answer(noise * (20_000 // len(noise)), PETS)
    assert time.perf_counter() - began < 2


def _published_cases():
    path = SHARED / "cases" / "answers.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("case", _published_cases(), ids=lambda case: case["response"][:30])
def test_cases_from_public_bug_reports(case):
    assert match_answer(case["response"], case["choices"]).choice == case["expected"]


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("B", (1, "identifier")),
        ("(B)", (1, "identifier")),
        (" dog ", (1, "content")),
        ("(B) dog", (1, "both")),
        # What the paper's exact strings leave to embeddings:
        ("B.", (None, None)),
        ("Dog", (None, None)),
        ("The answer is (B).", (None, None)),
        ("B. dog", (None, None)),
        ("", (None, None)),
    ],
)
def test_strict_is_the_paper_s_exact_rule(response, expected):
    assert match_answer(response, PETS, strict=True) == expected


def test_choices_may_be_anything():
    assert match_answer("x", ["", "x"]) == (1, "content")
    assert match_answer("(.*)", ["(.*)", "[a-z]+"]) == (0, "content")
    assert match_answer("B", ["same", "same"]) == (1, "identifier")
    assert match_answer("same", ["same", "same"]) == (None, None)
    assert match_answer("Z", [str(n) for n in range(26)]) == (25, "identifier")
