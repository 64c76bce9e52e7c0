"""Pages of metrics in Prometheus' text format: pure functions over data, and the HTTP answer around them.

`docs/telemetry.md` lists every name. The broker, `pairbus syphon` and everybody else who has counts use the same.
"""
