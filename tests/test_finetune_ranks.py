"""Fine-tuning on two ranks with DeepSpeed ZeRO-3 over gloo, with text-only and image batches at the same time."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import yaml
from lmms_eval_templates.training.config import Config
from lmms_eval_templates.training.finetune import finetune
from safetensors.torch import load_file
from training_data import write_mix

pytest.importorskip("deepspeed")
ADAPTER = "adapter/adapter_model.safetensors"


@pytest.fixture
def config(tmp_path, monkeypatch, tiny_llava):
    monkeypatch.chdir(tmp_path)
    write_mix(tmp_path)
    # One record a micro-batch: with a quarter of them text-only, the ranks often differ in having an image.
    return Config(
        **{"model": str(tiny_llava), "data": "mix.json", "image_folder": "images", "output": "zero3", "epochs": 2.0},
        **{"global_batch_size": 4, "batch_size_per_device": 1, "learning_rate": 2e-4, "lora_rank": 4, "lora_alpha": 8},
        **{"lora_dropout": 0.0, "max_length": 512, "dtype": "fp32", "gradient_checkpointing": True},
        **{"save_steps": 2, "logging_steps": 1, "dataloader_workers": 0, "device": "cpu", "warmup_ratio": 0.0},
    )


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """DeepSpeed compiles an operator on first use, which takes a minute: keep it where the user keeps such things."""
    folder = os.environ.get("TORCH_EXTENSIONS_DIR") or str(tmp_path_factory.mktemp("torch_extensions"))
    return {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_EXTENSIONS_DIR": folder}


LAUNCHERS = {
    "accelerate": ("accelerate.commands.launch", "--num_machines", "1", "--use_deepspeed", "--zero_stage", "3"),
    "torchrun": ("torch.distributed.run",),
}


def start(config, environment, launcher):
    Path(f"{config.output}.yaml").write_text(yaml.safe_dump(dataclasses.asdict(config)))
    module, *options = LAUNCHERS[launcher]
    processes = "--num_processes" if launcher == "accelerate" else "--nproc_per_node"
    port = ("--main_process_port" if launcher == "accelerate" else "--master_port", "29571")
    command = [sys.executable, "-m", module, *options, processes, "2", *port]
    command += ["-m", "lmms_eval_templates.training.finetune", f"{config.output}.yaml"]
    log = open(f"{config.output}.log", "a")  # noqa: SIM115
    return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def finish(process, config):
    assert process.wait(timeout=300) == 0, Path(f"{config.output}.log").read_text()[-4000:]
    return load_file(Path(config.output) / ADAPTER)


def test_two_ranks_under_zero3_give_the_adapter_of_one(config, environment):
    single = dataclasses.replace(config, output="single", deepspeed=None, batch_size_per_device=2)
    finetune(single)
    expected = load_file(Path("single") / ADAPTER)
    adapter = finish(start(config, environment, "accelerate"), config)
    assert adapter.keys() == expected.keys()
    moved = 0.0
    for name, weight in expected.items():
        assert adapter[name].dtype == torch.float32
        torch.testing.assert_close(adapter[name], weight, rtol=0, atol=2e-6)
        moved = max(moved, weight.abs().max().item() if "lora_B" in name else 0.0)  # B starts at zero
    assert moved > 1e-4

    killed = dataclasses.replace(config, output="killed")
    process = start(killed, environment, "torchrun")
    while not Path("killed/checkpoint-4/complete.json").exists():
        assert process.poll() is None, Path("killed.log").read_text()[-4000:]
        time.sleep(0.01)
    ranks = psutil.Process(process.pid).children(recursive=True)
    for each in [process, *ranks]:
        each.kill()
    process.wait()
    psutil.wait_procs(ranks, timeout=30)
    assert not Path("killed", ADAPTER).exists()
    finish(start(killed, environment, "torchrun"), killed)
    assert "going on from killed/checkpoint-" in Path("killed.log").read_text()
    assert Path("killed", ADAPTER).read_bytes() == Path("zero3", ADAPTER).read_bytes()


def step(path: Path) -> int:
    return int(path.parent.name.split("-")[1])


def test_ctrl_c_on_two_ranks_saves(config, environment):
    """torchrun passes on the Ctrl-C that the terminal has sent to each rank already."""
    config = dataclasses.replace(config, output="stopped", deepspeed=None, epochs=2000.0, save_steps=10)
    process = start(config, environment, "torchrun")
    while not Path("stopped/checkpoint-10/complete.json").exists():
        assert process.poll() is None, Path("stopped.log").read_text()[-4000:]
        time.sleep(0.01)
    for each in [*psutil.Process(process.pid).children(recursive=True), process]:
        each.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    assert "run the same command again" in Path("stopped.log").read_text()
    state = json.loads(max(Path("stopped").glob("checkpoint-*/trainer_state.json"), key=step).read_text())
    assert 10 < state["global_step"] < state["max_steps"]
    assert Path("stopped", f"checkpoint-{state['global_step']}", "complete.json").exists()
    assert not Path("stopped", ADAPTER).exists()
