"""Model folders for the tests: the committed small tokenizer with one of two chat templates."""

from __future__ import annotations

import json
import pathlib

NAMES = ("glm", "plain")
FIXTURES = pathlib.Path(__file__).parent / "fixtures"


def make_model(name: str, folder: pathlib.Path) -> pathlib.Path:
    """ "glm": template file, lists of parts, no BOS. "plain": template in the config, text only, BOS around raw prompts."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((FIXTURES / "models" / "tokenizer.json").read_text())
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "model_max_length": 1 << 20,
        "clean_up_tokenization_spaces": False,
    }
    if name == "plain":
        config["bos_token"] = {
            "content": "<s>",
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "__type": "AddedToken",
        }
        config["chat_template"] = (FIXTURES / "models" / "plain.jinja").read_text()
        begin = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == "<s>")
        tokenizer["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [begin], "tokens": ["<s>"]}},
        }
    else:
        (folder / "chat_template.jinja").write_text((FIXTURES / "models" / "glm_like.jinja").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 1600}))
    return folder
