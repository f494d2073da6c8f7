"""What fine-tuning learns from: messages, labels, cut text, images, and data that cannot be used."""

import json
import re

import pytest
import torch
from lmms_eval_templates.training.collator import Collator
from lmms_eval_templates.training.dataset import to_messages
from lmms_eval_templates.training.lengths import _tokens_of_an_image
from lmms_eval_templates.training.records import has_image
from training_data import LEARNT, read

from lmms_eval_templates import TemplateError


def user(*parts):
    return {"role": "user", "content": list(parts)}


def text(words):
    return {"type": "text", "text": words}


IMAGE = {"type": "image"}


@pytest.mark.parametrize(
    ("value", "image", "content"),
    [
        ("<image>\nWhat is it?", "a.jpg", [IMAGE, text("What is it?")]),
        ("What is it?\n<image>", "a.jpg", [text("What is it?"), IMAGE]),
        ("<image>\n<image>\nWhat changed?", ["a.jpg", "b.jpg"], [IMAGE, IMAGE, text("What changed?")]),
        ("Is <image> like <image>?", ["a.jpg", "b.jpg"], [text("Is "), IMAGE, text(" like "), IMAGE, text("?")]),
        ("What is it?", "a.jpg", [IMAGE, text("What is it?")]),
        ("What does <image>\n mean in HTML?", None, [text("What does <image>\n mean in HTML?")]),
    ],
)
def test_messages(value, image, content):
    record = {"conversations": [{"from": "gpt", "value": "before"}, {"from": "human", "value": value}, LEARNT]}
    if image:
        record["image"] = image
    assert to_messages(record) == [user(*content), {"role": "assistant", "content": [text("Cup")]}]


def test_messages_form_gives_the_same():
    record = {
        "messages": [
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]},
            {"role": "assistant", "content": "Cup"},
        ],
        "images": ["a.jpg"],
    }
    assert to_messages(record) == [user(IMAGE, text("What is it?")), {"role": "assistant", "content": [text("Cup")]}]


def test_a_messages_field_of_another_kind_is_none_of_the_conversation():
    record = {"messages": 5, "conversations": [{"from": "human", "value": "What is it?"}, LEARNT]}
    assert to_messages(record) == [user(text("What is it?")), {"role": "assistant", "content": [text("Cup")]}]
    assert not has_image(record)


def learnt(processor, batch):
    """Words under a label, one list of words a record."""
    return [
        processor.tokenizer.convert_ids_to_tokens([i for i in row.tolist() if i != -100]) for row in batch["labels"]
    ]


def test_labels_are_the_assistants_words(mix, processor):
    records = [read(mix)[i] for i in range(4)]
    batch = Collator(processor, 512)(records)
    assert [record["name"].split()[1] for record in records] == ["0", "1", "2", "3"]
    raw = json.loads((mix / "mix.json").read_text())
    expected = [
        [*re.findall(r"\w+", raw[i]["conversations"][1]["value"]), "</s>", "top", "left", "</s>"] for i in range(4)
    ]
    assert learnt(processor, batch) == expected
    # A label stands at its own token, and an image has its 36 tokens (48 / 8 squared).
    kept = batch["labels"] != -100
    assert torch.equal(batch["input_ids"][kept], batch["labels"][kept])
    assert (batch["input_ids"] == processor.image_token_id).sum(dim=1).tolist() == [36, 36, 36, 0]
    assert _tokens_of_an_image(processor) == 36
    assert batch["pixel_values"].shape[0] == 3


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<image>{% else %}{{ p['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_template_that_ends_its_turns_itself(mix, processor):
    processor.tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<image>"]})
    processor.chat_template = CHATML
    batch = Collator(processor, 512)([read(mix)[3]])
    words = json.loads((mix / "mix.json").read_text())[3]["conversations"][1]["value"].split()
    assert learnt(processor, batch) == [[*words, "<|im_end|>", "top", "left", "<|im_end|>"]]


@pytest.mark.parametrize("words", ["red </s>", "red <unk>", "<|im_end|>"])
def test_an_answer_that_spells_a_special_token_is_ended_all_the_same(processor, words):
    plain = Collator(processor, 512)([conversation_item("What is it", words)])
    assert learnt(processor, plain)[0][-2:] == [processor.tokenizer.tokenize(words)[-1], "</s>"]
    processor.tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<image>"]})
    processor.chat_template = CHATML
    closed = Collator(processor, 512)([conversation_item("What is it", words)])
    assert learnt(processor, closed)[0] == [*processor.tokenizer.tokenize(words), "<|im_end|>"]


def test_another_family_with_its_own_image_tokens(processor):
    """Qwen2-VL: an image has as many tokens as its size asks for, between two tokens of their own."""
    from PIL import Image
    from transformers import Qwen2VLImageProcessor, Qwen2VLProcessor
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor

    special = ["im_start", "im_end", "vision_start", "image_pad", "vision_end", "video_pad"]
    processor.tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in special]})
    template = CHATML.replace("<image>", "<|vision_start|><|image_pad|><|vision_end|>")
    qwen = Qwen2VLProcessor(
        Qwen2VLImageProcessor(), processor.tokenizer, Qwen2VLVideoProcessor(), chat_template=template
    )
    picture = Image.new("RGB", (112, 84))  # 4 x 3 patches of 28 pixels
    items = [conversation_item("What is it", "red", [picture, picture]), conversation_item("What is it", "red")]
    batch = Collator(qwen, 512)(items)
    assert _tokens_of_an_image(qwen) == float("inf")  # it depends on the size; LLaVA's does not
    assert learnt(processor, batch) == [["red", "<|im_end|>"]] * 2
    assert (batch["input_ids"] == qwen.image_token_id).sum(dim=1).tolist() == [24, 0]
    padded = Collator(qwen, 512, image_in_every_batch=True)(items[1:])
    assert learnt(processor, padded) == [["red", "<|im_end|>"]]
    seen = padded["attention_mask"].bool()
    assert qwen.image_token_id in padded["input_ids"]
    assert qwen.image_token_id not in padded["input_ids"][seen]


