"""`lmms-eval-templates augment`: templates around the questions of a training mix."""

from __future__ import annotations

import argparse

NAME = "augment"
HELP = "put templates around the questions of a visual instruction tuning mix (LLaVA JSON, JSON Lines, messages)"
EXAMPLE = "lmms-eval-templates augment llava_v1_5_mix665k.json mix_templates.json --num-templates 5000 --seed 0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("input", metavar="IN", help="a JSON array of records, or a record a line")
    parser.add_argument("output", metavar="OUT", help="same form, .json or .jsonl; the manifest goes beside it")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--num-templates", type=int, metavar="N", help="the paper takes 100, 1000, 5000, 10000, 15000")
    size.add_argument("--ratio", type=float, help="templates to records, e.g. 7.5e-3")
    parser.add_argument("--seed", type=int, default=0, help="(default: %(default)s)")
    parser.add_argument(
        "--turns",
        choices=("first", "all"),
        default="first",
        help="the first question of each record, as in the paper, or all questions (default: %(default)s)",
    )
    parser.add_argument(
        "--text-only",
        choices=("keep", "image-free"),
        default="keep",
        help="records without an image: as they are, or with templates that mention none (default: %(default)s)",
    )
    parser.add_argument(
        "--all-instructions", action="store_true", help="templates for captioning, region and box instructions too"
    )
    parser.add_argument(
        "--on-error",
        choices=("stop", "skip"),
        default="stop",
        help="bad records: stop at the first, or leave them out and list them in the manifest (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    from ..training.augment import augment
    from ..training.manifest import manifest_path
    from ..training.plan import Options

    options = Options(
        num_templates=args.num_templates,
        ratio=args.ratio,
        seed=args.seed,
        turns=args.turns,
        text_only=args.text_only,
        all_instructions=args.all_instructions,
        on_error=args.on_error,
    )
    manifest = augment(args.input, args.output, options)
    print(
        f"{args.output}: {manifest['num_templates']:,} templates on {manifest['changed_turns']:,} turns of "
        f"{manifest['changed_records']:,} of {manifest['records']:,} records"
    )
    print("kinds of record: " + ", ".join(f"{kind} {count:,}" for kind, count in manifest["kinds"].items()))
    if manifest["bad_records"]:
        print(f"left out: {len(manifest['bad_records']):,} bad records, listed in the manifest")
    print(f"manifest: {manifest_path(args.output)}\nsignature: {manifest['signature']}")
    return 0
