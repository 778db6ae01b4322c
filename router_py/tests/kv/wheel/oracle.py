"""Ask the real SGLang 0.5.22 wheel what it does. Runs under the wheel's own interpreter, never the router's.

    oracle.py < questions.json > answers.json

Questions and answers are objects with these members:
    prompts {model folder: [{route, body}]}   prompt ids of bodies, by the wheel's request models and serving classes
    hashes  [{tokens, page_size, pairs, salt}]   page event ids, by the wheel's radix keys and recorder; null where its hash extension, which
            is compiled when first used, cannot be built
    system  [{route, body}]   messages of Responses and Anthropic bodies, with and without inline system
    batches null   event batches (hex) built and encoded with the wheel's own classes

Only what needs a running engine is replaced: the tokenizer manager and the template manager's owner hold just what these functions read.
"""

from __future__ import annotations

import json
import sys
import types


def serving(model_dir: str):
    """(chat, responses, anthropic): the wheel's serving objects over a real tokenizer and template manager, without an engine."""
    import sglang.srt.runtime_context as runtime_context
    from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
    from sglang.srt.entrypoints.openai import serving_chat
    from sglang.srt.entrypoints.openai.serving_chat import OpenAIServingChat
    from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses
    from sglang.srt.parser import template_manager as template_module
    from transformers import AutoConfig, AutoTokenizer

    del runtime_context
    settings = types.SimpleNamespace(hf_chat_template_name=None, trust_request_chat_template=False, allow_auto_truncate=True)
    for module in (serving_chat, template_module):
        module.get_serving = lambda: settings
        module.get_model = lambda: types.SimpleNamespace(context_length=1 << 30, revision=None)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    config = AutoConfig.from_pretrained(model_dir)
    model = types.SimpleNamespace(is_multimodal=False, hf_config=config, get_default_sampling_params=lambda: {})
    manager = types.SimpleNamespace(tokenizer=tokenizer, processor=None, model_config=model, model_path=model_dir, served_model_name="m")
    templates = template_module.TemplateManager()
    templates.initialize_templates(manager, model_dir)

    def make(cls):
        made = object.__new__(cls)
        made.tokenizer_manager, made.template_manager = manager, templates
        made.tool_call_parser = made.reasoning_parser = made._reasoning_detector = None
        made.default_chat_template_kwargs = None
        made.default_sampling_params = {}
        made.is_gpt_oss = made.is_gemma4 = made.use_harmony = False
        made.chat_encoding_spec = made._resolve_chat_encoding_spec()
        made.supports_inline_system = made._resolve_inline_system_support()
        made._tokenizer_auto_adds_specials = len(tokenizer.encode("")) > 0
        made._prompt_text_round_trip_is_lossy = made._probe_prompt_text_round_trip()
        made._chat_template_cache = {}
        made.msg_store = {}
        return made

    chat = make(OpenAIServingChat)
    return chat, make(OpenAIServingResponses), AnthropicServing(chat)


def chat_ids(chat, request):
    error = chat._validate_request(request)
    if error:
        raise ValueError(error)
    if request.chat_template_kwargs:
        effort = request.chat_template_kwargs.pop("reasoning_effort", None)
        if effort is not None:
            request.reasoning_effort = effort
    return list(chat._process_messages(request, False).prompt_ids)


def prompts(model_dir: str, cases: list) -> list:
    import asyncio

    from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest, ResponsesRequest

    chat, responses, anthropic = serving(model_dir)
    tokenizer = chat.tokenizer_manager.tokenizer

    def one(case):
        route, body = case["route"], case["body"]
        if route == "/v1/chat/completions":
            return [chat_ids(chat, ChatCompletionRequest(**body))]
        if route == "/v1/messages":
            return [chat_ids(chat, anthropic._convert_to_chat_completion_request(AnthropicMessagesRequest(**body)))]
        if route == "/v1/responses":
            request = ResponsesRequest(**body)
            _, texts, _, processed = asyncio.run(responses._make_request(request, None, tokenizer))
            del texts
            return [list(processed.prompt_ids)]
        prompt = CompletionRequest(**body).prompt
        items = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
        return [tokenizer([item])["input_ids"][0] if isinstance(item, str) else item for item in items]

    out = []
    for case in cases:
        try:
            out.append({"ids": one(case)})
        except Exception as exc:
            out.append({"error": f"{type(exc).__name__}: {exc}"[:300]})
    return out


