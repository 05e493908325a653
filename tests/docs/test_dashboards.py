"""The dashboard of docs/grafana and the rules of docs/prometheus ask for what a worker really exports."""

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from usechat.server.metrics import Metrics

DOCS: Final = Path(__file__).parents[2] / "docs"
DASHBOARD: Final[dict[str, Any]] = json.loads((DOCS / "grafana" / "usechat.json").read_text("utf-8"))
RULES: Final[dict[str, Any]] = yaml.safe_load((DOCS / "prometheus" / "usechat.rules.yml").read_text("utf-8"))
PANELS: Final = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES: Final = [target["expr"] for panel in PANELS for target in panel["targets"]]
ALERTS: Final = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
NAME: Final = re.compile(r"usechat_\w+")
# The labels of a metric, in braces behind it or in the `by` before it, but for those that Prometheus gives.
LABELS: Final = re.compile(r'by \((\w+)\) \((?:rate\()?(usechat_\w+)|(usechat_\w+)\{(?:job=~"\$job", )?(\w+)="')
GIVEN: Final = ("instance", "le")


def exported() -> dict[str, set[str]]:
    """The name of each series, and the labels that it may have beside `le`."""
    metrics = Metrics()
    for status in (404, 503):
        metrics.request_refused(status)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.render()[0].decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.mark.parametrize("queries", [QUERIES, ALERTS], ids=["dashboard", "alerts"])
def test_every_metric_that_is_asked_for_is_exported(queries: list[str]) -> None:
    series = exported()
    asked = {name for query in queries for name in NAME.findall(query)}
    assert len(asked) > 5
    assert asked - set(series) == set()
    labels = [
        (first or second, before or behind)
        for query in queries
        for before, first, second, behind in LABELS.findall(query)
    ]
    assert [(name, label) for name, label in labels if label not in {*GIVEN, *series[name]}] == []
    # A counter is asked for its rate, a histogram for its buckets.
    assert [
        query for query in queries if re.search(r"(?<!rate\()(?<!increase\()usechat_\w+_(total|bucket)\b", query)
    ] == []


def test_the_dashboard_shows_all_that_is_exported() -> None:
    shown = {name.removesuffix("_bucket") for query in QUERIES for name in NAME.findall(query)}
    kinds = {name.removesuffix("_count") for name in exported() if not name.endswith(("_bucket", "_sum", "_created"))}
    # Turns that began are those that ended, a while later.
    assert kinds - shown == {"usechat_turns_started_total"}


def test_the_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"} for panel in PANELS)
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "job"]
    assert all('job=~"$job"' in query for query in QUERIES)


def test_every_alert_says_how_bad_it_is_and_what_it_means() -> None:
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert all(rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"] for rule in rules)
