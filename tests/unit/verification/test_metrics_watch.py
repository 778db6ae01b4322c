"""The acceptance watch, on emulated metrics pages."""
from ansible_collections.infera.serving.plugins.module_utils import metrics_watch as w

PAGE = '# TYPE x gauge\nsglang:spec_accept_length{{dp_rank="0"}} {0}\nsglang:spec_accept_length{{dp_rank="1"}} {0}\nsglang:num_running_reqs 3.0\nbroken line\n'


def run(tmp_path, values, fail_at=()):
    clock = [0.0]
    seen = []

    def fetch(url):
        seen.append(url)
        if len(seen) - 1 in fail_at:
            raise OSError("refused")
        return PAGE.format(values[min(len(seen) - 1, len(values) - 1)])

    path = tmp_path / "watch.jsonl"
    w.watch({"d": "http://d/metrics"}, str(path), fetch, 1.0, str(tmp_path / "stop"), len(values), clock=lambda: clock[0],
            sleep=lambda s: clock.__setitem__(0, clock[0] + s))
    return w.read(str(path))


def test_the_median_leaves_idle_samples_out(tmp_path):
    rows = run(tmp_path, [0, 4.6, 4.7, 4.5])
    assert w.acceptance(rows, ["d"], 6)["d"] == {"median": 4.6, "samples": 6, "flags": []}


def test_a_collapse_is_flagged(tmp_path):
    assert "collapsed from 4.49 to 1.59" in w.acceptance(run(tmp_path, [4.49] * 6 + [1.59] * 6), ["d"], 6)["d"]["flags"][0]


def test_saturation_is_flagged(tmp_path):
    assert "saturated" in w.acceptance(run(tmp_path, [6.0] * 5), ["d"], 6)["d"]["flags"][0]


def test_no_series_is_not_applicable():
    assert w.acceptance([{"t": 0, "name": "d", "sglang:num_running_reqs": {"": 1}}], ["d"], 6)["d"]["median"] is None


def test_a_page_that_fails_is_a_gap(tmp_path):
    rows = run(tmp_path, [4.6] * 4, fail_at=(1, 2))
    assert w.gaps(rows) == {"d": 2} and w.acceptance(rows, ["d"], 6)["d"]["samples"] == 4


def test_the_stop_file_ends_it(tmp_path):
    (tmp_path / "stop").touch()
    assert run(tmp_path, [4.6] * 4) == []
