"""The processor: it takes messages, calls a handler for each, keeps their locks and settles them.

`decide` has all decisions, without I/O and clock. `processing` is one processor at work in the loop of an engine. It
has a `feed` for its entity, or for each session that it holds. `runners` call the handlers: in threads, or in the
application's event loop. `face` has the parts that both flavours share, `sync` and `aio` the classes that an
application uses; `thread` has the loop for asyncio clients.
"""
