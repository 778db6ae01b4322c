"""Both legs carry what SGLang needs, and the decode's bytes reach the client as they are."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from infera_emulator.faults.replies import Reply
from infera_router.kv import outline
from infera_router.kv.errors import Unknown
from infera_router.pd import envelope
from rig import Rig, run

ROUTES = {
    "/v1/chat/completions": {"model": "fake", "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": "fake", "prompt": "hi"},
    "/v1/responses": {"model": "fake", "input": "hi"},
    "/v1/messages": {"model": "fake", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
    "/generate": {"text": "hi"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_every_route_answers_in_pd_byte_for_byte(path, stream):
    async def body():
        async with Rig(prefill_ranks=2, decode_ranks=2) as rig:
            for _ in range(4):
                request = {**ROUTES[path], "stream": stream}
                answer = await rig.ask(request, path)
                assert answer.status == 200 and answer.complete
                engine = rig.engines["decode"][0]
                _, sent, headers = engine.seen[-1]
                reply = Reply(path, sent, sent.get("rid") or "made-up")
                assert answer.body == (b"".join(reply.events()) if stream else reply.whole())
                prefill_headers = rig.engines["prefill"][0].seen[-1][2]
                assert headers["x-infera-request-id"] == answer.headers["x-infera-request-id"] == prefill_headers["x-infera-request-id"]
            assert not rig.rooms.mismatches
            seen = [(s[1]["bootstrap_room"], int(s[2]["x-data-parallel-rank"]), s[1]) for s in rig.engines["prefill"][0].seen]
            assert {rank for _, rank, _ in seen} == {0, 1}
            assert all(room % 2 == rank and 0 <= room < 1 << 63 for room, rank, _ in seen)
            for _, sent, headers in rig.engines["decode"][0].seen:
                assert sent["routed_dp_rank"] == int(headers["x-data-parallel-rank"]) and sent["disagg_prefill_dp_rank"] in (0, 1)
                assert ("rid" in sent) == (path in ("/v1/chat/completions", "/v1/completions", "/generate"))
            await rig.settle()

    run(body())


CHOICES = [("/v1/chat/completions", {"n": 2}), ("/v1/completions", {"n": 3}), ("/generate", {"sampling_params": {"n": 2}})]


@pytest.mark.parametrize("path, more", CHOICES)
def test_several_choices_are_refused_by_a_pair_and_forwarded_to_a_mixed_worker(path, more):
    """SGLang gives every choice the same room: the first would take the others' transfer."""
    async def body():
        async with Rig() as rig:
            answer = await rig.ask({**ROUTES[path], **more}, path)
            assert answer.status == 400 and "n: a prefill/decode pair makes one choice" in answer.body.decode()
            for one in ({"n": 1}, {"n": None}, {"sampling_params": {"n": 1}}, {"sampling_params": {"temperature": 0}}):
                assert (await rig.ask({**ROUTES[path], **one}, path)).status == 200
            assert all(len(engine.seen) == 4 for engine in rig.all())
            await rig.settle()
        async with Rig(0, 0, 1) as rig:
            assert (await rig.ask({**ROUTES[path], **more}, path)).status == 200

    run(body())


@pytest.mark.parametrize("sampling, many", [('{"n": 2}', True), ('[{"n": 2}, {"n": 2}]', True), ('{"n": 1}', False), ('{"n": null}', False),
                                            ('[]', False), ('"n"', False), ('{"stop": "\\"n\\""}', False)])
def test_native_bodies_name_their_choices_in_the_sampling_parameters(sampling, many):
    assert envelope.read(b'{"text": "hi", "sampling_params": %b}' % sampling.encode())[0].many is many


@pytest.mark.parametrize("stream", [False, True])
def test_mixed_mode_forwards_without_bootstrap(stream):
    async def body():
        async with Rig(0, 0, 2) as rig:
            for _ in range(4):
                answer = await rig.ask(rig.chat(stream))
                assert answer.status == 200 and answer.complete
            assert [engine.requests for engine in rig.engines["mixed"]] == [2, 2]
            assert "bootstrap_room" not in rig.engines["mixed"][0].seen[0][1]
            await rig.settle()

    run(body())


def test_count_tokens_goes_to_one_prefill_without_a_room():
    async def body():
        async with Rig() as rig:
            answer = await rig.ask({"model": "fake", "messages": [{"role": "user", "content": "hi"}]}, "/v1/messages/count_tokens")
            assert answer.status == 200 and answer.json()["input_tokens"] > 0
            assert rig.engines["decode"][0].requests == 0
            assert "bootstrap_room" not in rig.engines["prefill"][0].seen[0][1]
            await rig.settle()

    run(body())


def test_without_ranks_no_rank_is_sent():
    async def body():
        async with Rig() as rig:
            await rig.ask(rig.chat())
            for role in ("prefill", "decode"):
                _, sent, headers = rig.engines[role][0].seen[0]
                assert "x-data-parallel-rank" not in headers
                assert not {"routed_dp_rank", "disagg_prefill_dp_rank"} & set(sent)

    run(body())


