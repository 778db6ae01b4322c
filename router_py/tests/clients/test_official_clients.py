"""The official openai and anthropic clients through the router: whole and streamed answers, errors, and tools there and back."""

import json

import anthropic
import openai
import pytest
from infera_emulator.faults.replies import value_for
from rig import Rig, run

pytestmark = pytest.mark.slow

SCHEMA = {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "precise": {"type": "boolean"}, "unit": {"enum": ["celsius", "kelvin"]},
    "places": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "height": {"type": "number"}}}}}}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "description": "tells the weather", "parameters": SCHEMA}}
MESSAGES = [{"role": "user", "content": "How is the weather in Zürich?"}]
WANT = value_for(SCHEMA, "arguments")


def openai_client(rig, **more):
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{rig.port}/v1", api_key="sk-some-key-000", max_retries=0, **more)


def anthropic_client(rig, **more):
    return anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{rig.port}", api_key="sk-some-key-000", max_retries=0, **more)


def test_openai_chat_whole_and_streamed():
    async def body():
        async with Rig() as rig, openai_client(rig) as client:
            whole = await client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=9)
            assert whole.choices[0].message.content and whole.usage.completion_tokens == 9
            text, usage = "", None
            async for chunk in await client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=9, stream=True,
                                                                    stream_options={"include_usage": True}):
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
                usage = chunk.usage or usage
            assert text == whole.choices[0].message.content and usage.completion_tokens == 9
            done = await client.completions.create(model="fake", prompt="The quick", max_tokens=4)
            assert done.choices[0].text
            assert [model.id async for model in client.models.list()] == ["fake"]
            assert (await client.models.retrieve("fake")).id == "fake"
            await rig.settle()

    run(body())


def test_openai_tools_there_and_back():
    async def body():
        async with Rig() as rig, openai_client(rig) as client:
            whole = await client.chat.completions.create(model="fake", messages=MESSAGES, tools=[CHAT_TOOL])
            (call,) = whole.choices[0].message.tool_calls
            assert call.function.name == "weather" and json.loads(call.function.arguments) == WANT
            arguments, name = "", None
            async for chunk in await client.chat.completions.create(model="fake", messages=MESSAGES, tools=[CHAT_TOOL], stream=True):
                for piece in chunk.choices[0].delta.tool_calls or ():
                    name = piece.function.name or name
                    arguments += piece.function.arguments or ""
            assert name == "weather" and json.loads(arguments) == WANT
            result = 'sunny, 21 °C "really"\n☀'
            turn = [*MESSAGES, whole.choices[0].message.model_dump(exclude_none=True),
                    {"role": "tool", "tool_call_id": call.id, "content": result}]
            final = await client.chat.completions.create(model="fake", messages=turn, tools=[CHAT_TOOL])
            assert final.choices[0].message.content == f"The result was {result}"
            # what the engine got is what the client sent
            sent = rig.engines["decode"][0].seen[-1][1]
            assert sent["tools"] == [CHAT_TOOL] and sent["messages"] == turn
            await rig.settle()

    run(body())


def test_openai_responses():
    async def body():
        async with Rig() as rig, openai_client(rig) as client:
            whole = await client.responses.create(model="fake", input="hello", max_output_tokens=6)
            assert whole.status == "completed" and whole.output_text
            text, last = "", None
            async with client.responses.stream(model="fake", input="hello", max_output_tokens=6) as stream:
                async for event in stream:
                    last = event.type
                    if event.type == "response.output_text.delta":
                        text += event.delta
            assert last == "response.completed" and text == whole.output_text
            tool = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}
            called = await client.responses.create(model="fake", input="hello", tools=[tool])
            (item,) = called.output
            assert item.type == "function_call" and json.loads(item.arguments) == WANT
            async with client.responses.stream(model="fake", input="hello", tools=[tool]) as stream:
                final = await stream.get_final_response()
            assert json.loads(final.output[0].arguments) == WANT
            await rig.settle()

    run(body())


