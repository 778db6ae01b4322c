"""Smoke on a deployment that others use meanwhile: its own bookings have to be gone, not theirs."""
import time

import pytest
from ansible_collections.infera.serving.plugins.module_utils.smoke_checks import DEMAND, OLDEST, Smoke
from ansible_collections.infera.serving.plugins.module_utils.smoke_client import SmokeError

RECORD = {"router_url": "http://fake", "model": {"name": "m"}, "containers": []}


class Router:
    """A fake router page: who holds bookings since when."""

    def __init__(self, since, count=1):
        self.since, self.count = since, count

    def metrics(self):
        age = [] if self.since is None else [(OLDEST, {}, time.monotonic() - self.since())]
        return [(DEMAND, {"target": "d#dp0"}, 0.0), (DEMAND, {"target": "d#dp1"}, float(self.count)), *age]


def released(router, wait=1.5):
    return Smoke(RECORD, wait=wait, client=router)._released(time.monotonic())


def test_nothing_is_left():
    assert released(Router(None, 0)) == "demand back at 0 on 2 targets"


def test_only_others_that_came_later_are_left():
    began = time.monotonic()
    text = released(Router(lambda: max(began, time.monotonic() - 0.2)), wait=5)
    assert "our bookings released; other clients hold 1 on 2 targets" in text


@pytest.mark.parametrize("since", [lambda began: (lambda: began - 1), lambda began: None])
def test_a_booking_that_may_be_ours_fails(since):
    with pytest.raises(SmokeError, match="demand is not back at 0 after 1.5 s"):
        released(Router(since(time.monotonic())))
