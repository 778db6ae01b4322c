#!/usr/bin/env python3
# Copyright (c) 2026 The infera.serving maintainers
# SPDX-License-Identifier: Apache-2.0
"""Make a tiny Qwen3-type checkpoint with random weights, its own tokenizer and chat template: a model for tests of the plumbing.

The answers are noise, but always the same noise: weights and tokenizer depend only on the options, the seed and the version of Python's
standard library, whose text trains the byte-level BPE. Finished work is recognised and left alone; an interrupted run leaves nothing
under the final name.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import sys
import sysconfig
import tempfile

STAMP = "infera_model.json"  # written last; says what the folder was made from
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
MIN_VOCAB = 256 + len(SPECIAL_TOKENS) + len(MARKUP_TOKENS)
CORPUS_BYTES = 4 << 20  # enough for some tens of thousands of merges, and a few seconds of training
TEMPLATE = pathlib.Path(__file__).with_name("chat_template.jinja")


def corpus() -> list[str]:
    """Top-level modules and packages of the standard library in name order, without its tests, up to CORPUS_BYTES."""
    root = pathlib.Path(sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "lib2to3", "ensurepip", "turtledemo", "__pycache__"}
    texts, size = [], 0
    for path in sorted(root.rglob("*.py")):
        if skipped & set(path.relative_to(root).parts) or path.name.startswith("_sysconfigdata"):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        texts.append(text)
        size += len(text)
        if size >= CORPUS_BYTES:
            break
    if not texts:
        raise RuntimeError(f"no Python source below {root}: the standard library's text trains the tokenizer")
    return texts


def make_tokenizer(folder: pathlib.Path, vocab: int, context: int):
    """Train, add the chat template, save. Returns the transformers tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(MARKUP_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    # Plain added tokens: parsers of reasoning and tool calls must still see them in decoded text.
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token=None, unk_token=None,
        clean_up_tokenization_spaces=False, model_max_length=context,
    )
    fast.chat_template = TEMPLATE.read_text(encoding="utf-8")
    fast.save_pretrained(folder)
    if len(fast) != vocab:
        raise RuntimeError(f"--vocab {vocab}: the standard library's text gave {len(fast)} tokens; use at most that")
    return fast


def make_weights(folder: pathlib.Path, tokenizer, args: argparse.Namespace) -> int:
    """Save the random checkpoint. Returns its number of parameters."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(args.seed)
    config = Qwen3Config(
        vocab_size=args.vocab, hidden_size=args.hidden, intermediate_size=2 * args.hidden, num_hidden_layers=args.layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=args.hidden // 4, max_position_embeddings=args.context,
        rms_norm_eps=1e-6, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(folder, safe_serialization=True)
    return sum(parameter.numel() for parameter in model.parameters())


def identity(args: argparse.Namespace) -> dict:
    """What the result depends on."""
    return {
        "vocab": args.vocab, "context": args.context, "layers": args.layers, "hidden": args.hidden, "seed": args.seed,
        "python": sys.version.split()[0],
        "maker": hashlib.sha256(pathlib.Path(__file__).read_bytes() + TEMPLATE.read_bytes()).hexdigest()[:16],
    }


def make(args: argparse.Namespace) -> str:
    """Make the folder args.out unless it is there already. Returns a line that says what happened."""
    out, wanted = args.out.absolute(), identity(args)
    stamp = out / STAMP
    if stamp.is_file():
        made = json.loads(stamp.read_text(encoding="utf-8"))
        if made == wanted:
            return f"{out}: already made"
        if not args.force:
            differing = ", ".join(f"{key} {made.get(key)} -> {value}" for key, value in wanted.items() if made.get(key) != value)
            raise FileExistsError(f"--out {out}: holds a model made with other options ({differing}); use another folder or --force")
    elif out.exists() and any(out.iterdir()):
        raise FileExistsError(f"--out {out}: is not empty and was not made by this command; use another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    work = pathlib.Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        parameters = make_weights(work, make_tokenizer(work, args.vocab, args.context), args)
        (work / STAMP).write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
        for path in work.iterdir():
            path.chmod(0o644)
        work.chmod(0o755)
        replace(work, out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return f"{out}: made, {parameters} parameters, {args.vocab} tokens"


def replace(work: pathlib.Path, out: pathlib.Path) -> None:
    """Put the finished folder in place. A mount point cannot be renamed over: there the files move in, the stamp last."""
    if out.is_mount():
        for path in sorted(out.iterdir()):
            if path.name == STAMP:
                path.unlink()
        for path in sorted(work.iterdir(), key=lambda item: item.name == STAMP):
            staged = out / f".{path.name}.new"
            shutil.copyfile(path, staged)
            os.replace(staged, out / path.name)
        return
    if out.exists():
        shutil.rmtree(out)
    os.replace(work, out)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse and check; argparse's own error names the option."""
    parser = argparse.ArgumentParser(prog="infera-make-model", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder of the model")
    parser.add_argument("--vocab", type=int, default=8192, help="tokens in the vocabulary, specials included")
    parser.add_argument("--context", type=int, default=65536, help="longest sequence, in tokens")
    parser.add_argument("--layers", type=int, default=2, help="transformer layers")
    parser.add_argument("--hidden", type=int, default=64, help="hidden size, a multiple of 8")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights")
    parser.add_argument("--force", action="store_true", help="replace a model that this command made with other options")
    args = parser.parse_args(argv)
    for name, low in (("vocab", MIN_VOCAB), ("context", 16), ("layers", 1), ("hidden", 8)):
        if getattr(args, name) < low:
            parser.error(f"--{name} {getattr(args, name)}: must be at least {low}")
    if args.hidden % 8:
        parser.error(f"--hidden {args.hidden}: must be a multiple of 8")
    return args


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    try:
        print(make(args))
    except (OSError, RuntimeError) as error:
        print(f"infera-make-model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
