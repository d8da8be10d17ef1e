"""Rules that are dropped or weakened, one at a time. Each must fail the obligation that is named.

A proof that holds whatever is changed proves nothing; these say which rule carries what. Every
requirement of every action is in one of the two lists; `check.py` sees to that.
"""

from dataclasses import dataclass

from z3 import And, Exists, ForAll, If, Implies, Not

from protocol import (A, F, N, Q, R, RELATIONS, Step, counts, g, member, n, own, plus, r, s, up_to,
                      without)


@dataclass
class Mutant:
    rule: str
    # The obligation that must fail: this action no longer keeps this invariant, or takes back this
    # that lasts.
    action: str
    breaks: str
    # What becomes of the action's step.
    change: object = None
    # The axiom that is dropped.
    axiom: str = ''


def drop(*requirements):
    def change(step, x):
        missing = set(requirements) - set(step.requires)
        assert not missing, missing
        kept = {rule: formula for rule, formula in step.requires.items()
                if rule not in requirements}
        return Step(kept, step.changes)
    return change


def instead(requirement, formula):
    """Another requirement in place of one."""
    def change(step, x):
        assert requirement in step.requires, requirement
        return Step({**step.requires, requirement: formula(x)}, step.changes)
    return change


def also(**changes):
    """Other changes in place of some."""
    def change(step, x):
        assert set(changes) <= set(RELATIONS), changes.keys()
        made = {relation: new(x) for relation, new in changes.items()}
        return Step(step.requires, {**step.changes, **made})
    return change


def stays(*relations):
    def change(step, x):
        assert set(relations) <= set(step.changes), relations
        return Step(step.requires, {name: new for name, new in step.changes.items()
                                    if name not in relations})
    return change


def both(one, other):
    return lambda step, x: other(one(step, x), x)


def only_answers_on_their_way(x):
    """No confirmed round rests on the lease: of what does, the replies have not been counted."""
    return ForAll([r], Implies(x.rests(N, r), Not(x.confirmed(r))))


STORED_NOT_EXACTLY = 'a quorum stored just this fence'

