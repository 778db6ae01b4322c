"""The Prometheus page. Imported at the first scrape, since prometheus_client costs start-up time and memory that serving does not need."""

from __future__ import annotations

from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

from infera_router.observe.metrics import COUNTER, FAMILIES, GAUGE, Family, Histogram, Store

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class _Collector:
    def __init__(self, store: Store) -> None:
        self.store = store

    def collect(self):
        for family in FAMILIES.values():
            if family.kind in (COUNTER, GAUGE):
                rows = self.store.numbers.get(family.name)
                if rows is None and not family.labels:
                    rows = {(): 0}
                metric = (CounterMetricFamily if family.kind == COUNTER else GaugeMetricFamily)(family.name, family.help, labels=family.labels)
                for labels, value in sorted((rows or {}).items()):
                    metric.add_metric(labels, value)
            else:
                metric = _histogram(family, self.store.histograms.get(family.name, {}))
            yield metric


def _histogram(family: Family, rows: dict[tuple[str, ...], Histogram]) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    for labels, value in sorted(rows.items()):
        bounds = [floatToGoString(b) for b in family.buckets] + ["+Inf"]
        metric.add_metric(labels, list(zip(bounds, accumulate(value.counts))), value.sum)
    return metric


def page(store: Store) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(store))
    return generate_latest(registry)
