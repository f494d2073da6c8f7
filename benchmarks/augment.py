"""Time and memory of `augment` on a file of the real mix's size, beside orjson reading and writing it unchanged.

Run: python benchmarks/augment.py [RECORDS]      (665,000 records of about 1.5 KB are the default; needs 3 GB of disk)
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tqdm import trange

from lmms_eval_templates.rng import random_bits

ORJSON = """
import sys, orjson
data = orjson.loads(open(sys.argv[1], "rb").read())
open(sys.argv[2], "wb").write(orjson.dumps(data))
"""
AUGMENT = """
import sys
from lmms_eval_templates.cli import main
sys.exit(main(["augment", sys.argv[1], sys.argv[2], "--num-templates", "5000", "--turns", sys.argv[3]]))
"""
MEASURE = """
import resource, subprocess, sys, time
began = time.perf_counter()
subprocess.run([sys.executable, "-c", *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
SENTENCE = "the man in a red hat is standing beside an old bicycle near two trees while people walk along the street"
WORDS = SENTENCE.split()


def sentence(bits: int, words: int) -> str:
    return " ".join(WORDS[(bits >> (i % 60)) % len(WORDS)] for i in range(words))


def record(number: int) -> dict:
    """A record like those of LLaVA-1.5's 665K: short answers over several turns, choices, descriptions, text."""
    bits = random_bits(4, "benchmark", number).tolist()
    kind = bits[0] % 10
    turns = 1 if kind < 3 else 1 + bits[1] % 8
    answer_words = 60 if kind < 4 else 12 if kind < 6 else 1
    conversation = []
    for turn in range(turns):
        question = f"What is {sentence(bits[2] >> turn, 9)}?"
        if kind == 0:
            question = f"Describe {sentence(bits[2], 4)} in this image in detail."
        elif kind == 1:
            question += (
                "\nA. hat\nB. tree\nC. bicycle\nD. street\nAnswer with the option's letter from the given choices."
            )
        elif kind > 5:
            question += "\nAnswer the question using a single word or phrase."
        mark = "<image>\n" if turn == 0 and kind != 2 else ""
        conversation.append({"from": "human", "value": mark + question})
        conversation.append({"from": "gpt", "value": sentence(bits[3] >> turn, answer_words * (1 + bits[1] % 5))})
    image = {} if kind == 2 else {"image": f"coco/train2017/{number:012}.jpg"}
    return {"id": f"{number:012}", **image, "conversations": conversation}


def measure(*command: str) -> tuple[float, float]:
    """Seconds, and peak memory in MB, of a Python program in a process of its own."""
    output = subprocess.run([sys.executable, "-c", MEASURE, *command], check=True, stdout=subprocess.PIPE, text=True)
    seconds, kilobytes = output.stdout.split()
    return float(seconds), float(kilobytes) / 1000


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 665_000
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "mix.json", str(Path(folder) / "out.json")
        with source.open("w") as file:
            for number in trange(count, desc="making the file"):
                file.write(("[" if number == 0 else ", ") + json.dumps(record(number)))
            file.write("]")
        print(f"{count:,} records, {source.stat().st_size / 1e6:,.0f} MB")
        baseline = min(measure(ORJSON, str(source), target) for _ in range(2))
        print(f"orjson, read and write unchanged:  {baseline[0]:6.1f} s  {baseline[1]:7,.0f} MB")
        for turns in ("first", "all"):
            seconds, megabytes = min(measure(AUGMENT, str(source), target, turns) for _ in range(2))
            ratio = seconds / baseline[0]
            print(f"augment --turns {turns:<5}:             {seconds:6.1f} s  {megabytes:7,.0f} MB  {ratio:.2f} times")


if __name__ == "__main__":
    main()
