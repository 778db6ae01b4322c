"""Responses API: tool-call arguments that the parser learned but never streamed reach the client.

When the stream ends, or the next call opens, the detector may hold more of a call's arguments than it has handed out as
deltas; the chat endpoint flushes that remainder, the Responses stream drops it and closes the item with truncated JSON. The
remainder is appended when the call is closed, so it stays in order before the item's done events. It is taken only where the
parsed text extends what the client already has: a delta cannot be taken back.

A stream that was aborted is flushed too, as chat does. Not reachable from here: a whole call that arrives in one chunk and leaves the
detector's own array empty.
"""
from patchlib import Edit, Need, Patch

FILE = "srt/entrypoints/openai/serving_responses.py"

CLOSE = '''            arguments = state["arguments"]
            events: list = []
'''
CLOSE_NEW = '''            infera_unstreamed = _infera_unstreamed_arguments(
                tool_parser, tool_index, state["arguments"]
            )
            state["arguments"] += infera_unstreamed
            arguments = state["arguments"]
            events: list = []
            if infera_unstreamed and not state["custom"]:
                events.append(
                    _send_event(
                        openai_responses_types.ResponseFunctionCallArgumentsDeltaEvent(
                            type="response.function_call_arguments.delta",
                            sequence_number=-1,
                            item_id=state["item_id"],
                            output_index=state["output_index"],
                            delta=infera_unstreamed,
                        )
                    )
                )
'''

HELPER_ANCHOR = "\n\nclass OpenAIServingResponses(OpenAIServingChat):\n"
HELPER = '''

def _infera_unstreamed_arguments(tool_parser, tool_index: int, streamed: str) -> str:
    """What the parser knows of a call's arguments beyond what was streamed; "" where that is nothing, or does not extend it."""
    detector = getattr(tool_parser, "detector", tool_parser)
    calls = getattr(detector, "prev_tool_call_arr", None) or []
    if not 0 <= tool_index < len(calls) or not isinstance(calls[tool_index], dict):
        return ""
    known = calls[tool_index].get("arguments")
    if known is None:
        return ""
    if not isinstance(known, str):
        known = json.dumps(known, ensure_ascii=False)
    return known[len(streamed) :] if known.startswith(streamed) else ""
'''

PATCH = Patch(
    edits=(Edit(FILE, ((HELPER_ANCHOR, HELPER + HELPER_ANCHOR),)), Edit(FILE, ((CLOSE, CLOSE_NEW),))),
    needs=(
        Need(FILE, "        def _close_tool_call_state(tool_index: int):", "where a call is closed", 1),
        Need(FILE, "tool_parser: Optional[Union[FunctionCallParser, JsonArrayParser]] = None", "the parser in the closure", 1),
        Need(FILE, "\nimport json\n", "json is imported", 1),
        Need("srt/function_call/base_format_detector.py", "self.prev_tool_call_arr", "what detectors have parsed"),
    ),
    markers={FILE: "_infera_unstreamed_arguments"},
    evidence="a closing call streams the arguments that its parser still holds",
)
