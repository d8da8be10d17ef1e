"""Proves the protocol: every action keeps every invariant, for any number of nodes and clients.

Without an option, Z3 decides every obligation, shows that every action is possible, and finds a
counterexample for every rule that is dropped. docs/proof.md has the same order.
"""

import argparse
import itertools
import signal
import sys
import time

TO_INSTALL = 'run `make deps`, or `pip install -r proof/requirements.txt`'
try:
    import z3
except ModuleNotFoundError as missing:
    sys.exit(f'{missing}: {TO_INSTALL}')

import mutants
import traces
from protocol import (ACTIONS, AXIOMS, INVARIANTS, LASTING, RELATIONS, RIGID, SORTS, State, initial)
from rust import write_rust

ENDS = """ends with 0 if all is proved, with 1 if something fails or cannot be decided, with 2 if it
is called in a wrong way"""

# An obligation takes a fraction of a second, or longer on a busy machine.
TIMEOUT_MS = 120_000
# How many things a counterexample to a dropped rule may have: all are small.
FEW = {'Node': 2, 'Acquisition': 3, 'Round': 3, 'Quorum': 2, 'Fence': 3}
# cvc5 is asked without options; if that is not enough, with enumerated instances; then by building
# models.
WAYS = [{}, {'enum-inst': 'true'}, {'mbqi': 'true'}]
BEFORE, AFTER = State(), State('_after')
PARAMETERS = {str(parameter) for action in ACTIONS for parameter in action.parameters}
NAMES = {name + suffix for name in RELATIONS for suffix in ('', '_after')}


class Report:
    """Counts failures, and prints each as it happens."""

    def __init__(self):
        self.failed = 0

    def fail(self, what):
        self.failed += 1
        print(f'FAILED: {what}', flush=True)


def undecided(found):
    return f'not decided ({found} after {TIMEOUT_MS / 1000:.0f} s)'


def solver(*formulas):
    made = z3.Solver()
    # Ctrl-C ends the program, not the question.
    made.set('timeout', TIMEOUT_MS, 'ctrl_c', False)
    made.add(*[formula for formula in formulas if not isinstance(formula, bool)])
    return made


def well_formed(report):
    """A typing error could make an action or an invariant weaker, and then be proved."""
    names = [thing.name for kind in (INVARIANTS, LASTING) for thing in kind]
    for kind in (names, [action.name for action in ACTIONS]):
        for twice in sorted({name for name in kind if kind.count(name) > 1}):
            report.fail(f'{twice!r} is the name of two things')
    for name, formula in must_hold().items():
        for free in sorted(set(constants(formula)) - NAMES):
            report.fail(f"'{name}' speaks of {free!r}, which is no relation and not bound")
    for action in ACTIONS:
        step = action.step(BEFORE)
        for unknown in sorted(set(step.changes) - set(RELATIONS)):
            report.fail(f"'{action.name}' changes {unknown!r}, which is no relation")
        used = {str(name) for formula in [*step.requires.values(), *changed(step)]
                for name in constants(formula)} - {*map(str, action.parameters)}
        for missing in sorted(name for name in used if name in PARAMETERS):
            report.fail(f"'{action.name}' uses {missing!r}, which is not among its parameters")
    for name in {name for name, _ in mutants.NOT_NEEDED} | {
            mutant.action for mutant in mutants.MUTANTS}:
        if name not in {action.name for action in ACTIONS}:
            report.fail(f'mutants.py speaks of {name!r}, which is no action')


def constants(formula):
    """The names of the constants in a formula."""
    waiting, seen = [z3.BoolVal(formula) if isinstance(formula, bool) else formula], set()
    while waiting:
        part = waiting.pop()
        if part.get_id() in seen:
            continue
        seen.add(part.get_id())
        if z3.is_const(part) and part.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            yield part.decl().name()
        waiting += [part.body()] if z3.is_quantifier(part) else part.children()


def changed(step):
    """The new value of each relation; what the step does not change stays."""
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


def must_hold():
    """What must hold after an action, by its name."""
    return {**{invariant.name: invariant.holds(AFTER) for invariant in INVARIANTS},
            **{lasting.name: lasting.holds(BEFORE, AFTER) for lasting in LASTING}}


