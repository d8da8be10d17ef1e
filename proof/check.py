"""Proves the protocol: every action keeps every invariant, for any number of nodes and clients.

    python check.py            by Z3; also that it is not vacuous, and that it can fail
    python check.py --second   the obligations once more, by cvc5
    python check.py --rust F   writes the system as Rust to F
    python check.py --tables   the tables of docs/proof.md

Ends with 1 if an obligation fails or cannot be decided.
"""

import sys
import time

import z3

import mutants
import traces
from protocol import ACTIONS, AXIOMS, INVARIANTS, LASTING, RELATIONS, SORTS, State, initial
from rust import write_rust

# An obligation takes a fraction of a second; on a machine that is busy, longer.
TIMEOUT_MS = 120_000
# Counterexamples to dropped rules are looked for among so many things: they are small.
FEW = {'Node': 2, 'Acquisition': 2, 'Round': 3, 'Quorum': 2, 'Fence': 3}
# How cvc5 is asked: plainly, and where that is not enough, by building models.
WAYS = [{}, {'mbqi': 'true'}]
BEFORE, AFTER = State(), State('_after')


class Report:
    def __init__(self):
        self.failed = 0

    def expect(self, found, wanted, what):
        if str(found) != wanted:
            self.failed += 1
            print(f'FAILED: {what}: {found}')


def solver(*formulas):
    made = z3.Solver()
    made.set('timeout', TIMEOUT_MS)
    made.add(*[formula for formula in formulas if not isinstance(formula, bool)])
    return made


def changed(step):
    """What the step makes of each relation; what it does not change stays."""
    for name, (sorts, *_) in RELATIONS.items():
        places = [z3.Const(f'place_{index}', sort) for index, sort in enumerate(sorts)]
        old, new = getattr(BEFORE, name), getattr(AFTER, name)
        if name in step.changes:
            equal = (new(*places) if places else new) == step.changes[name](*places)
        else:
            equal = (new(*places) == old(*places)) if places else new == old
        yield z3.ForAll(places, equal) if places else equal


def transition(step, axioms=AXIOMS):
    """The state before, in which all invariants hold, the step, and the state after."""
    before = [invariant.holds(BEFORE) for invariant in INVARIANTS]
    return [*axioms.values(), *before, *step.requires.values(), *changed(step)]


def obligations():
    """Each obligation: its name, what is given, and what must follow from it."""
    for invariant in INVARIANTS:
        given = [*AXIOMS.values(), initial(BEFORE)]
        yield f"'{invariant.name}' at the start", given, invariant.holds(BEFORE)
    for action in ACTIONS:
        given = transition(action.step(BEFORE))
        for invariant in INVARIANTS:
            yield f"'{action.name}' keeps '{invariant.name}'", given, invariant.holds(AFTER)
        for lasting in LASTING:
            yield f"'{action.name}' leaves '{lasting.name}'", given, lasting.holds(BEFORE, AFTER)


def prove(report):
    count, made, last = 0, None, None
    for name, given, conclusion in obligations():
        if given is not last:
            made, last = solver(*given), given
        made.push()
        made.add(z3.Not(conclusion))
        report.expect(made.check(), 'unsat', name)
        made.pop()
        count += 1
    print(f'{len(ACTIONS)} actions, {len(INVARIANTS)} invariants, {len(LASTING)} things that last: '
          f'{count} obligations')


def prove_again(report):
    """By cvc5, which shares no code with Z3. It reads what Z3 writes."""
    import cvc5
    count = 0
    for name, given, conclusion in obligations():
        text = solver(*given, z3.Not(conclusion)).to_smt2()
        for way in WAYS:
            answer = ask_cvc5(cvc5, text, way)
            if not answer.startswith('unknown'):
                break
        report.expect(answer, 'unsat', f'{name}, by cvc5')
        count += 1
    print(f'{count} obligations by cvc5 {cvc5.__version__}')


def ask_cvc5(cvc5, text, options):
    second = cvc5.Solver()
    for name, value in {'tlimit-per': str(TIMEOUT_MS), **options}.items():
        second.setOption(name, value)
    parser = cvc5.InputParser(second)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, '(set-logic ALL)\n' + text, 'obligation')
    symbols, answer = parser.getSymbolManager(), ''
    while not (command := parser.nextCommand()).isNull():
        answer += command.invoke(second, symbols)
    return answer.strip()


def can_happen(report):
    """Each action is possible in some state in which all invariants hold; some things happen."""
    for action in ACTIONS:
        made = solver(*transition(action.step(BEFORE)))
        report.expect(made.check(), 'sat', f"'{action.name}' can happen")
    for trace in traces.ALL:
        trace()
    print(f'{len(ACTIONS)} actions can happen; {len(traces.ALL)} traces')


def few():
    """There are no more things than a few."""
    for sort in SORTS:
        things = [z3.Const(f'{sort.name()}_{index}', sort) for index in range(FEW[sort.name()])]
        any_thing = z3.Const('any_thing', sort)
        yield z3.ForAll([any_thing], z3.Or([any_thing == thing for thing in things]))


def can_fail(report):
    """Each dropped rule fails its obligation."""
    steps = {action.name: action.step for action in ACTIONS}
    conclusions = {invariant.name: invariant.holds(AFTER) for invariant in INVARIANTS}
    conclusions |= {lasting.name: lasting.holds(BEFORE, AFTER) for lasting in LASTING}
    for mutant in mutants.MUTANTS:
        step = steps[mutant.action](BEFORE)
        if mutant.change:
            step = mutant.change(step, BEFORE)
        axioms = {name: axiom for name, axiom in AXIOMS.items() if name != mutant.axiom}
        assert mutant.change or len(axioms) < len(AXIOMS), mutant.rule
        made = solver(*transition(step, axioms), *few())
        made.add(z3.Not(conclusions[mutant.breaks]))
        report.expect(made.check(), 'sat', f"without '{mutant.rule}', '{mutant.action}' breaks "
                      f"'{mutant.breaks}'")
    print(f'{len(mutants.MUTANTS)} dropped rules')


def write_tables():
    """What docs/proof.md says of the system, so that it says what is proved."""
    for name, (_, _, meaning, by) in RELATIONS.items():
        print(f'| `{name}` | {meaning} | {"" if by == "seen" else "history"} |')
    print()
    for action in ACTIONS:
        print(f'| **{action.name}** | {action.sentence} | {action.rule} | `{action.code}` |')
    print()
    for invariant in INVARIANTS:
        print(f'| {"promise: " if invariant.is_promise else ""}**{invariant.name}** | '
              f'{invariant.sentence} |')
    print()
    for lasting in LASTING:
        print(f'| **{lasting.name}** | {lasting.sentence} |')
    print()
    for mutant in mutants.MUTANTS:
        print(f'| {mutant.rule} | {mutant.action} | {mutant.breaks} |')
    print()
    for trace in traces.ALL:
        print(f'| {trace.__name__.replace("_", " ")} | {trace.__doc__} |')


def main(arguments):
    report = Report()
    parts = {(): [prove, can_happen, can_fail], ('--second',): [prove_again]}
    if arguments[:1] == ['--rust']:
        write_rust(arguments[1])
        return 0
    if arguments == ['--tables']:
        write_tables()
        return 0
    for part in parts[tuple(arguments)]:
        started_at = time.monotonic()
        part(report)
        print(f'  {time.monotonic() - started_at:.1f} s')
    print(f'{report.failed} failed or undecided' if report.failed else 'proved')
    return 1 if report.failed else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
