"""Frontiers, interpolation inside a line's range only, and the published reference data."""
import pathlib

import pytest
from ansible_collections.infera.serving.plugins.module_utils import pareto

ROOT = pathlib.Path(__file__).resolve().parents[3]
PUBLISHED = ROOT / "roles" / "report" / "files" / "published.csv"


def line(*pairs, name="a"):
    return [pareto.Point(name, x, y) for x, y in pairs]


def test_the_frontier_leaves_out_what_is_beaten():
    assert [p.x for p in pareto.frontier(line((50, 10), (60, 8), (55, 7), (40, 10)))] == [50, 60]


def test_interpolation_stops_at_the_ends():
    f = pareto.frontier(line((40, 100), (60, 50)))
    assert pareto.at(f, 50) == 75 and pareto.at(f, 39.9) is None and pareto.at(f, 60.1) is None


def test_comparison_is_a_range_of_ratios_inside_both_lines():
    got = pareto.compare(line((40, 100), (60, 50)), line((50, 50), (80, 10), name="b"), ("a", "b"))
    assert (got.low, got.high) == (50, 60) and got.best == pytest.approx(1.5) and got.worst == pytest.approx(50 / (50 - 40 / 3))


def test_lines_that_do_not_meet_are_not_compared():
    got = pareto.compare(line((40, 100), (45, 50)), line((50, 50), (80, 10)), ("a", "b"))
    assert got.worst is None and got.best is None


def test_the_published_points_are_the_source_documents():
    rows = pareto.read_reference(str(PUBLISHED))
    ours = {(r["shape"], int(r["conc"])): (int(r["gpus"]), r["decode_request_weight"], r["tok_s_gpu"], r["intvty_p90"])
            for r in rows if r["series"].startswith("infera")}
    assert ours == {
        ("2p1d", 176): (16, "0", 38392, 43.2), ("1p_decode4", 80): (8, "0", 37310, 44.3), ("1p_decode4", 64): (8, "0", 32532, 48.6),
        ("1p1d", 88): (12, "1000000", 31088, 71.7), ("1p1d", 64): (12, "1000000", 28981, 86.0), ("1p1d", 48): (12, "1000000", 22331, 103.9),
        ("1p1d", 32): (12, "1000000", 16309, 111.7), ("mix", 48): (4, "", 34662, 22.7)}
    own_image = {(r["shape"], r["conc"]) for r in rows if "3ad7527c" in r["provenance"]}
    assert own_image == {("1p1d", "64"), ("1p1d", "48"), ("1p1d", "32")}


def test_a_row_without_provenance_is_refused(tmp_path):
    bad = tmp_path / "r.csv"
    bad.write_text("series,tok_s_gpu,intvty_p90,date,source,provenance\nx,1,2,2026,s,\n")
    with pytest.raises(pareto.PointsError, match=":2: provenance is empty"):
        pareto.read_reference(str(bad))
