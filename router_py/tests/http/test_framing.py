"""The end of an answer's body is found however its bytes are cut, and nothing of the next answer is taken for it."""
from hypothesis import given, settings
from hypothesis import strategies as st
from infera_router.http.wire import LONGEST, WHOLE, Framing, parse_head

CHUNKED = parse_head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked")


@st.composite
def bodies(draw):
    """(body, [offsets at which a chunk ends]): sizes in either case, with zeros and extensions before and after, trailers at the end."""
    out, ends = b"", []
    for size in draw(st.lists(st.one_of(st.integers(1, 40), st.sampled_from((15, 16, 17, 255, 256, 257, 2040, 4095, 5000))), max_size=6)):
        digits = b"%x" % size
        digits = draw(st.sampled_from((digits, digits.upper(), b"0" + digits))) + draw(st.sampled_from((b"", b"", b";a=b", b" ;a")))
        payload = draw(st.sampled_from((b"x", b"\r\n0\r\n\r\n", b"5\r\n"))) * size
        out += digits + b"\r\n" + payload[:size] + b"\r\n"
        ends.append(len(out))
    out += draw(st.sampled_from((b"0\r\n\r\n", b"0;e\r\n\r\n", b"000\r\nA: b\r\n\r\n")))
    return out, ends


@settings(max_examples=400, deadline=None)
@given(bodies(), st.data(), st.sampled_from((b"", b"HTTP/1.1 200 OK\r\n")))
def test_a_chunked_body_ends_where_it_ends(made, data, after):
    body, ends = made
    stream = body + after
    # Cut at chunk ends often: one whole chunk per read is the usual case.
    places = sorted(data.draw(st.sets(st.one_of(st.sampled_from(ends or [1]), st.integers(1, len(stream) - 1)), max_size=12)))
    framing, at = Framing(CHUNKED), 0
    for end in places + [len(stream)]:
        piece = stream[at:end]
        whole = framing.even and len(piece) < LONGEST and piece.startswith(WHOLE[len(piece)])
        found = -1 if whole else framing.feed(piece)
        assert not whole or (end in ends and framing.owed() == 0)
        if end < len(body):
            assert found == -1
            owed = framing.owed()
            assert owed in (-1, 0) or end + owed in ends
            if end in ends:
                assert owed == 0
        else:
            assert at + found == len(body)
            return
        at = end


@given(st.integers(1, 5000), st.data())
@settings(deadline=None)
def test_a_counted_body_ends_where_it_ends(size, data):
    framing, left = Framing(parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: %d" % size)), size
    while left:
        piece = data.draw(st.integers(1, left + 3))
        found = framing.feed(b"1\r\n" + b"x" * (piece - 3) if piece > 3 else b"x" * piece)
        if piece >= left:
            assert found == left
            return
        assert found == -1
        left -= piece
