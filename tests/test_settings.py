from dataclasses import fields, replace

import pytest

from lmms_eval_templates import TemplateError
from lmms_eval_templates.binding import decide
from lmms_eval_templates.embedding import load_embedder
from lmms_eval_templates.settings import Settings
from lmms_eval_templates.signature import Signature


def test_defaults():
    settings = Settings.from_environment({})
    assert (settings.items, settings.seed, settings.match, settings.subset) == (100, 0, "robust", "sampled")
    assert settings.embedder.endswith("all-mpnet-base-v2") and settings.templates is None


def test_all_bad_values_are_refused_at_once(tmp_path):
    with pytest.raises(TemplateError) as caught:
        Settings.from_environment(
            {
                "TM_ITEMS": "-1",
                "TM_SEED": "x",
                "TM_TEMPLATES": str(tmp_path / "none.json"),
                "TM_MATCH": "loose",
                "TM_SUBSET": "all",
            }
        )
    for part in ("TM_ITEMS='-1'", "TM_SEED='x'", "TM_TEMPLATES=", "robust or strict", "sampled or paper"):
        assert part in str(caught.value)


def test_a_misspelled_setting_is_refused():
    with pytest.raises(TemplateError, match="TM_ITEM is no setting; did you mean TM_ITEMS"):
        Settings.from_environment({"TM_ITEM": "5", "TM_TOKEN": "of another program"})


def test_templates_by_name_and_by_file(tmp_path):
    assert len(Settings.from_environment({"TM_TEMPLATES": "ood"}).templates) == 25
    (tmp_path / "mine.txt").write_text("{question} {choices}\n")
    assert Settings.from_environment({"TM_TEMPLATES": str(tmp_path / "mine.txt")}).templates.name == "mine"


def test_signature_holds_every_field():
    signature = Signature("complex", "t", "s", 100, "i", "sampled", 0, "robust", "none", "0.1.0", "0.7.3")
    for field in fields(Signature):
        value = getattr(signature, field.name)
        changed = replace(signature, **{field.name: value + 1 if isinstance(value, int) else value + "x"})
        assert str(changed) != str(signature), field.name
    assert str(signature).startswith("templates:complex|templates_hash:t|")


def test_embeddings_choose_by_meaning(encoder):
    embedder = load_embedder(encoder)
    assert embedder.nearest("a puppy", ["car", "dog", "house", "tree"]) == 1
    assert embedder.nearest("automobile", ["car", "dog", "house", "tree"]) == 0
    assert load_embedder("none") is None


def test_cosines_agree_with_plain_sentence_transformers(encoder):
    from sentence_transformers import SentenceTransformer, util

    model = SentenceTransformer(encoder, device="cpu")
    texts = ["a large animal", "elephant", "teaspoon"]
    expected = util.cos_sim(model.encode(texts[:1]), model.encode(texts[1:]))[0].tolist()
    assert load_embedder(encoder).similarities(texts[0], texts[1:]).tolist() == pytest.approx(expected, abs=1e-5)


def test_an_embedder_that_cannot_be_loaded_is_one_error_that_says_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TemplateError, match=r"TM_EMBEDDER='.*nothing'.*Set TM_EMBEDDER to"):
        load_embedder(str(tmp_path / "nothing"))


def test_what_holds_no_word_is_no_answer(encoder):
    settings = Settings(embedder=encoder)
    for response in ("<|im_end|>", "...", "  ", "<think>It is a cat, a kitten, a tomcat</think>"):
        assert decide(response, ["cat", "dog"], settings) == (None, None)
    # Reasoning is not compared, the answer is.
    response = "<think>Not a kitten, tomcat or lion.</think>A puppy."
    assert decide(response, ["cat", "dog"], settings) == (1, "embedding")
    assert decide(response, ["cat", "dog"], Settings(embedder="none")) == (None, None)
