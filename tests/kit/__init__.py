"""The tester's kit: a clock that tests move, reset, recorded sends, brokers in a thread, and the fixtures."""