def obligations():
    """Each obligation: its name, what is given, and what must follow from it."""
    for invariant in INVARIANTS:
        given = [*AXIOMS.values(), initial(BEFORE)]
        yield f"'{invariant.name}' at the start", given, invariant.holds(BEFORE)
    for action in ACTIONS:
        given = transition(action.step(BEFORE))
        for name, conclusion in must_hold().items():
            yield f"'{action.name}' keeps '{name}'", given, conclusion


def prove(report, only=None):
    count, made, last = 0, None, None
    for name, given, conclusion in obligations():
        if only and not name.startswith(f"'{only}'"):
            continue
        if given is not last:
            made, last = solver(*given), given
        made.push()
        made.add(z3.Not(conclusion))
        found = made.check()
        made.pop()
        if found == z3.sat:
            report.fail(f'{name}: there is a counterexample')
            show(counterexample(given, conclusion))
        elif found != z3.unsat:
            report.fail(f'{name}: {undecided(found)}')
        count += 1
    say(count, 'obligations', *([] if only else [
        f'{len(ACTIONS)} actions, {len(INVARIANTS)} invariants, {len(LASTING)} things that last']),
        f'Z3 {z3.get_version_string()}')


def prove_again(report):
    """With cvc5, which shares no code with Z3, but reads the obligations that Z3 writes."""
    try:
        import cvc5
    except ModuleNotFoundError as missing:
        sys.exit(f'{missing}: {TO_INSTALL}')
    count = 0
    for name, given, conclusion in obligations():
        text = solver(*given, z3.Not(conclusion)).to_smt2()
        for way in WAYS:
            answer = ask_cvc5(cvc5, text, way)
            if not answer.startswith('unknown'):
                break
        if answer != 'unsat':
            found = 'there is a counterexample' if answer == 'sat' else undecided(answer)
            report.fail(f'{name}: {found}')
        count += 1
    say(count, 'obligations', f'cvc5 {cvc5.__version__}')
    # If its input were contradictory, everything would follow.
    for action in ACTIONS:
        text = solver(*transition(action.step(BEFORE)), *few()).to_smt2()
        answer = ask_cvc5(cvc5, text, {'finite-model-find': 'true'})
        if answer != 'sat':
            report.fail(f"'{action.name}' can happen: {answer}")
    say(len(ACTIONS), 'actions can happen', f'cvc5 {cvc5.__version__}')


def say(count, what, *details):
    print(f'{count} {what} ({"; ".join(details)})', flush=True)


def counterexample(given, conclusion):
    """A small counterexample, if there is one."""
    made = solver(*given, *few(), z3.Not(conclusion))
    return made.model() if made.check() == z3.sat else None


def show(model):
    """Prints a counterexample: the parameters, the state before, and what the action changes.

    Empty relations are left out."""
    if model is None:
        return print('  (none as small as docs/proof.md looks for)')
    things = {sort.name(): model.get_universe(sort) or [] for sort in SORTS}
    names = {thing: f'{sort}{number}' for sort, all_ in things.items()
             for number, thing in enumerate(all_)}
    known = {}
    for constant in model.decls():
        sorts = [constant.domain(index).name() for index in range(constant.arity())]
        facts = []
        for place in itertools.product(*[things.get(sort, []) for sort in sorts]):
            value = model.eval(constant(*place), model_completion=True)
            at = f'({", ".join(names[thing] for thing in place)})' if place else ''
            if not z3.is_false(value):
                facts.append(at if z3.is_true(value) else f'{at} = {names.get(value, value)}')
        known[constant.name()] = ' '.join(facts)
    for name in [*sorted(PARAMETERS), *RIGID, *RELATIONS]:
        if known.get(name):
            print(f'  {name}{known[name]}')
        if known.get(name + '_after', known.get(name)) != known.get(name):
            print(f'  {name} afterwards: {known[name + "_after"]}')


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
        found = solver(*transition(action.step(BEFORE)), *few()).check()
        if found == z3.unsat:
            report.fail(f"'{action.name}' can never happen")
        elif found != z3.sat:
            report.fail(f"'{action.name}' can happen: {undecided(found)}")
    for trace in traces.ALL:
        try:
            trace()
        except AssertionError as error:
            report.fail(f'the trace {trace.__name__!r}: {error or "see its code"}')
    say(len(ACTIONS), 'actions can happen', f'{len(traces.ALL)} traces')