MUTANTS = [
    Mutant('two quorums share a node', 'win', 'exclusion', axiom='two quorums share a node'),
    Mutant('two quorums share a node (fences)', 'win', 'unique', axiom='two quorums share a node'),
    Mutant('a renewal needs a quorum of yes', 'renew', 'votes stay',
           drop('a quorum answered this very round')),
    Mutant('answers of an older round do not count', 'renew', 'votes stay',
           instead('a quorum answered this very round', lambda x: ForAll([n], Implies(
               member(n, Q), Exists([s], And(own(s) == own(R), x.vouches(n, s))))))),
    Mutant('a raise round, if the grants differ', 'win', 'won with', drop(STORED_NOT_EXACTLY)),
    Mutant('a grant of more than is raised to does not count', 'win', 'won with',
           instead(STORED_NOT_EXACTLY, lambda x: ForAll([n], Implies(
               member(n, Q), Exists([g], And(up_to(F, g), x.stored(own(R), n, g))))))),
    Mutant('an attempt is lost when its validity is over', 'win', 'superseded',
           drop('the validity is not over')),
    Mutant('a holder whose validity has ended is done', 'renew', 'superseded',
           drop('the holder is still valid')),
    Mutant('an attempt is won once', 'win', 'rising', drop('once')),
    Mutant('an attempt needs a quorum of grants', 'win', 'exclusion', drop('a quorum granted')),
    Mutant('only a holder renews', 'renew', 'nothing from nothing', drop('of a holder')),
    Mutant('only an attempt that began can end', 'finish', 'history', drop('it has begun')),
    Mutant('only a holder writes', 'write', 'written', drop('of a holder, or one who was')),
    Mutant('a client that is done has no validity', 'finish', 'over is over', stays('over')),
    Mutant('a token is used once', 'begin', 'rising', drop('a fresh token')),
    Mutant('a node grants a free lock only', 'grant', 'one voice', drop('the lock is free')),
    Mutant('nothing is granted in quarantine', 'grant', 'one voice', drop('not in quarantine')),
    Mutant('a holder rejoins outside quarantine only', 'rejoin', 'one voice',
           drop('not in quarantine')),
    Mutant('a holder rejoins a free lock only', 'rejoin', 'one voice', drop('the lock is free')),
    Mutant('a holder rejoins above the counter', 'rejoin', 'above the last',
           drop('above the counter')),
    Mutant('a rejoining is on disk first', 'rejoin', 'on disk', drop('on disk first')),
    Mutant('a grant is asked for', 'grant', 'nothing from nothing', drop('it has begun')),
    Mutant('a grant has a larger fence', 'grant', 'stored once',
           instead('above the counter', lambda x: up_to(x.counter(N), F))),
    Mutant('a raise lifts, or stores nothing', 'raise', 'stored once',
           drop('above what is stored for others')),
    Mutant('a raise looks at the token', 'raise', 'nothing from nothing', drop('the token holds')),
    Mutant('a grant is on disk first', 'grant', 'on disk', drop('on disk first')),
    Mutant('a raise is on disk first', 'raise', 'on disk', drop('on disk first')),
    Mutant('a ceiling covers the counter', 'persist', 'on disk', drop('it covers the counter')),
    Mutant('a floor does not fall', 'skip', 'counted', drop('upwards')),
    Mutant('a floor is on disk first', 'skip', 'on disk', drop('on disk first')),
    Mutant('an extension looks at the token', 'extend', 'rests on the holder',
           drop('the token holds', 'the lease counts')),
    Mutant('a repaired lease does not count in quarantine', 'extend', 'one voice',
           instead('the lease counts', lambda x: Not(x.promoted(N)))),
    Mutant('a repair in quarantine does not count', 'repair', 'one voice',
           also(rests=lambda x: plus(x.rests, N, R, where=Not(x.over(R))))),
    Mutant('a repair in quarantine needs a free lock', 'repair', 'one holder',
           drop('the lock is free')),
    Mutant('a repair that does not count is for a quarantine', 'repair', 'nothing forgotten',
           drop('in quarantine')),
    Mutant('only a holder repairs', 'repair', 'nothing from nothing', drop('of a holder')),
    Mutant('a repair by the counter needs a free lock', 'repair by the counter', 'one voice',
           drop('the lock is free')),
    Mutant('a repair that counts is for no quarantine', 'repair by the counter', 'one voice',
           drop('not in quarantine')),
    Mutant('only a holder repairs by the counter', 'repair by the counter',
           'nothing from nothing', drop('of a holder')),
    Mutant('a repair by the counter lowers no counter', 'repair by the counter', 'counted',
           drop('nothing later was granted')),
    Mutant('a repair by the counter is on disk first', 'repair by the counter', 'on disk',
           drop('on disk first')),
    Mutant('a lease comes from elsewhere to a free lock', 'arrive', 'one holder',
           drop('the lock is free')),
    Mutant('a lease from elsewhere is provisional in a quarantine only', 'arrive',
           'nothing forgotten', drop('in quarantine')),
    Mutant('a lease from elsewhere is somebody\'s', 'arrive', 'nothing from nothing',
           drop('it has begun')),
    Mutant('a lease that comes from elsewhere does not count', 'arrive', 'no vote beside',
           stays('provisional')),
    Mutant('nothing counts while a promoted node waits', 'extend', 'nothing counts',
           instead('the lease counts', lambda x: Not(x.provisional(N, own(R))))),
    Mutant('an extension ends no lease earlier', 'extend', 'votes stay',
           also(rests=lambda x: lambda y, z: If(y == N, And(z == R, Not(x.over(R))),
                                                x.rests(y, z)))),
    Mutant('leases end by a clock that nobody steps', 'lease ends', 'votes stay',
           drop('no validity rests on it')),
    Mutant('a release looks at the token', 'release', 'votes stay',
           drop('the token holds', 'its client is done')),
    Mutant('who releases relies on nothing', 'release', 'votes stay', drop('its client is done')),
    Mutant('quarantine after a crash', 'crash', 'nothing forgotten', stays('quarantined')),
    Mutant('a quarantine outlasts what was forgotten', 'quarantine ends', 'nothing forgotten',
           drop('all that was forgotten is over')),
    Mutant('fences go on above the ceiling', 'crash', 'counted',
           drop('fences go on above the ceiling')),
    Mutant('a lease that was repaired is provisional when it comes back', 'crash with data',
           'no vote beside', instead('what counts has no vote beside it', lambda x: Implies(
               counts, x.holds(N, A)))),
    Mutant('a lease that may have been over is provisional when it comes back',
           'crash with data', 'no vote beside', drop('what counts has no vote beside it')),
    Mutant('fences go on above the ceiling, also with data', 'crash with data', 'counted',
           drop('fences go on above the ceiling')),
    Mutant('a lease that comes back is somebody\'s', 'crash with data', 'nothing from nothing',
           drop('it has begun')),
    Mutant('a lease that a replica has is somebody\'s', 'promote', 'nothing from nothing',
           drop('it has begun')),
    Mutant('an old master grants to somebody', 'the old master serves', 'nothing from nothing',
           drop('it has begun')),
    Mutant('an old master vouches for one acquisition', 'the old master serves', 'one voice',
           drop('it vouches for nobody else')),
    Mutant('an old master grants above its counter', 'the old master serves', 'stored once',
           drop('above its counter')),
    Mutant('the fences of a promoted replica jump', 'promote', 'counted',
           drop('its fences jump')),
    Mutant('a promoted node waits for what its master granted', 'the old master serves',
           'nothing forgotten', drop('its replica waits')),
    Mutant('the jump is above what an old master issues', 'the old master serves', 'counted',
           drop('below the jump')),
    Mutant('a lease stands while an answer for it is on its way', 'lease ends', 'votes last',
           instead('no validity rests on it', only_answers_on_their_way)),
    Mutant('nobody takes back a lease for which an answer is on its way', 'release', 'votes last',
           instead('its client is done', only_answers_on_their_way)),
    Mutant('nobody is granted a lock for which an answer is on its way', 'grant', 'votes last',
           both(instead('the lock is free', only_answers_on_their_way), also(
               holds=lambda x: lambda y, z: If(y == N, z == own(R), x.holds(y, z)),
               rests=lambda x: lambda y, z: If(y == N, And(z == R, Not(x.over(z))),
                                               x.rests(y, z))))),
    Mutant('a quarantine waits for answers on their way', 'quarantine ends', 'votes last',
           both(instead('all that was forgotten is over', lambda x: ForAll([r], Implies(
               x.forgot(N, r), Not(x.confirmed(r))))),
               also(forgot=lambda x: without(x.forgot, N)))),
    Mutant('nobody takes back a fence that was stored', 'release', 'fences last',
           also(stored=lambda x: lambda y, z, w: And(x.stored(y, z, w), z != N))),
    Mutant('a validity that has ended does not come back', 'extend', 'ends last',
           also(over=lambda x: lambda y: And(x.over(y), y != R))),
    Mutant('a client that is done does not win back its lock', 'finish', 'wins last',
           also(won=lambda x: lambda y: And(x.won(y), y != A))),
    Mutant('a store refuses smaller fences', 'write', 'store', drop('no smaller fence')),
]

# What actions require because that is what they are, although nothing breaks without it: a grant to
# any round of an acquisition that began is as good as one to its attempt.
NOT_NEEDED = [('win', 'it is the attempt'), ('grant', 'it is the attempt'),
              ('rejoin', 'it has begun'), ('rejoin', 'of a holder')]
