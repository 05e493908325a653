"""DeepAgent: objects with `stream_with_events`."""