def test_openai_errors():
    async def body():
        async with Rig(settings={"request_max_retries": 0, "max_concurrent_requests": 50}) as rig, openai_client(rig) as client:
            async def fails(kind, **more):
                with pytest.raises(kind) as caught:
                    await client.chat.completions.create(**{"model": "fake", "messages": MESSAGES, **more})
                return caught.value

            assert "other" in (await fails(openai.NotFoundError, model="other")).message
            assert (await fails(openai.BadRequestError, extra_body={"bootstrap_room": 1})).status_code == 400
            assert (await fails(openai.BadRequestError, extra_body={"fault": {"decode": "status:400"}})).status_code == 400
            assert (await fails(openai.InternalServerError, extra_body={"fault": {"decode": "status:500"}})).status_code == 500
            assert (await fails(openai.InternalServerError, extra_body={"fault": {"decode": "reset"}})).status_code == 502
            # a stream that breaks raises in the loop, it does not end as if it were complete
            stream = await client.chat.completions.create(model="fake", messages=MESSAGES, stream=True, extra_body={"fault": {"decode": "rst:2"}})
            with pytest.raises(openai.APIError, match="broke off"):
                async for _ in stream:
                    pass
            rig.app.settings = rig.app.core.settings.__class__(max_concurrent_requests=1)
            rig.app.fleet.apply({})
            assert (await fails(openai.InternalServerError)).status_code == 503
            await rig.settle()

    run(body())


def test_anthropic_messages_whole_and_streamed():
    async def body():
        async with Rig() as rig, anthropic_client(rig) as client:
            whole = await client.messages.create(model="fake", max_tokens=7, messages=MESSAGES)
            assert whole.content[0].text and whole.stop_reason == "end_turn"
            async with client.messages.stream(model="fake", max_tokens=7, messages=MESSAGES) as stream:
                text = "".join([piece async for piece in stream.text_stream])
                final = await stream.get_final_message()
            assert text == whole.content[0].text == final.content[0].text and final.stop_reason == "end_turn"
            count = await client.messages.count_tokens(model="fake", messages=MESSAGES)
            assert count.input_tokens == whole.usage.input_tokens
            await rig.settle()

    run(body())


def test_anthropic_tools_there_and_back():
    async def body():
        async with Rig() as rig, anthropic_client(rig) as client:
            tool = {"name": "weather", "description": "tells the weather", "input_schema": SCHEMA}
            whole = await client.messages.create(model="fake", max_tokens=50, messages=MESSAGES, tools=[tool])
            (use,) = whole.content
            assert whole.stop_reason == "tool_use" and use.name == "weather" and use.input == WANT
            async with client.messages.stream(model="fake", max_tokens=50, messages=MESSAGES, tools=[tool]) as stream:
                final = await stream.get_final_message()
            assert final.content[0].input == WANT
            turn = [*MESSAGES, {"role": "assistant", "content": [use.model_dump()]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny ☀"}]}]
            last = await client.messages.create(model="fake", max_tokens=50, messages=turn, tools=[tool])
            assert last.content[0].text == "The result was sunny ☀"
            assert rig.engines["decode"][0].seen[-1][1]["tools"] == [tool]
            await rig.settle()

    run(body())


def test_anthropic_errors():
    async def body():
        async with Rig(settings={"request_max_retries": 0}) as rig, anthropic_client(rig) as client:
            async def fails(kind, **more):
                with pytest.raises(kind) as caught:
                    await client.messages.create(**{"model": "fake", "max_tokens": 5, "messages": MESSAGES, **more})
                return caught.value

            assert (await fails(anthropic.NotFoundError, model="other")).body["error"]["type"] == "not_found_error"
            assert (await fails(anthropic.BadRequestError, extra_body={"routed_dp_rank": 1})).body["type"] == "error"
            failed = await fails(anthropic.APIStatusError, extra_body={"fault": {"decode": "reset"}})
            assert failed.status_code == 502 and failed.body["error"]["type"] == "api_error"
            with pytest.raises(anthropic.APIStatusError, match="broke off"):
                async with client.messages.stream(model="fake", max_tokens=5, messages=MESSAGES, extra_body={"fault": {"decode": "rst:2"}}) as stream:
                    await stream.get_final_message()
            rig.app.fleet.apply({})
            assert (await fails(anthropic.APIStatusError)).body["error"]["type"] == "overloaded_error"
            await rig.settle()

    run(body())
