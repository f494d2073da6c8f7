"""Merging an adapter, building LLaVA-1.5-Base, and evaluating the result with the real lmms-eval."""

import contextlib
import importlib
import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from lmms_eval_templates.training.augment import augment
from lmms_eval_templates.training.base import build_base, read_projector
from lmms_eval_templates.training.config import LANGUAGE_MODEL
from lmms_eval_templates.training.manifest import manifest_path
from lmms_eval_templates.training.merge import main as merge_main
from lmms_eval_templates.training.merge import merge
from lmms_eval_templates.training.plan import Options

from lmms_eval_templates import QUESTION, TemplateError
from lmms_eval_templates.cli import main as cli_main
from lmms_eval_templates.demo.scenes import scenes
from lmms_eval_templates.demo.tiny_llava import build

peft = pytest.importorskip("peft")


@pytest.fixture(scope="module")
def adapter(tiny_llava, tmp_path_factory):
    """An adapter whose every weight is random, so that merging it changes the model; not made by `finetune`."""
    from transformers import AutoModelForImageTextToText

    folder = tmp_path_factory.mktemp("adapter") / "adapter"
    model = AutoModelForImageTextToText.from_pretrained(tiny_llava)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=8, target_modules=LANGUAGE_MODEL))
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    return folder


def logits(model, processor):
    from PIL import Image

    scene = next(iter(scenes(1)))
    prompts = [f"USER: <image>\n{scene.question} ASSISTANT:", f"USER: <image>\n{scene.choices} ASSISTANT:"]
    inputs = processor(text=prompts, images=[Image.fromarray(scene.pixels)] * 2, padding=True, return_tensors="pt")
    with torch.no_grad():
        return model.eval()(**inputs).logits


def test_merged_and_unmerged_logits_agree(adapter, tiny_llava, tmp_path):
    from transformers import AutoModelForImageTextToText, AutoProcessor, LlavaForConditionalGeneration

    folder = merge(adapter, tmp_path / "merged")
    processor = AutoProcessor.from_pretrained(folder)
    merged = logits(LlavaForConditionalGeneration.from_pretrained(folder), processor)
    base = AutoModelForImageTextToText.from_pretrained(tiny_llava)
    plain = logits(base, processor)
    unmerged = logits(peft.PeftModel.from_pretrained(base, adapter), processor)
    torch.testing.assert_close(merged, unmerged, rtol=1e-4, atol=1e-4)
    assert (merged - plain).abs().max() > 0.1
    with pytest.raises(TemplateError, match="exists"):
        merge(adapter, folder)


def test_what_cannot_be_merged(adapter, tiny_llava, tmp_path, capsys):
    assert merge_main([str(tmp_path), str(tmp_path / "m")]) == 2
    assert "holds no adapter_config.json" in capsys.readouterr().err
    with pytest.raises(TemplateError, match=f"did you mean {adapter}"):
        merge(adapter.parent, tmp_path / "m")
    with pytest.raises(TemplateError, match="give its place with --base"):
        merge(adapter, tmp_path / "m", base=str(tmp_path / "nowhere"))
    assert list(tmp_path.iterdir()) == []