def test_clients_cannot_steer_and_private_members_stay_here():
    async def body():
        async with Rig() as rig:
            for name in ("bootstrap_host", "bootstrap_room", "routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"):
                answer = await rig.ask(rig.chat(**{name: 1}))
                assert answer.status == 400 and name in answer.json()["error"]["message"]
            answer = await rig.ask(json.dumps(rig.chat()).replace('"max_tokens"', '"boot\\u0073trap_room": 5, "max_tokens"').encode())
            assert answer.status == 400
            answer = await rig.ask(rig.chat(_secret=1, bootstrap_room=None), headers={
                "X-Data-Parallel-Rank": "7", "X-Override-Bootstrap-Room": "1", "Authorization": "Bearer x", "Cookie": "a=b", "traceparent": "00-1-2-3"})
            assert answer.status == 200
            _, sent, headers = rig.engines["decode"][0].seen[-1]
            assert "_secret" not in sent and isinstance(sent["bootstrap_room"], int)
            assert not {"x-data-parallel-rank", "x-override-bootstrap-room", "authorization", "cookie"} & set(headers)
            assert headers["traceparent"] == "00-1-2-3"

    run(body())


def test_a_callers_rid_is_kept():
    async def body():
        async with Rig() as rig:
            await rig.ask(rig.chat(rid="mine"))
            assert all(rig.engines[role][0].seen[0][1]["rid"] == "mine" for role in ("prefill", "decode"))

    run(body())


def test_errors_name_what_is_missing():
    async def body():
        async with Rig(1, 1) as rig:
            rig.register(without=rig.engines["decode"][0])
            answer = await rig.ask(rig.chat())
            assert answer.status == 503 and answer.headers["retry-after"] == "1"
            assert "no active decode" in answer.json()["error"]["message"] and "1 prefill" in answer.json()["error"]["message"]
            rig.app.fleet.apply({})
            answer = await rig.ask(rig.chat())
            assert answer.status == 503
            rig.register()
            assert (await rig.ask(rig.chat(model="other"))).status == 404
            assert (await rig.ask(b"{")).status == 400
            assert (await rig.ask(b"[1]")).status == 400
            answer = await rig.ask({**rig.chat(), "model": 5}, "/v1/messages")
            assert answer.status == 400 and answer.json()["type"] == "error"
            rig.register(bootstrap_host=None, bootstrap_port=None)
            answer = await rig.ask(rig.chat())
            assert answer.status == 500 and rig.metric("infera_pd_bootstrap_failures_total", "bootstrap_address_missing") == 1
            await rig.settle()

    run(body())


def test_an_absent_model_is_taken_from_the_only_one():
    async def body():
        async with Rig() as rig:
            request = rig.chat()
            del request["model"]
            assert (await rig.ask(request)).status == 200
            assert (await rig.ask({**request, "model": ""})).status == 200

    run(body())


JSON = st.recursive(st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab_\"]}, ", max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab_", max_size=2), inner, max_size=3), max_leaves=6)
NAMES = ["model", "stream", "rid", "n", "sampling_params", "prompt_cache_key", "prompt_cache_retention", "messages", "_own", "bootstrap_room", "tools", ""]
MEMBERS = st.lists(st.tuples(st.sampled_from(NAMES), JSON), max_size=4)
TAILS = ["", " ", ",", "]", "]}", "}", ", ]}", ",\n]}", " , 1]}", "{}]}", "[]]}", ']} x', '], "n": 2}', '],"n":2,"n":1}', '],}', '],"messages":[]}']


def document(pairs):
    return ",".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in pairs)


@settings(max_examples=400, deadline=None)
@given(before=MEMBERS, items=st.lists(JSON, min_size=1, max_size=3), more=st.lists(JSON, max_size=2), after=MEMBERS, tail=st.none() | st.sampled_from(TAILS))
def test_what_follows_a_known_beginning_is_read_as_if_the_whole_were(before, items, more, after, tail):
    """The stem of a body that was let through, then any body that begins with it: the same envelope and the same bytes, or the same refusal."""
    first = "{" + "".join(f"{json.dumps(k)}: {json.dumps(v)}, " for k, v in before) + '"messages": ' + json.dumps(items)
    try:
        _, sent = envelope.read((first + "}").encode())
        _, stem = outline.parse(sent)
    except (envelope.BadBody, Unknown):
        return
    if stem is None:
        return
    if tail is None:
        rest = "".join(f", {json.dumps(item)}" for item in more) + "]" + ("," + document(after) if after else "") + "}"
    else:
        rest = tail
    body = bytes(stem.raw) + rest.encode()

    def outcome(*known):
        try:
            made, bytes_ = envelope.read(body, *known)
        except envelope.BadBody as bad:
            return bad.args[0]
        raws = [None if raw is None else json.loads(bytes(raw)) for raw in (made.cache_key, made.retention)]
        return made.model, made.stream, made.rid, made.has_rid, made.many, *raws, bytes_

    assert outcome(stem) == outcome()
