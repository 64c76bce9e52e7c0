"""Texts of filters and actions → syntax trees, by recursive descent.

Precedence from tight to loose: sign; * / %; + -; comparison, IN, LIKE, IS NULL; NOT; AND; OR. Values and conditions
are one grammar here, because a parenthesis may begin either; `_value` and `_condition` then tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pairbus.filters.errors import FilterSyntaxError
from pairbus.filters.kinds import Value, check_value
from pairbus.filters.lexer import END, NAME, NUMBER, PARAMETER, QUOTED, TEXT, Lexeme, words
from pairbus.filters.tree import (
    And,
    Arithmetic,
    Compare,
    Condition,
    Exists,
    FilterNode,
    In,
    IsNull,
    Like,
    Literal,
    NewId,
    Not,
    Or,
    Property,
    PropertyOf,
    Remove,
    Set,
    Sign,
)

NESTING_MAX = 32  # 8 calls of this file for each parenthesis: far from Python's limit of 1000
STATEMENTS_MAX = 32  # of an action, as on Azure
INTEGER_MAX = 2**63 - 1

RESERVED = ("AND", "ESCAPE", "EXISTS", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE")
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
_COMPARISONS = ("=", "<>", "!=", ">", ">=", "<", "<=")


def parse_filter(text: str, parameters: Mapping[str, Value]) -> FilterNode:
    """Parse the condition of a filter; FilterSyntaxError names the column."""
    return _Parser(text, parameters).filter()


def parse_action(text: str, parameters: Mapping[str, Value]) -> list[Set | Remove]:
    """Parse the statements of an action; FilterSyntaxError names the column."""
    return _Parser(text, parameters).statements()


class _Parser:
    def __init__(self, text: str, parameters: Mapping[str, Value]) -> None:
        self._lexemes = words(text)
        self._at = 0
        self._depth = 0
        self._parameters = {name.removeprefix("@").lower(): value for name, value in parameters.items()}

    # ── lexemes ──

    @property
    def _lexeme(self) -> Lexeme:
        return self._lexemes[self._at]

    def _next(self) -> Lexeme:
        lexeme = self._lexemes[self._at]
        self._at += 1
        return lexeme

    def _take_symbol(self, *symbols: str) -> bool:
        if self._lexeme.is_symbol(*symbols):
            self._at += 1
            return True
        return False

    def _take_word(self, *wanted: str) -> bool:
        if self._lexeme.is_word(*wanted):
            self._at += 1
            return True
        return False

    def _expected(self, expectation: str) -> FilterSyntaxError:
        lexeme = self._lexeme
        if lexeme.kind == END and self._at == 0:
            return FilterSyntaxError(lexeme.column, f"expected {expectation}, but the text is empty")
        before = self._lexemes[self._at - 1] if self._at else None
        where = f" after {_name_of(before)}" if before else ""
        return FilterSyntaxError(lexeme.column, f"expected {expectation}{where}, found {lexeme.shown}")

    def _need_symbol(self, symbol: str, expectation: str = "") -> None:
        if not self._take_symbol(symbol):
            raise self._expected(expectation or f"{symbol!r}")

    def _nested(self, parse: Callable[[], FilterNode]) -> FilterNode:
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise FilterSyntaxError(self._lexeme.column, f"nested deeper than {NESTING_MAX} levels")
        node = parse()
        self._depth -= 1
        return node

    # ── whole texts ──

    def filter(self) -> FilterNode:
        node = self._condition(self._or())
        if self._lexeme.kind != END:
            raise self._expected("AND, OR or the end of the text")
        return node

    def statements(self) -> list[Set | Remove]:
        statements: list[Set | Remove] = []
        while self._lexeme.kind != END or not statements:
            if len(statements) == STATEMENTS_MAX:
                raise FilterSyntaxError(self._lexeme.column, f"an action has at most {STATEMENTS_MAX} statements")
            statements.append(self._statement())
            self._take_symbol(";", ",")
        return statements

    def _statement(self) -> Set | Remove:
        column = self._lexeme.column
        if self._take_word("SET"):
            target = self._property("a property")
            self._need_symbol("=")
            return Set(column, target, self._value(self._sum()))
        if self._take_word("REMOVE"):
            return Remove(column, self._property("a property"))
        raise self._expected("SET or REMOVE")

    # ── conditions ──

    def _condition(self, node: FilterNode) -> FilterNode:
        if not isinstance(node, Condition):
            raise self._expected("a comparison such as '='")
        return node

    def _value(self, node: FilterNode) -> FilterNode:
        if isinstance(node, Condition):
            raise FilterSyntaxError(node.column, "expected a value, found a condition")
        return node

    def _or(self) -> FilterNode:
        first = self._and()
        if not self._lexeme.is_word("OR"):
            return first
        operands = [self._condition(first)]
        while self._take_word("OR"):
            operands.append(self._condition(self._and()))
        return Or(first.column, tuple(operands))

    def _and(self) -> FilterNode:
        first = self._not()
        if not self._lexeme.is_word("AND"):
            return first
        operands = [self._condition(first)]
        while self._take_word("AND"):
            operands.append(self._condition(self._not()))
        return And(first.column, tuple(operands))

    def _not(self) -> FilterNode:
        column = self._lexeme.column
        if self._take_word("NOT"):
            return Not(column, self._condition(self._nested(self._not)))
        return self._comparison()

    def _comparison(self) -> FilterNode:
        left = self._sum()
        if self._lexeme.is_symbol(*_COMPARISONS):
            self._value(left)
            operator = self._next().value
            return Compare(left.column, "<>" if operator == "!=" else operator, left, self._value(self._sum()))
        if self._lexeme.is_word("IS"):
            return self._is_null(left)
        if not self._lexeme.is_word("NOT", "IN", "LIKE"):
            return left
        self._value(left)
        negated = self._take_word("NOT")
        if self._take_word("IN"):
            condition: Condition = In(left.column, left, self._items())
        elif self._take_word("LIKE"):
            pattern = self._value(self._sum())
            escape = self._value(self._sum()) if self._take_word("ESCAPE") else None
            condition = Like(left.column, left, pattern, escape)
        else:
            raise self._expected("IN or LIKE")
        return Not(left.column, condition) if negated else condition

    def _is_null(self, left: FilterNode) -> Condition:
        if not isinstance(left, Property | PropertyOf):
            raise FilterSyntaxError(left.column, "expected a property before IS NULL")
        self._next()
        negated = self._take_word("NOT")
        if not self._take_word("NULL"):
            raise self._expected("NULL" if negated else "NULL or NOT NULL")
        condition = IsNull(left.column, left)
        return Not(left.column, condition) if negated else condition

    def _items(self) -> tuple[FilterNode, ...]:
        self._need_symbol("(")
        items = [self._value(self._sum())]
        while self._take_symbol(","):
            items.append(self._value(self._sum()))
        self._need_symbol(")", "',' or ')'")
        return tuple(items)

    # ── values ──

    def _sum(self) -> FilterNode:
        return self._chain(self._product, "+", "-")

    def _product(self) -> FilterNode:
        return self._chain(self._sign, "*", "/", "%")

    def _chain(self, parse: Callable[[], FilterNode], *operators: str) -> FilterNode:
        first = parse()
        rest = []
        while self._lexeme.is_symbol(*operators):
            self._value(first)
            operator = self._next().value
            rest.append((operator, self._value(parse())))
        return Arithmetic(first.column, first, tuple(rest)) if rest else first

    def _sign(self) -> FilterNode:
        lexeme = self._lexeme
        if not self._take_symbol("+", "-"):
            return self._primary()
        number = self._lexeme
        if lexeme.value == "-" and number.kind == NUMBER and number.value == INTEGER_MAX + 1:
            self._next()  # the smallest integer, which has no positive counterpart
            return Literal(lexeme.column, -number.value)
        return Sign(lexeme.column, lexeme.value, self._value(self._nested(self._sign)))

    def _primary(self) -> FilterNode:
        lexeme = self._lexeme
        if lexeme.kind == NUMBER:
            return self._number(self._next())
        if lexeme.kind == TEXT:
            return Literal(lexeme.column, self._next().value)
        if lexeme.kind == PARAMETER:
            return self._parameter(self._next())
        if lexeme.kind == QUOTED:
            return self._property("an operand")
        if lexeme.kind == NAME:
            return self._word()
        if self._take_symbol("("):
            node = self._nested(self._or)
            self._need_symbol(")")
            return node
        raise self._expected("an operand")

    def _number(self, lexeme: Lexeme) -> Literal:
        if isinstance(lexeme.value, int) and lexeme.value > INTEGER_MAX:
            raise FilterSyntaxError(lexeme.column, f"the integer {lexeme.source:.40} is larger than {INTEGER_MAX}")
        return Literal(lexeme.column, lexeme.value)

    def _parameter(self, lexeme: Lexeme) -> Literal:
        if lexeme.value.lower() not in self._parameters:
            raise FilterSyntaxError(lexeme.column, f"the parameter {lexeme.source} has no value")
        value = self._parameters[lexeme.value.lower()]
        return Literal(lexeme.column, check_value(lexeme.source, value))

    def _word(self) -> FilterNode:
        lexeme = self._lexeme
        constant = lexeme.value.upper()
        if constant in _CONSTANTS:
            self._next()
            return Literal(lexeme.column, _CONSTANTS[constant])
        if constant == "EXISTS":
            self._next()
            self._need_symbol("(")
            operand = self._property("a property")
            self._need_symbol(")")
            return Exists(lexeme.column, operand)
        if self._lexemes[self._at + 1].is_symbol("("):
            return self._function()
        return self._property("an operand")

    def _function(self) -> FilterNode:
        if self._lexeme.is_word(*RESERVED):
            raise self._expected("an operand")
        lexeme = self._next()
        name = lexeme.value.lower()
        if name not in ("newid", "property", "p"):
            raise FilterSyntaxError(
                lexeme.column, f"unknown function {lexeme.source!r:.42}; known are newid(), property(name) and p(name)"
            )
        self._need_symbol("(")
        node: FilterNode = NewId(lexeme.column)
        if name != "newid":
            node = PropertyOf(lexeme.column, self._value(self._nested(self._sum)))
        self._need_symbol(")")
        return node

    def _property(self, expectation: str) -> Property:
        """Parse [sys. | user.] name; `expectation` describes the name in errors."""
        lexeme = self._lexeme
        if lexeme.kind not in (NAME, QUOTED) or lexeme.is_word(*RESERVED):
            raise self._expected(expectation)
        self._next()
        if not (lexeme.is_word("SYS", "USER") and self._lexeme.is_symbol(".")):
            return Property(lexeme.column, lexeme.value)
        self._next()
        name = self._lexeme
        if name.kind not in (NAME, QUOTED):
            raise self._expected("the name of a property")
        self._next()
        return Property(lexeme.column, name.value, is_system=lexeme.is_word("SYS"))


def _name_of(lexeme: Lexeme) -> str:
    """Name the lexeme before the place of an error: keywords as they are, all others in quotes."""
    return lexeme.value.upper() if lexeme.is_word(*RESERVED, "SET", "REMOVE") else lexeme.shown
