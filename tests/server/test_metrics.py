from prometheus_client.parser import text_string_to_metric_families

from usechat.server.metrics import Metrics


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample that is not 0, but for the times at which the metrics were made."""
    found = (
        sample
        for family in text_string_to_metric_families(metrics.render()[0].decode())
        for sample in family.samples
        if sample.value and not sample.name.endswith("_created")
    )
    return {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in found}


def test_a_turn_is_counted_when_it_starts_and_when_it_ends():
    metrics = Metrics()
    metrics.turn_started()
    metrics.turn_started()
    assert samples(metrics) == {"usechat_turns_started_total": 2, "usechat_turns_running": 2}

    metrics.turn_ended("stopped", 400.0)
    assert samples(metrics) == {
        "usechat_turns_started_total": 2,
        "usechat_turns_running": 1,
        "usechat_turns_ended_total stopped": 1,
        "usechat_turn_seconds_count": 1,
        "usechat_turn_seconds_sum": 400,
        "usechat_turn_seconds_bucket 600.0": 1,
        "usechat_turn_seconds_bucket 1800.0": 1,
        "usechat_turn_seconds_bucket +Inf": 1,
    }


def test_a_stream_is_open_until_it_is_closed():
    metrics = Metrics()
    metrics.stream_opened()
    metrics.stream_opened()
    metrics.stream_closed()
    assert samples(metrics) == {"usechat_streams_open": 1}


def test_the_time_to_the_first_byte_falls_in_its_buckets():
    metrics = Metrics()
    metrics.first_byte_sent(4.0)
    assert samples(metrics) == {
        "usechat_first_byte_seconds_count": 1,
        "usechat_first_byte_seconds_sum": 4,
        "usechat_first_byte_seconds_bucket 5.0": 1,
        "usechat_first_byte_seconds_bucket 10.0": 1,
        "usechat_first_byte_seconds_bucket +Inf": 1,
    }


def test_what_was_sent_adds_up():
    metrics = Metrics()
    metrics.sent(chunks=3, size=100)
    metrics.sent(chunks=2, size=50)
    assert samples(metrics) == {"usechat_chunks_sent_total": 5, "usechat_sent_bytes_total": 150}


def test_refusals_and_dropped_events_are_counted_by_their_kind():
    metrics = Metrics()
    metrics.request_refused(413)
    metrics.request_refused(413)
    metrics.request_refused(503)
    metrics.event_dropped("late")
    metrics.event_dropped("unknown")
    metrics.event_dropped("unknown")
    assert samples(metrics) == {
        "usechat_requests_refused_total 413": 2,
        "usechat_requests_refused_total 503": 1,
        "usechat_events_dropped_total late": 1,
        "usechat_events_dropped_total unknown": 2,
    }


def test_two_apps_in_one_process_count_apart():
    one, other = Metrics(), Metrics()
    one.stream_opened()
    assert (samples(one), samples(other)) == ({"usechat_streams_open": 1}, {})


def test_every_outcome_is_there_before_it_happens():
    lines = Metrics().render()[0].decode().splitlines()
    assert [line for line in lines if line.startswith("usechat_turns_ended_total")] == [
        'usechat_turns_ended_total{outcome="done"} 0.0',
        'usechat_turns_ended_total{outcome="stopped"} 0.0',
        'usechat_turns_ended_total{outcome="error"} 0.0',
        'usechat_turns_ended_total{outcome="lost"} 0.0',
    ]


def test_the_text_is_for_prometheus():
    assert Metrics().render()[1] == "text/plain; version=1.0.0; charset=utf-8"