def hashes(cases: list) -> list:
    """Each case: tokens, page_size, pairs, salt. The answer: what the wheel's recorder publishes for the one node that holds them."""
    import array

    from sglang.srt.mem_cache.events import KVCacheEventRecorder
    from sglang.srt.mem_cache.radix_cache import RadixKey, TreeNode

    out = []
    for case in cases:
        size, pairs = case["page_size"], case["pairs"]
        key = RadixKey(array.array("q", case["tokens"]), extra_key=case.get("extra_key"), is_bigram=pairs, cache_salt=case.get("salt"))
        key = key.page_aligned(size)
        if len(key) == 0:
            out.append([])
            continue
        root = TreeNode()
        root.key, root.hash_value = RadixKey(array.array("q"), extra_key=case.get("extra_key"), cache_salt=case.get("salt")), []
        node = TreeNode()
        node.key, node.parent = key, root
        recorder = KVCacheEventRecorder(enabled=True, page_size=size)
        recorder.record_store(node)
        out.append([value for event in recorder.take() for value in event.block_hashes])
    return out


def system(cases: list) -> list:
    from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from sglang.srt.entrypoints.anthropic.serving import AnthropicServing
    from sglang.srt.entrypoints.openai.protocol import ResponsesRequest
    from sglang.srt.entrypoints.openai.serving_responses import OpenAIServingResponses

    def build(case, flag):
        import copy

        body = copy.deepcopy(case["body"])
        if case["route"] == "/v1/responses":
            made = object.__new__(OpenAIServingResponses)
            made.supports_inline_system, made.msg_store = flag, {}
            return made._construct_input_messages(ResponsesRequest(**body))
        chat = types.SimpleNamespace(
            supports_inline_system=flag,
            supports_native_reasoning_history=lambda: False,
            wrap_reasoning_history=lambda text: f"<think>{text}</think>",
            apply_reasoning_enabled=lambda request, enabled: None,
        )
        request = AnthropicServing(chat)._convert_to_chat_completion_request(AnthropicMessagesRequest(**body))
        return [message.model_dump(exclude_none=True) for message in request.messages]

    out = []
    for case in cases:
        try:
            both = [build(case, flag) for flag in (False, True)]
            out.append({"equal": both[0] == both[1], "inline": json.loads(json.dumps(both[1], default=str))})
        except Exception as exc:
            out.append({"error": f"{type(exc).__name__}: {exc}"[:300]})
    return out


def batches() -> dict:
    import msgspec
    from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch, StorageMedium

    def stored(hashes, parent, medium=StorageMedium.GPU, tokens=(1, 2), **more):
        return BlockStored(
            block_hashes=hashes, parent_block_hash=parent, token_ids=list(tokens), block_size=2, lora_id=None, medium=medium, **more
        )

    encode = msgspec.msgpack.Encoder().encode
    made = {
        "plain": [stored([11, -12], None, tokens=(1, 2, 3, 4)), stored([13], -12)],
        "host_copy": [stored([11], None, StorageMedium.CPU)],
        "device_gone": [BlockRemoved(block_hashes=[11], medium=StorageMedium.GPU)],
        "host_gone": [BlockRemoved(block_hashes=[11], medium=StorageMedium.CPU)],
        "disk": [stored([21], None, StorageMedium.DISK), stored([22], 21, StorageMedium.EXTERNAL)],
        "pairs": [stored([31], None, tokens=((1, 2), (2, 3)))],
        "salted": [stored([41], None, cache_salt="s", session_id="x")],
        "lora": [stored([51], None, lora_name="adapter")],
        "cleared": [AllBlocksCleared()],
        "no_medium": [stored([61], None, None), BlockRemoved(block_hashes=[61])],
    }
    return {name: encode(KVEventBatch(ts=1.5, events=list(events), attn_dp_rank=0)).hex() for name, events in made.items()}


def main() -> None:
    given = json.load(sys.stdin)
    try:
        hashed = hashes(given["hashes"])
    except RuntimeError as exc:
        if "native hash extension" not in str(exc):
            raise
        hashed = None
    answers = {
        "prompts": {folder: prompts(folder, cases) for folder, cases in given["prompts"].items()},
        "hashes": hashed,
        "system": system(given["system"]),
        "batches": batches(),
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
