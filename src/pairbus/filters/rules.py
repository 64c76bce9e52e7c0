"""The compiled rules of one subscription, which decide the copies of a message that it gets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from pairbus.filters.actions import Changed, CompiledAction, apply, compile_action
from pairbus.filters.compile import Test, compiled, route_of
from pairbus.filters.correlation import compile_correlation, texts_of
from pairbus.filters.errors import FilterEvaluationError
from pairbus.filters.index import TextIndex, WantedText
from pairbus.filters.kinds import CorrelationFilter, FalseFilter, Filter, SqlAction, SqlFilter, TrueFilter
from pairbus.filters.parser import parse_filter
from pairbus.filters.view import MessageView

logger = logging.getLogger("pairbus.broker.filters")

R = TypeVar("R")


class Copy(NamedTuple):
    """One copy of a message that the subscription gets."""

    rule: str
    "Name of the rule that made the copy; of several rules without action, the first that matches."
    changed: Changed | None = None
    "The message as the rule's action changed it; None: the message as it was published."


class CompiledRule(NamedTuple):
    """One rule, compiled; it can be used for any number of `Rules`."""

    name: str
    test: Test
    action: CompiledAction | None
    takes_all: bool
    "True when the filter selects every message without looking at it."
    route: tuple[str, str] | None = None
    "(property, text): the filter selects no message whose property is another text."
    texts: Sequence[WantedText] | None = None
    "Texts that a correlation filter asks for; None: it is of another kind."


def compile_rule(name: str, described: Filter, action: SqlAction | None) -> CompiledRule:
    """Compile a rule; FilterSyntaxError when a text is wrong."""
    compiled_action = None if action is None else compile_action(action)
    if isinstance(described, CorrelationFilter):
        test = compile_correlation(described)
        return CompiledRule(name, test, compiled_action, takes_all=False, texts=texts_of(described))
    if not isinstance(described, SqlFilter):
        return CompiledRule(name, compile_filter(described), compiled_action, isinstance(described, TrueFilter))
    node = parse_filter(described.expression, described.parameters)
    return CompiledRule(name, compiled(node), compiled_action, takes_all=False, route=route_of(node))


class Rules:
    """The rules of one subscription, compiled.

    When all rules without an action first compare one property with a text, as in `color = 'red' AND …`, only the rules
    with the text of the message are evaluated, however many there are. Correlation filters are found by their texts.
    """

    __slots__ = (
        "_acting",
        "_acting_index",
        "_by_text",
        "_logged",
        "_plain",
        "_plain_index",
        "_routed_by",
        "_takes_all",
    )

    def __init__(self, rules: Iterable[tuple[str, Filter, SqlAction | None]]) -> None:
        """Compile (name, filter, action) of each rule; FilterSyntaxError when a text is wrong."""
        self._collect(compile_rule(*rule) for rule in rules)

    @classmethod
    def of(cls, rules: Iterable[CompiledRule]) -> Rules:
        """Collect rules that are compiled already."""
        collected = cls.__new__(cls)
        collected._collect(rules)
        return collected

    def _collect(self, rules: Iterable[CompiledRule]) -> None:
        self._plain: list[tuple[str, Test]] = []
        self._acting: list[tuple[str, Test, CompiledAction]] = []
        self._takes_all: Copy | None = None
        self._routed_by = ""
        "Property by whose text the rules without an action are found; empty: all of them are evaluated."
        self._by_text: dict[str, list[tuple[str, Test]]] = {}
        self._logged: set[str] = set()
        "Names of rules whose unexpected failure was logged: the messages of a sender may repeat it without end."
        routes: list[tuple[str, str] | None] = []
        plain_texts: list[Sequence[WantedText] | None] = []
        acting_texts: list[Sequence[WantedText] | None] = []
        for rule in rules:
            if rule.action is not None:
                self._acting.append((rule.name, rule.test, rule.action))
                acting_texts.append(rule.texts)
                continue
            self._plain.append((rule.name, rule.test))
            plain_texts.append(rule.texts)
            routes.append(rule.route)
            if rule.takes_all and self._takes_all is None:
                self._takes_all = Copy(rule.name)
        self._plain_index, self._acting_index = _index_of(plain_texts), _index_of(acting_texts)
        names = {"" if route is None else route[0] for route in routes}
        if len(names) == 1 and "" not in names:
            self._routed_by = names.pop()
            for row, route in zip(self._plain, routes, strict=True):
                assert route is not None
                self._by_text.setdefault(route[1], []).append(row)

    def __repr__(self) -> str:
        names = [row[0] for row in self._plain] + [row[0] for row in self._acting]
        return f"<Rules {' '.join(names)}>"

    def evaluate(self, view: MessageView) -> list[Copy]:
        """Return the copies of the message.

        No copy when no rule matches; one for all matching rules without an action together; one for each matching rule
        with an action. A rule without an action is not evaluated when another one has matched already.
        FilterEvaluationError names the rule that failed; the message then has no copies at all.
        """
        copies = []
        name = ""
        try:
            if self._takes_all is not None:
                copies.append(self._takes_all)
            else:
                for name, test in self._candidates(view):
                    if test(view) is True:
                        copies.append(Copy(name))
                        break
            for name, test, action in _chosen(self._acting, self._acting_index, view):
                if test(view) is True:
                    copies.append(Copy(name, apply(action, view, name)))
        except FilterEvaluationError as error:
            raise FilterEvaluationError(error.problem, name) from error
        except Exception as error:  # our own bug: it fails this message, as any other failure of a rule does
            if name not in self._logged:
                self._logged.add(name)
                logger.exception("rule '%s' failed unexpectedly; later failures of the rule are not logged", name)
            raise FilterEvaluationError(f"unexpected {type(error).__name__}: {error}", name) from error
        return copies

    def _candidates(self, view: MessageView) -> Sequence[tuple[str, Test]]:
        """Return the rules without an action that may select the message, in their order."""
        if not self._routed_by:
            return _chosen(self._plain, self._plain_index, view)
        value = view.load_user().get(self._routed_by)
        return self._by_text.get(value, ()) if type(value) is str else self._plain


def _index_of(texts: list[Sequence[WantedText] | None]) -> TextIndex | None:
    """Return the index of the rules with texts; None: it would cost more than it saves."""
    index = TextIndex(texts)
    return index if index.is_worth_it else None


def _chosen(rules: list[R], index: TextIndex | None, view: MessageView) -> Sequence[R]:
    """Return the rules that may select the message, in their order."""
    return rules if index is None else [rules[place] for place in index.places(view)]


def compile_filter(described: Filter) -> Callable[[MessageView], bool | None]:
    """Compile a filter to a function of a message; FilterSyntaxError names the column.

    The message is selected when the function gives True. It gives None for *unknown*, which does not select.
    """
    if isinstance(described, SqlFilter):
        return compiled(parse_filter(described.expression, described.parameters))
    if isinstance(described, CorrelationFilter):
        return compile_correlation(described)
    selects = not isinstance(described, FalseFilter)
    return lambda view: selects
