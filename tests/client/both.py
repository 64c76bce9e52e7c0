"""One test body, both flavours at the same time: where most of a test is waiting, the second flavour costs nothing."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.client.world import Namespaces, World
from tests.sdk.flavours import Flavour

FLAVOURS: tuple[Flavour, ...] = ("sync", "aio")
Test = Callable[..., Coroutine[Any, Any, None]]


def both_flavours(test: Test) -> Test:
    """A test of `world` and `flavour` becomes one of the pair: each flavour has a world, and a folder, of its own."""
    takes = inspect.signature(test).parameters

    async def run(namespaces: Namespaces, **given: Any) -> None:
        worlds = [World(namespaces) for _ in FLAVOURS]
        try:
            ended = await asyncio.gather(
                *(
                    test(world=world, flavour=flavour, **_of(flavour, given))
                    for world, flavour in zip(worlds, FLAVOURS, strict=True)
                ),
                return_exceptions=True,
            )
        finally:
            await asyncio.gather(*(world.close() for world in worlds))
        for flavour, error in zip(FLAVOURS, ended, strict=True):
            if error is not None:
                error.add_note(f"in the flavour {flavour}")
                raise error

    kept = [one for name, one in takes.items() if name not in ("world", "flavour")]
    pair = inspect.Parameter("namespaces", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
    run.__module__ = test.__module__
    run.__signature__ = inspect.Signature([pair, *kept])  # type: ignore[attr-defined]
    return run


def _of(flavour: Flavour, given: dict[str, Any]) -> dict[str, Any]:
    folder = given.get("tmp_path")
    if not isinstance(folder, Path):
        return given
    (folder / flavour).mkdir()
    return {**given, "tmp_path": folder / flavour}