def few():
    """There are only a few things of each sort."""
    for sort in SORTS:
        things = [z3.Const(f'{sort.name()}_{index}', sort) for index in range(FEW[sort.name()])]
        any_thing = z3.Const('any_thing', sort)
        yield z3.ForAll([any_thing], z3.Or([any_thing == thing for thing in things]))


def can_fail(report):
    """Each dropped rule fails its obligation, and every requirement is covered."""
    actions = {action.name: action for action in ACTIONS}
    dropped = set()
    for mutant in mutants.MUTANTS:
        before = actions[mutant.action].step(BEFORE)
        step = mutant.change(before, BEFORE) if mutant.change else before
        dropped |= {(mutant.action, rule) for rule, formula in before.requires.items()
                    if step.requires.get(rule) is not formula}
        axioms = {name: axiom for name, axiom in AXIOMS.items() if name != mutant.axiom}
        if not mutant.change and len(axioms) == len(AXIOMS):
            report.fail(f"'{mutant.rule}' drops nothing")
        made = solver(*transition(step, axioms), *few(), z3.Not(must_hold()[mutant.breaks]))
        if (found := made.check()) != z3.sat:
            report.fail(f"without '{mutant.rule}', '{mutant.action}' should break "
                        f"'{mutant.breaks}': no counterexample among {FEW} ({found})")
    for name in must_hold().keys() - {mutant.breaks for mutant in mutants.MUTANTS}:
        report.fail(f"no dropped rule breaks '{name}'")
    for action in ACTIONS:
        for rule in action.step(BEFORE).requires:
            if ((action.name, rule) in dropped) == ((action.name, rule) in mutants.NOT_NEEDED):
                report.fail(f"'{rule}' of '{action.name}' must be in one list of mutants.py")
    for name, rule in mutants.NOT_NEEDED:
        step = mutants.drop(rule)(actions[name].step(BEFORE), BEFORE)
        made = solver(*transition(step))
        for kept, conclusion in must_hold().items():
            found = made.check(z3.Not(conclusion))
            if found == z3.sat:
                report.fail(f"without '{rule}', '{name}' breaks '{kept}': it is needed")
            elif found != z3.unsat:
                report.fail(f"whether '{name}' needs '{rule}': {undecided(found)}")
    say(len(mutants.MUTANTS), 'dropped rules break something',
        f'{len(mutants.NOT_NEEDED)} requirements are not needed')


def write_tables():
    """Prints the tables of docs/proof.md, so that they match what is proved."""
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
        print(f'| {trace.__name__.replace("_", " ")} | {" ".join(trace.__doc__.split())} |')


def main():
    parser = argparse.ArgumentParser(
        prog='check.py', epilog=ENDS, description='Proves the protocol of lockmod with Z3, for any '
        'number of nodes and clients; shows that the proof is not empty, and that it can fail.')
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument('--only', metavar='ACTION', choices=[action.name for action in ACTIONS],
                         help='decide only the obligations of this action')
    instead.add_argument('--second', action='store_true',
                         help='decide the obligations with cvc5 instead')
    instead.add_argument('--rust', metavar='FILE',
                         help='write the protocol as Rust (tests/proof/system.rs) instead')
    instead.add_argument('--tables', action='store_true',
                         help='print the tables of docs/proof.md instead')
    options = parser.parse_args()
    if not __debug__:
        parser.error('the traces are checked by assertions: run it without -O and PYTHONOPTIMIZE')
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if options.tables:
        return write_tables()
    report = Report()
    well_formed(report)
    if report.failed:
        sys.exit(1)
    if options.rust:
        text = write_rust()
        try:
            with open(options.rust, 'w') as file:
                file.write(text)
        except OSError as error:
            sys.exit(str(error))
        return
    if options.only:
        parts = [lambda report: prove(report, options.only)]
    else:
        parts = [prove_again] if options.second else [prove, can_happen, can_fail]
    for part in parts:
        started_at = time.monotonic()
        part(report)
        print(f'  {time.monotonic() - started_at:.1f} s')
        if report.failed:
            sys.exit(f'not proved: {report.failed} failed or not decided')
    if options.only:
        print(f"'{options.only}' keeps all that it must")
    else:
        print('proved: ' + ', '.join(
            invariant.name for invariant in INVARIANTS if invariant.is_promise))


if __name__ == '__main__':
    main()