def test_an_adapter_of_another_model_is_refused(adapter, tiny_llava, tmp_path):
    from safetensors.torch import load_file, save_file

    other = shutil.copytree(adapter, tmp_path / "other")
    weights = load_file(other / "adapter_model.safetensors")
    half = {name: weight for name, weight in weights.items() if ".layers.1." not in name}
    deeper = weights | {name.replace(".layers.1.", ".layers.2."): weight.clone() for name, weight in weights.items()}
    for faulty, message in ((half, "lacks 14 weights, e.g. .*layers.1"), (deeper, "beyond the model's 14 .*layers.2")):
        save_file(faulty, other / "adapter_model.safetensors")
        with pytest.raises(TemplateError, match=message):
            merge(other, tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_failed_save_leaves_nothing(adapter, tiny_llava, tmp_path):
    bare = shutil.copytree(tiny_llava, tmp_path / "bare")  # a base without its processor
    for path in bare.iterdir():
        if "processor" in path.name or "token" in path.name:
            path.unlink()
    with pytest.raises(TemplateError, match=f"cannot load the processor of {bare}"):
        merge(adapter, tmp_path / "m", base=str(bare))
    (tmp_path / "m").symlink_to("nowhere")  # a folder cannot take its place
    with pytest.raises(TemplateError, match=f"cannot write {tmp_path / 'm'}"):
        merge(adapter, tmp_path / "m")
    assert {path.name for path in tmp_path.iterdir()} == {"bare", "m"}


def test_evaluation_of_a_merged_model_on_its_in_domain_templates(adapter, lmms_eval, tmp_path):
    """Augment, merge, evaluate: lmms-eval takes the merged folder as model and the manifest as template set."""
    record = {
        "image": "a.jpg",
        "conversations": [{"from": "human", "value": "<image>\nWho?"}, {"from": "gpt", "value": "He"}],
    }
    (tmp_path / "mix.json").write_text(json.dumps([record] * 8))
    augment(tmp_path / "mix.json", tmp_path / "new.json", Options(num_templates=2), progress=False)
    merge(adapter, tmp_path / "merged")
    run = lmms_eval(
        *("--model", "llava_hf", "--model_args", "pretrained=merged,device_map=cpu", "--device", "cpu"),
        *("--tasks", "demo_tm_simple", "--batch_size", "1"),
        TM_ITEMS=4,
        TM_TEMPLATES=manifest_path(tmp_path / "new.json"),
    )
    metrics = run.metrics("demo_tm_simple")
    assert 0 <= metrics["tm_avg"] <= 100
    samples = run.samples("demo_tm_simple")
    assert len(samples) == 4 * 2
    templates = json.loads(manifest_path(tmp_path / "new.json").read_text())["templates"]
    assert [t.split("{question}")[0] for t in templates] == [t.split("{question}")[0] for t in QUESTION.sample(2, 0)]
    prompts = [sample["input"] for sample in samples]
    for template in templates:
        assert sum(template.split("{question}")[0] in prompt for prompt in prompts) == 4


def test_commands_of_the_documentation(tmp_path, monkeypatch):
    """The CPU walk-through of docs/training.md up to the evaluation, which the test above does."""
    guide = (Path(__file__).parents[1] / "docs" / "training.md").read_text().split("## All of it on a CPU")[1]
    monkeypatch.chdir(tmp_path)
    code, commands = (guide.split(f"```{kind}\n")[1].split("```")[0] for kind in ("python", "bash"))
    printed = guide.split("```\n\n```\n")[1].split("```")[0]
    assert "signature: " in printed
    exec(compile(code, "make_demo.py", "exec"), {})
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        for line in commands.splitlines()[1:4]:
            words = line.split()
            if words[0] == "lmms-eval-templates":
                assert cli_main(words[1:]) == 0
            else:
                assert words[:2] == ["python", "-m"]
                assert importlib.import_module(words[2]).main(words[3:]) == 0
    assert [line for line in printed.strip().splitlines() if line not in output.getvalue()] == []


# LLaVA-1.5-Base


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A Vicuna, a CLIP and a stage-1 projector of a few thousand weights, taken from a tiny LLaVA."""
    from transformers import (
        AutoProcessor,
        CLIPConfig,
        CLIPModel,
        LlamaForCausalLM,
        LlavaForConditionalGeneration,
    )

    folder = tmp_path_factory.mktemp("parts")
    whole = LlavaForConditionalGeneration.from_pretrained(build(folder / "tiny"))
    processor = AutoProcessor.from_pretrained(folder / "tiny")
    vicuna = LlamaForCausalLM(whole.config.text_config)
    vicuna.model.load_state_dict(whole.model.language_model.state_dict())
    vicuna.lm_head.load_state_dict(whole.lm_head.state_dict())
    vicuna.save_pretrained(folder / "vicuna")
    processor.tokenizer.save_pretrained(folder / "vicuna")
    clip = CLIPModel(CLIPConfig(vision_config=whole.config.vision_config.to_dict(), projection_dim=32))
    weights = {k.removeprefix("vision_model."): v for k, v in whole.model.vision_tower.state_dict().items()}
    clip.vision_model.load_state_dict(weights, strict=False)
    clip.save_pretrained(folder / "clip")
    processor.image_processor.save_pretrained(folder / "clip")
    projector = whole.model.multi_modal_projector
    names = {}
    for number, layer in ((0, projector.linear_1), (2, projector.linear_2)):
        for kind in ("weight", "bias"):
            names[f"model.mm_projector.{number}.{kind}"] = getattr(layer, kind)
    torch.save({k: v.detach().clone() for k, v in names.items()}, folder / "mm_projector.bin")
    return folder


def test_base_computes_what_its_parts_do(parts, tmp_path):
    from PIL import Image
    from transformers import AutoModelForCausalLM, AutoProcessor, CLIPModel, LlavaForConditionalGeneration

    folder = build_base(
        str(parts / "vicuna"), str(parts / "clip"), str(parts / "mm_projector.bin"), tmp_path / "base", "float32"
    )
    model, processor = (
        LlavaForConditionalGeneration.from_pretrained(folder).eval(),
        AutoProcessor.from_pretrained(folder),
    )
    assert model.config.vision_feature_layer == -2
    assert model.get_input_embeddings().weight.shape[0] % 64 == 0
    scene = next(iter(scenes(1)))
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": scene.question}]}]
    prompt = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == f"USER: <image>\n{scene.question} ASSISTANT:"
    inputs = processor(text=prompt, images=Image.fromarray(scene.pixels), return_tensors="pt")

    # By hand: CLIP's last layer but one without the class token, two linear layers, put where the image stands.
    clip = CLIPModel.from_pretrained(parts / "clip").eval()
    vicuna = AutoModelForCausalLM.from_pretrained(parts / "vicuna").eval()
    w = torch.load(parts / "mm_projector.bin")
    w = {name.removeprefix("model.mm_projector."): weight for name, weight in w.items()}
    with torch.no_grad():
        states = clip.vision_model(pixel_values=inputs["pixel_values"], output_hidden_states=True).hidden_states
        features = torch.nn.functional.gelu(states[-2][0, 1:] @ w["0.weight"].T + w["0.bias"])
        features = features @ w["2.weight"].T + w["2.bias"]
        ids = inputs["input_ids"][0]
        at = ids == processor.image_token_id
        embedded = vicuna.get_input_embeddings()(ids.masked_fill(at, 0))
        embedded[at] = features
        expected = vicuna(inputs_embeds=embedded[None]).logits[0]
        found = model(**inputs).logits[0, :, : expected.shape[-1]]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_projectors_that_do_not_fit(parts, tmp_path):
    weights = torch.load(parts / "mm_projector.bin")
    weights["model.mm_projector.0.weight"] = torch.zeros(32, 5)
    weights["model.mm_projector.4.weight"] = weights.pop("model.mm_projector.2.bias")
    torch.save(weights, tmp_path / "bad.bin")
    with pytest.raises(TemplateError) as error:
        read_projector(tmp_path / "bad.bin", 32, 32)
    message = str(error.value)
    assert "mm_projector.0.weight has shape [32, 5], must have [32, 32]" in message
    assert "unknown weight '4.weight'" in message
    assert "no mm_projector.2.bias" in message
    with pytest.raises(TemplateError, match="cannot read the projector"):
        read_projector(tmp_path / "none.bin", 32, 32)
    with pytest.raises(TemplateError, match="cannot load the language model"):
        build_base(str(tmp_path / "no"), str(parts / "clip"), str(parts / "mm_projector.bin"), tmp_path / "base")
    assert not (tmp_path / "base").exists()
