#!/usr/bin/env python3
"""Drive the installed SGLang's Responses stream with a scripted generator and report what a client would receive.

usage: responses_stream.py            prints one JSON object: scenario -> calls, valid, final, events, error
Runs in the engine image as well (no engine, no model, no GPU): `python3 responses_stream.py`. Exit status 1 when, in any
scenario, the deltas of a call do not add up to its done event and to the final item, or its arguments are not complete.

The engine is scripted; the request, the stream generator, the events and the function-call detectors are SGLang's own.
"""
import asyncio
import json
import sys
import types

from sglang.srt.entrypoints.openai import serving_responses as module
from sglang.srt.entrypoints.openai.protocol import RequestResponseMetadata, ResponsesRequest

PARIS = {"city": "Paris", "days": 3}
ROME = {"city": "Rom\u00e9", "days": 4}
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "name": "weather", "parameters": PARAMETERS}]
PATCHED_HELPER = "_infera_unstreamed_arguments"


class ScriptedParser:
    """A function-call parser with a script: per chunk, the pieces that it streams and what it has parsed by then."""

    def __init__(self, script):
        self.script = list(script)
        self.detector = types.SimpleNamespace(prev_tool_call_arr=[])

    def parse_stream_chunk(self, _text):
        if not self.script:
            return "", []
        text, pieces, known = self.script.pop(0)
        if known is None:
            del self.detector.prev_tool_call_arr
        else:
            self.detector.prev_tool_call_arr = known
        return text, [types.SimpleNamespace(tool_index=index, name=name, parameters=part) for index, name, part in pieces]

    def parse_stream_end(self):
        return "", []


def known(*arguments):
    return [{"name": "weather", "arguments": one} for one in arguments]


whole, rome = json.dumps(PARIS, ensure_ascii=False), json.dumps(ROME, ensure_ascii=False)
# name -> (chunks of the parser, complete arguments of each call)
SCRIPTED = {
    "with-the-last-chunk": ([("", [(0, "weather", "")], known({})), ("", [], known(PARIS))], [whole]),
    "in-pieces": ([("", [(0, "weather", "")], known({})), ("", [(0, None, whole[:9])], known({"city": "P"})), ("", [], known(PARIS))], [whole]),
    "complete": ([("", [(0, "weather", "")], known({})), ("", [(0, None, whole)], known(PARIS))], [whole]),
    "two-calls": ([("", [(0, "weather", ""), (0, None, whole[:12])], known({"city": "Pa"})),
                   ("", [(1, "weather", "")], known(PARIS, {})), ("", [(1, None, rome[:5])], known(PARIS, ROME))], [whole, rome]),
    "text-of-the-parser": ([("", [(0, "weather", whole[:4])], known(whole))], [whole]),
    "no-call": ([("Good ", [], []), ("day", [], [])], []),
}
# What must stay as it is: a parsed text that does not extend the streamed one, no array, an index beyond it.
UNTOUCHED = {
    "does-not-extend": ([("", [(0, "weather", '{"town": "')], known(PARIS))], ['{"town": "']),
    "no-array": ([("", [(0, "weather", whole[:7])], None)], [whole[:7]]),
    "beyond-the-array": ([("", [(0, "weather", whole[:7])], [])], [whole[:7]]),
}


class Serving(module.OpenAIServingResponses):
    """The real class around a scripted engine."""

    def __init__(self, tool_call_parser):
        self.tool_call_parser = tool_call_parser
        self.reasoning_parser = None
        self.tokenizer_manager = types.SimpleNamespace(tokenizer=None, server_args=types.SimpleNamespace(incremental_streaming_output=False))
        self.template_manager = types.SimpleNamespace(force_reasoning=False)
        self._encoding_adapter = None
        self.enable_prompt_tokens_details = False
        self.enable_response_store = False


async def chunks(texts, finish):
    sent = ""
    for number, text in enumerate(texts):
        sent += text
        last = number == len(texts) - 1
        yield {"text": sent, "meta_info": {"prompt_tokens": 5, "completion_tokens": number + 1, "finish_reason": finish if last else None}}


async def drive(serving, texts, tools, finish):
    request = ResponsesRequest(model="m", input="hi", tools=tools, stream=True, store=False)
    generator = serving._responses_stream_generator_non_harmony(
        request, {}, chunks(texts, finish), "m", None, RequestResponseMetadata(request_id="r"), 1, require_reasoning=False)
    events = []
    async for text in generator:
        head, data = text.strip().split("\n", 1)
        events.append((head[len("event: "):], json.loads(data[len("data: "):])))
    return events


def received(events):
    """Per call, in the order of opening: what a client puts together from deltas, done events and final items."""
    calls = {}
    for kind, event in events:
        for delta, field in (("function_call_arguments", "arguments"), ("custom_tool_call_input", "input")):
            if kind == f"response.{delta}.delta":
                calls.setdefault(event["item_id"], {"deltas": [], "done": None})["deltas"].append(event["delta"])
            elif kind == f"response.{delta}.done":
                calls.setdefault(event["item_id"], {"deltas": [], "done": None})["done"] = event[field]
    final = events[-1][1]["response"]["output"] if "response" in events[-1][1] else []
    items = [item.get("arguments", item.get("input")) for item in final if item["type"] in ("function_call", "custom_tool_call")]
    return list(calls.values()), items


def report(events, complete):
    calls, final = received(events)
    done = [call["done"] for call in calls]
    return {"calls": calls, "final": final, "events": [kind for kind, _ in events], "sequence": [event.get("sequence_number") for _, event in events],
            "consistent": ["".join(call["deltas"]) for call in calls] == done == final, "complete": done == complete}


def scripted(script, tools=TOOLS, finish=None):
    """Events of one scripted stream; the parser's class is swapped for the time of the call."""
    parser, real = ScriptedParser(script), module.FunctionCallParser
    serving = Serving("scripted")
    serving._tool_parser_owns_format = lambda probe: True
    module.FunctionCallParser = type("Scripted", (), {"__new__": staticmethod(lambda cls, *args, **kwargs: parser)})
    try:
        return asyncio.run(drive(serving, ["x"] * len(script), tools, finish or {"type": "stop"}))
    finally:
        module.FunctionCallParser = real


def detected(name, texts):
    """The same stream through one of SGLang's own detectors."""
    return asyncio.run(drive(Serving(name), texts, TOOLS, {"type": "length"}))


def main():
    # These globals are set by a running server only.
    module.get_serving = lambda: types.SimpleNamespace(incremental_streaming_output=False)
    out = {"patched": hasattr(module, PATCHED_HELPER), "scenarios": {}}
    for name, (script, complete) in {**SCRIPTED, **UNTOUCHED}.items():
        out["scenarios"][name] = report(scripted(script), complete)
    custom = [{"type": "custom", "name": "shell"}]
    payload = json.dumps({"input": "ls -l"})
    out["scenarios"]["custom-tool"] = report(
        scripted([("", [(0, "shell", payload[:12])], [{"name": "shell", "arguments": payload}])], custom), ["ls -l"])
    out["scenarios"]["aborted"] = report(
        scripted(SCRIPTED["in-pieces"][0], finish={"type": "abort", "message": "gone", "status_code": 500}), [whole])
    # A call whose stream was cut inside an argument: the detector parses more than it hands out.
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 3'
    out["scenarios"]["qwen25-cut"] = report(detected("qwen25", [call[i:i + 6] for i in range(0, len(call), 6)]), None)
    json.dump(out, sys.stdout, indent=1)
    print()
    wanted = [out["scenarios"][name] for name in SCRIPTED]
    return 0 if all(one["consistent"] and one["complete"] for one in wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
