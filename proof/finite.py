"""The transition system over a few named things: states are Python values, formulas are evaluated.

Solvers find it hard to show that something can happen; here a trace shows how, step by step. Each
step is checked: its requirements are met, and the invariants hold after it.
"""

from functools import lru_cache
from itertools import product

from z3 import Const

from protocol import ACTIONS, AXIOMS, INVARIANTS, RELATIONS, RIGID, Bool, State, initial
from translate import Python, write

PYTHON = Python({*RELATIONS, *RIGID})
SYMBOLS = State()


def compiled(formula, parameters=()):
    """A formula as a function of the state, the sets of things, and these parameters."""
    names = ', '.join(['state', 'sets', *parameters])
    return eval(f'lambda {names}: {write(formula, PYTHON)}')


@lru_cache(maxsize=None)
def action(name):
    """The parameters, requirements and changes of an action."""
    found = next(action for action in ACTIONS if action.name == name)
    parameters = [str(parameter) for parameter in found.parameters]
    step = found.step(SYMBOLS)
    changes = {}
    for relation, change in step.changes.items():
        places = [Const(f'place_{index}', sort)
                  for index, sort in enumerate(RELATIONS[relation][0])]
        changes[relation] = compiled(change(*places), [*parameters, *map(str, places)])
    return (parameters,
            {rule: compiled(formula, parameters) for rule, formula in step.requires.items()},
            changes)


@lru_cache(maxsize=None)
def facts():
    """What must hold: for the world, at the start, and in every state."""
    return ([compiled(axiom) for axiom in AXIOMS.values()], compiled(initial(SYMBOLS)),
            {invariant.name: compiled(invariant.holds(SYMBOLS)) for invariant in INVARIANTS})


class Finite:
    """A finite world, and the state that it is in."""

    def __init__(self, sets, rigid, tables):
        # The things of each sort, by its name; the functions that never change; the tables of
        # those that do.
        self.sets, self.rigid, self.tables = sets, rigid, tables
        self.state = {**rigid, **{name: self.reader(table) for name, table in tables.items()}}

    @staticmethod
    def reader(table):
        return lambda *place: table[place]

    @classmethod
    def start(cls, sets, rigid, **given):
        """The initial state: nothing holds, fences are as given or the smallest."""
        tables = {}
        for name, (arguments, value, *_) in RELATIONS.items():
            default = False if value == Bool else sets[value.name()][0]
            places = product(*[sets[sort.name()] for sort in arguments])
            tables[name] = {place: given.get(name, {}).get(place, default) for place in places}
        world = cls(sets, rigid, tables)
        axioms, start, _ = facts()
        assert all(axiom(world.state, sets) for axiom in axioms), 'there is no such world'
        assert start(world.state, sets), 'this is no initial state'
        return world

    def missing(self, name, *given):
        """Which requirements of an action are not met."""
        _, requires, _ = action(name)
        return [rule for rule, is_met in requires.items()
                if not is_met(self.state, self.sets, *given)]

    def take(self, name, *given):
        """The state after an action."""
        assert not self.missing(name, *given), (name, given, self.missing(name, *given))
        after = dict(self.tables)
        for relation, change in action(name)[2].items():
            after[relation] = {place: change(self.state, self.sets, *given, *place)
                               for place in self.tables[relation]}
        world = Finite(self.sets, self.rigid, after)
        for invariant, holds in facts()[2].items():
            assert holds(world.state, world.sets), (name, given, invariant)
        return world

    def run(self, *steps):
        """The state after these actions, each with its parameters in order."""
        world = self
        for name, *given in steps:
            world = world.take(name, *given)
        return world
