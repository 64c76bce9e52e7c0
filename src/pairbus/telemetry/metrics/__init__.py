"""Pages of metrics in Prometheus' text format: pure functions over data, and the HTTP answer around them.

`docs/telemetry.md` lists every name. The broker, `pairbus syphon` and all other parts with counts use the same names.
"""
