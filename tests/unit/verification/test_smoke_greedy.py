"""The same greedy prompt gives the same answer, unless other clients' requests share its batches."""
import pytest
from ansible_collections.infera.serving.plugins.module_utils.smoke_checks import ASKED, ENDED, OPEN, Smoke
from ansible_collections.infera.serving.plugins.module_utils.smoke_client import SmokeError

RECORD = {"router_url": "http://fake", "model": {"name": "m", "made": {"vocab": 8}}, "containers": []}


class Router:
    """A fake router: gives the answers in turn; *others* requests of other clients end, and *open* are served, during each."""

    def __init__(self, *answers, others=0, open_now=0):
        self.answers, self.others, self.open_now, self.ended, self.asked = list(answers), others, open_now, 0, 0

    def chat(self, prompt, tokens):
        self.asked += 1
        self.ended += 1 + self.others
        return {"choices": [{"message": {"content": self.answers.pop(0)}}], "usage": {"completion_tokens": 1, "prompt_tokens": 99}}

    def metrics(self):
        return [(ENDED, {"router": "pd", "outcome": "ok"}, float(self.ended)), (ENDED, {"router": "none", "outcome": "ok"}, 50.0 * self.asked),
                (OPEN, {"router": "pd"}, float(self.open_now))]


def test_the_same_answer_passes():
    assert "the same greedy answer twice" in Smoke(RECORD, client=Router("a", "a")).answer()


def test_another_answer_fails_where_nobody_else_is_served():
    with pytest.raises(SmokeError, match="gave 'a', then 'b'"):
        Smoke(RECORD, client=Router("a", "b")).answer()


@pytest.mark.parametrize("load", [{"others": 2}, {"open_now": 1}])
def test_with_other_clients_it_is_asked_again(load):
    assert "the same greedy answer twice" in Smoke(RECORD, client=Router("a", "b", "a", **load)).answer()


def test_with_other_clients_no_verdict_is_given():
    router = Router("a", *"bcdef", others=2)
    assert "not compared: other clients' requests share the batches" in Smoke(RECORD, client=router).answer()
    assert router.asked == 1 + ASKED
