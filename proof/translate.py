"""Writes the formulas of protocol.py in a programming language, over finite sets of things."""

import z3

CONNECTIVES = {z3.Z3_OP_AND: 'both', z3.Z3_OP_OR: 'either', z3.Z3_OP_EQ: 'same',
               z3.Z3_OP_DISTINCT: 'differ', z3.Z3_OP_NOT: 'no', z3.Z3_OP_IMPLIES: 'implies',
               z3.Z3_OP_ITE: 'choose'}


def write(formula, language, bound=()):
    """The text of a formula. `bound` names the variables of the quantifiers around it, the
    innermost first."""
    if isinstance(formula, bool):
        formula = z3.BoolVal(formula)
    if z3.is_quantifier(formula):
        variables = [(f'{formula.var_name(index)}{len(bound) + index}',
                      formula.var_sort(index).name()) for index in range(formula.num_vars())]
        inner = (*[name for name, _ in reversed(variables)], *bound)
        body, conditions = formula.body(), []
        if formula.is_forall() and z3.is_implies(body):
            condition, body = body.children()
            parts = condition.children() if z3.is_and(condition) else [condition]
            conditions = [write(part, language, inner) for part in parts]
        body = write(body, language, inner)
        return language.quantifier(formula.is_forall(), variables, conditions, body)
    if z3.is_var(formula):
        return bound[z3.get_var_index(formula)]
    kind = formula.decl().kind()
    parts = [write(part, language, bound) for part in formula.children()]
    if kind in CONNECTIVES:
        return getattr(language, CONNECTIVES[kind])(*parts)
    if kind in (z3.Z3_OP_TRUE, z3.Z3_OP_FALSE):
        return language.truth(kind == z3.Z3_OP_TRUE)
    assert kind == z3.Z3_OP_UNINTERPRETED, formula
    return language.call(formula.decl().name(), parts)


class Python:
    """Python for `finite.py`: `state` has the relations, `sets` the things of each sort."""

    def __init__(self, functions):
        self.functions = functions

    def quantifier(self, is_forall, variables, conditions, body):
        loops = ' '.join(f'for {name} in sets["{sort}"]' for name, sort in variables)
        chosen = ' '.join(f'if {condition}' for condition in conditions)
        return f'{"all" if is_forall else "any"}({body} {loops} {chosen})'

    def both(self, *parts):
        return f'({" and ".join(parts)})'

    def either(self, *parts):
        return f'({" or ".join(parts)})'

    def same(self, left, right):
        return f'({left} == {right})'

    def differ(self, left, right):
        return f'({left} != {right})'

    def no(self, part):
        return f'(not {part})'

    def implies(self, left, right):
        return f'(not {left} or {right})'

    def choose(self, condition, yes, no):
        return f'({yes} if {condition} else {no})'

    def truth(self, value):
        return str(value)

    def call(self, name, parts):
        return f'state["{name}"]({", ".join(parts)})' if name in self.functions else name
