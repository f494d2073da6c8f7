import random
import re
import subprocess
import sys
from collections import Counter
from importlib import resources

import numpy as np
import pytest
import yaml
from scipy import stats

from lmms_eval_templates import CHOICE, QUESTION, VQA, MetaTemplate, TemplateSpace, assign_templates
from lmms_eval_templates.space import JointSpace

GOLDEN_INDICES = [39855860672, 13233345262, 7002762144, 8944067607, 246011609]
GOLDEN_TEXTS = [
    "Once you have observed the given image, you are asked to answer this question: {question}\n"
    "From the listed alternatives, select the most suitable one:\n{choices}",
    "Please give us the answer to the question below regarding the image:\n{question}\n"
    "After reading these options, choose the correct one:\n{choices}",
]

# Sections 2.2 and the abstract of the paper.
PAPER_META_TEMPLATES = {"question": 24, "choice": 14}
PAPER_TEMPLATES = {"question": 15_000, "choice": 249_000}
PAPER_JOINT = 39_000_000_000
SPACES = {"question": QUESTION, "choice": CHOICE}


@pytest.fixture(scope="module")
def everything():
    return {name: list(space) for name, space in SPACES.items()}


def test_the_spaces_reach_the_paper_s_claim_with_distinct_strings(everything):
    distinct = {}
    for name, space in SPACES.items():
        assert len(space.leaves) >= PAPER_META_TEMPLATES[name]
        distinct[name] = len(set(everything[name]))
        assert distinct[name] == len(space) >= PAPER_TEMPLATES[name]
    # The question always ends the first part, so that no two pairs of templates give the same joint string.
    assert all(text.endswith("{question}") for text in everything["question"])
    assert distinct["question"] * distinct["choice"] == len(VQA) >= PAPER_JOINT


def _read_tree(name):
    bank = yaml.safe_load(resources.files("lmms_eval_templates").joinpath(f"bank/{name}.yaml").read_text())
    return bank["slots"], bank["tree"]


@pytest.mark.parametrize("name", SPACES)
def test_weights_are_products_and_sums_worked_out_from_the_bank(name):
    slots, tree = _read_tree(name)
    expected = {}

    def weigh(node, path):
        if isinstance(node, dict):
            total = sum(weigh(child, f"{path}/{key}".strip("/")) for key, child in node.items())
        else:
            total = 0
            for text in node:
                weight = 1
                for slot in re.findall(r"<(\w+)>", text):
                    weight *= len(slots[slot])
                expected[f"{path}/{text}"] = weight
                total += weight
        expected[path] = total
        return total

    weigh(tree, "")
    assert SPACES[name].weights() == expected


@pytest.mark.parametrize("name", SPACES)
def test_every_slot_is_used_and_has_distinct_synonyms(name):
    slots, tree = _read_tree(name)
    used = set(re.findall(r"<(\w+)>", str(tree)))
    assert used == set(slots)
    assert all(len(set(synonyms)) == len(synonyms) for synonyms in slots.values())


# Each must be found nowhere in either space.
UNGRAMMATICAL = {
    "small first letter": r"\A[a-z]",
    "double space": r"  ",
    "space before punctuation": r"\s[,.;:!?]",
    "space at a line's end": r"\s\n|\s\Z",
    "a before a vowel": r"\ba [aeiou]",
    "an before a consonant": r"\ban [^aeiou]",
    "plural noun with singular verb": r"\A[Tt]he (?:\w+ )?(?:choices|options|alternatives|answers) is\b",
    "singular noun with plural verb": r"\b(?:question|image|picture|task|answer|it|one) are\b",
    "which include": r"which include\b",
    "word repeated": r"\b(?P<word>\w+) (?P=word)\b",
    "two full stops": r"\.\.",
    "answer format, length or style": r"(?i:\b(?:letter|word|phrase|sentence|brief\w*|short\w*|long\w*|directly|"
    r"detail\w*|explain\w*|reason\w*|step|json|bracket\w*|format|only answer)\b)",
}
UNGRAMMATICAL_ANYWHERE = re.compile("|".join(f"(?:{rule})" for rule in UNGRAMMATICAL.values()))


@pytest.mark.parametrize(("name", "placeholder"), [("question", "{question}"), ("choice", "{choices}")])
def test_every_template_is_well_formed_english(everything, name, placeholder):
    for text in everything[name]:
        assert text.count(placeholder) == 1 and text.count("{") == 1 and text.count("}") == 1, text
        wrong = UNGRAMMATICAL_ANYWHERE.search(text)
        assert wrong is None, f"{text!r}: {wrong[0]!r}"


def test_the_rules_find_what_they_are_for():
    for bad in (
        "choices which include one",
        "Give a answer",
        "Give an response",
        "The answer choices is",
        "a  b",
        "Hi ,",
        "the",
    ):
        assert UNGRAMMATICAL_ANYWHERE.search(bad), bad


def test_every_choice_template_asks_for_one_choice(everything):
    asks = re.compile(r"\bone\b|\bthe (?:correct|right|best|most \w+) answer\b|\bthe (?:option|answer) that\b", re.I)
    assert all(asks.search(text) for text in everything["choice"])