def test_a_template_that_rewrites_earlier_turns_is_refused(mix, processor):
    processor.chat_template = "{{ messages | length }} {{ messages[-1]['content'][0]['text'] }}"
    with pytest.raises(TemplateError, match="rewrites earlier turns"):
        Collator(processor, 512)([read(mix)[3]])


def conversation_item(question, answer, images=()):
    return {
        "messages": [user(*[IMAGE] * len(images), text(question)), {"role": "assistant", "content": [text(answer)]}],
        "images": list(images),
        "name": "record 'long'",
    }


@pytest.mark.parametrize("always_image", [False, True])
def test_long_text_is_cut_at_its_end(processor, always_image):
    item = conversation_item("red " * 10, "blue " * 50)
    batch = Collator(processor, 40, image_in_every_batch=always_image)([item])
    seen = batch["attention_mask"][0].bool()
    assert seen.sum() == 40
    # "USER" ":" + 10 x red + "ASSISTANT" ":" leave 26 of the answer's 50 words
    assert learnt(processor, batch) == [["blue"] * 26]


def test_image_tokens_are_never_cut(processor):
    from PIL import Image

    item = conversation_item("red " * 10, "blue", [Image.new("RGB", (48, 48))])
    whole = Collator(processor, 50)([item])["input_ids"]
    assert (whole == processor.image_token_id).sum() == 36
    with pytest.raises(TemplateError, match="record 'long': its image tokens do not fit into max_length 37"):
        Collator(processor, 37)([item])


def test_the_image_token_in_a_text_is_text(processor):
    batch = Collator(processor, 512)([conversation_item("What does <image> mean?", "an <image>")])
    assert processor.image_token_id not in batch["input_ids"]
    assert "pixel_values" not in batch


def test_the_padding_image_changes_nothing(mix, processor, tiny_llava):
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(tiny_llava)
    records = [read(mix)[3], read(mix)[7]]
    plain, padded = Collator(processor, 512)(records), Collator(processor, 512, image_in_every_batch=True)(records)
    assert "pixel_values" not in plain
    assert padded["pixel_values"].shape[0] == 1
    assert learnt(processor, plain) == learnt(processor, padded)
    assert model(**plain).loss.item() == pytest.approx(model(**padded).loss.item(), rel=1e-5)


def test_missing_images_are_listed_before_training(mix):
    for i in (1, 2):
        (mix / "images" / "drawn" / f"{i}.png").unlink()
    with pytest.raises(TemplateError, match=r"2 image files are missing .*\n  drawn/1.png\n  drawn/2.png\n"):
        read(mix)
    assert (mix / "missing.txt").read_text() == "drawn/1.png\ndrawn/2.png\n"
    records = read(mix, "skip")
    assert len(records) == 14
    assert records.left_out == ["record 1: no image drawn/1.png", "record 2: no image drawn/2.png"]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"id": 1}, "record 1 at byte 91: no conversations"),
        (
            {"image": "drawn/0.png", "conversations": [{"from": "human", "value": "<image><image>"}, LEARNT]},
            "2 <image>",
        ),
    ],
)
def test_bad_records_are_named_before_training(mix, record, message):
    good = {"conversations": [{"from": "human", "value": "Who?"}, LEARNT]}
    (mix / "mix.json").write_text(json.dumps([good, record]))
    with pytest.raises(TemplateError, match=message):
        read(mix)
    unanswered = {"conversations": [{"from": "human", "value": "Who?"}]}
    (mix / "mix.json").write_text(json.dumps([good, unanswered]))
    assert len(read(mix)) == 1
    assert "nothing to learn" in read(mix).left_out[0]