@pytest.mark.parametrize("space", [QUESTION, CHOICE, VQA], ids=["question", "choice", "vqa"])
def test_index_is_the_inverse_of_getitem(space):
    for index in [0, 1, len(space) - 1, *space.sample_indices(2000, 5).tolist()]:
        text = space[index]
        assert space.index(text) == index
        assert text in space
    assert space[-1] == space[len(space) - 1]


def test_take_agrees_with_a_walk_over_the_slots(everything):
    """The first meta-template, unrolled by hand."""
    about = ("about", "regarding", "concerning", "related to")
    assert everything["question"][0] == "The question about the image is as follows: {question}"
    assert everything["question"][1] == "The question about the image is as follows:\n{question}"
    assert everything["question"][2] == "The question about the image is the following: {question}"
    # 8 images, 6 ways to say where it stands, 2 ways to write the colon.
    assert [QUESTION[i * 8 * 6 * 2].split()[2] for i in range(3)] == list(about[:3])


def test_texts_outside_are_refused():
    for text in ("", "{question}", "the question is as follows: {question}", QUESTION[0] + " ", QUESTION[0].upper()):
        assert text not in QUESTION
    assert QUESTION[0] not in VQA
    assert 7 not in VQA
    with pytest.raises(ValueError, match="not a template"):
        VQA.index("What?")
    with pytest.raises(IndexError):
        VQA[len(VQA)]


def test_samples_are_golden():
    """The same on every machine and with every library version, so a change here changes published scores."""
    assert VQA.sample_indices(5, 0).tolist() == GOLDEN_INDICES
    assert VQA.sample(2, 1) == GOLDEN_TEXTS


def test_sample_is_distinct_and_refuses_too_many():
    assert len(set(QUESTION.sample(15_000, 3))) == 15_000
    small = QUESTION.subtree("Declarative/Simple/Linking")
    assert sorted(small.sample(len(small), 0)) == sorted(small)
    with pytest.raises(ValueError, match="cannot draw"):
        small.sample(len(small) + 1, 0)


def test_subtree_and_image_free():
    simple = QUESTION.subtree("Declarative/Simple")
    assert len(simple) == QUESTION.weights()["Declarative/Simple"]
    assert all(text in QUESTION for text in simple.sample(100, 0))
    free = QUESTION.image_free()
    assert 0 < len(free) < len(QUESTION)
    assert not any(re.search("image|picture", text) for text in free)
    mentioning = [leaf for leaf in QUESTION.leaves if leaf.mentions_image]
    assert len(free) + sum(leaf.weight for leaf in mentioning) == len(QUESTION)
    assert not any(leaf.mentions_image for leaf in CHOICE.leaves)
    with pytest.raises(ValueError, match="Declarative/Compound"):
        QUESTION.subtree("Declarative/Nothing")


def test_walking_the_tree_is_as_uniform_as_indexing():
    """Algorithm 2 as printed against uniform integers: chi-square over all templates of a small part of the tree."""
    space = JointSpace(
        QUESTION.subtree("Declarative/Simple/Subject-predicate"), CHOICE.subtree("Declarative/Simple/Existential")
    )
    rng = random.Random(0)
    part = space.question
    walked = Counter(part.walk(rng) for _ in range(12_000))
    assert set(walked) <= set(part)
    counts = np.array([walked[text] for text in part])
    # 12,000 draws over about 3,000 templates: pool neighbours to get expected counts of about 40.
    pooled = np.add.reduceat(counts, np.arange(0, len(counts), 10))
    sizes = np.diff([*range(0, len(counts), 10), len(counts)])
    assert stats.chisquare(pooled, sizes / sizes.sum() * counts.sum()).pvalue > 1e-4
    assert space.walk(rng) in space


def test_spaces_can_be_built_by_hand():
    leaf = MetaTemplate("a", "<x>{question}", (("", "see "), ("here: ", "there: "), ("{question}",)))
    space = TemplateSpace([leaf])
    assert list(space) == ["Here: {question}", "There: {question}", "See here: {question}", "See there: {question}"]
    assert [space.index(t) for t in space] == [0, 1, 2, 3]
    assert "see here: {question}" not in space


def test_assignment_is_balanced_to_within_one_and_uses_all():
    assignment = assign_templates(1003, ["a", "b", "c", "d"], 7)
    counts = np.bincount(assignment)
    assert assignment.shape == (1003,) and sorted(counts.tolist()) == [250, 251, 251, 251]
    assert (assignment == assign_templates(1003, ["a", "b", "c", "d"], 7)).all()
    assert (assignment != assign_templates(1003, ["a", "b", "c", "d"], 8)).any()
    # No template favours the beginning: the mean position of each is near the middle.
    means = [np.flatnonzero(assignment == t).mean() for t in range(4)]
    assert all(abs(mean - 501) < 75 for mean in means)
    with pytest.raises(ValueError, match="3 records cannot use 4"):
        assign_templates(3, ["a", "b", "c", "d"], 0)
    with pytest.raises(ValueError, match="no templates"):
        assign_templates(3, [], 0)


def test_importing_the_package_imports_neither_torch_nor_lmms_eval():
    code = "import sys, lmms_eval_templates; print([m for m in ('torch', 'lmms_eval', 'datasets') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_question_templates_end_with_their_question():
    """So that `augment` can put one before a question without touching what follows."""
    assert all(template.endswith("{question}") and template.count("{question}") == 1 for template in QUESTION)
