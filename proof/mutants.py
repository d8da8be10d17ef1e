"""Rules that are dropped or weakened, one at a time. The named obligation must fail for each.

A proof that holds whatever is changed proves nothing; these show what each rule is needed for.
`check.py` checks that every requirement of every action is in one of the two lists.
"""

from dataclasses import dataclass

from z3 import And, Exists, ForAll, If, Implies, Not, Or

from protocol import (A, F, N, Q, R, RELATIONS, Step, a, b, below, exclusively, g, member, n, own,
                      plus, r, reader, s, up_to, without)


@dataclass
class Mutant:
    rule: str
    # The obligation that must fail: this action no longer keeps this invariant, or undoes something
    # that lasts.
    action: str
    breaks: str
    # Changes the action's step.
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
    """Replaces a requirement."""
    def change(step, x):
        assert requirement in step.requires, requirement
        return Step({**step.requires, requirement: formula(x)}, step.changes)
    return change


def also(**changes):
    """Replaces some of the changes."""
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
    """No confirmed round rests on the lease: the replies for those that do are not counted yet."""
    return ForAll([r], Implies(And(x.rests(N, r), own(r) == A), Not(x.confirmed(r))))


def nobody_is_vouched_for(x):
    """The same for all leases at the node."""
    return ForAll([r], Implies(x.rests(N, r), Not(x.confirmed(r))))


STORED_NOT_EXACTLY = 'a quorum stored just this fence'
ABOVE = 'above the counter, or at it for a reader'

MUTANTS = [
    Mutant('two quorums share a node', 'win', 'exclusion', axiom='two quorums share a node'),
    Mutant('two quorums share a node (fences)', 'win', 'unique', axiom='two quorums share a node'),
    Mutant('a renewal needs a quorum of yes', 'renew', 'votes stay',
           drop('a quorum answered this very round')),
    Mutant('answers of an older round do not count', 'renew', 'votes stay',
           instead('a quorum answered this very round', lambda x: ForAll([n], Implies(
               member(n, Q), Exists([s], And(own(s) == own(R), x.vouches(n, s))))))),
    Mutant('a raise round, if the grants differ', 'win', 'won with', drop(STORED_NOT_EXACTLY)),
    Mutant('a grant with a larger fence than the raise does not count', 'win', 'won with',
           instead(STORED_NOT_EXACTLY, lambda x: ForAll([n], Implies(
               member(n, Q), Exists([g], And(up_to(F, g), x.stored(own(R), n, g))))))),
    Mutant('an attempt is lost when its validity is over', 'win', 'superseded',
           drop('the validity is not over')),
    Mutant('a holder whose validity has ended is done', 'renew', 'superseded',
           drop('the holder is still valid')),
    Mutant('the validity is that of the oldest request', 'win', 'votes stay',
           instead('a quorum granted', lambda x: ForAll([n], Implies(
               And(member(n, Q), Not(x.over(R))),
               Exists([s], And(own(s) == own(R), x.vouches(n, s))))))),
    Mutant('only requests for one token are ordered', 'grant', 'rests on the holder',
           axiom='only requests for one token are ordered'),
    Mutant('an attempt is won once', 'win', 'rising', drop('once')),
    Mutant('an attempt needs a quorum of grants', 'win', 'exclusion', drop('a quorum granted')),
    Mutant('only a holder renews', 'renew', 'nothing from nothing', drop('of a holder')),
    Mutant('only an attempt that began can end', 'finish', 'history', drop('it has begun')),
    Mutant('only a writer writes', 'write', 'written', drop('of a writer, or one who was')),
    Mutant('only a holder reads', 'read', 'written', drop('of a holder, or one who was')),
    Mutant('only a writer becomes a reader', 'downgrade', 'exclusive leases', drop('a writer')),
    Mutant('a node lets readers in after the writer reads', 'downgrade at a node',
           'exclusive leases', drop('its client reads already')),
    Mutant('a client that is done has no validity', 'finish', 'over is over', stays('over')),
    Mutant('a token is used once', 'begin', 'rising', drop('a fresh token')),
    Mutant('a node grants a free lock only', 'grant', 'one voice', drop('the lock is free')),
    Mutant('a node grants no writer a lock beside readers', 'grant', 'one voice',
           instead('the lock is free', lambda x: And(Not(x.holds(N, own(R))), ForAll([a], Implies(
               x.holds(N, a), Not(x.exclusive(N, a))))))),
    Mutant('a node grants no reader a lock beside a writer', 'grant', 'one voice',
           instead('the lock is free', lambda x: And(Not(x.holds(N, own(R))), ForAll([a], Implies(
               x.holds(N, a), Not(exclusively)))))),
    Mutant('a grant is as it was asked', 'grant', 'exclusive leases', drop('as it was asked')),
    Mutant('a rejoining is as it was asked', 'rejoin', 'exclusive leases', drop('as it was asked')),
    Mutant('nothing is granted in quarantine', 'grant', 'one voice', drop('not in quarantine')),
    Mutant('a holder rejoins outside quarantine only', 'rejoin', 'one voice',
           drop('not in quarantine')),
    Mutant('a holder rejoins a free lock only', 'rejoin', 'one voice', drop('the lock is free')),
    Mutant('a holder rejoins above the counter', 'rejoin', 'above the last',
           drop(ABOVE)),
    Mutant('a former writer that rejoins as a reader has stored nothing', 'rejoin', 'stored once',
           also(stored=lambda x: plus(x.stored, own(R), N, F))),
    Mutant('a rejoining is on disk first', 'rejoin', 'on disk', drop('on disk first')),
    Mutant('a grant is asked for', 'grant', 'nothing from nothing', drop('it has begun')),
    Mutant('a grant has a larger fence', 'grant', 'stored once',
           instead(ABOVE, lambda x: up_to(x.counter(N), F))),
    Mutant('a reader has no smaller fence', 'grant', 'above the last',
           instead(ABOVE, lambda x: Implies(exclusively, below(x.counter(N), F)))),
    Mutant('a raise lifts, or stores nothing', 'raise', 'stored once',
           drop('above what is stored for others')),
    Mutant('a fence as large as its own is enough only for a reader', 'raise', 'stored once',
           instead('above what is stored for others', lambda x: Or(
               ForAll([b, g], Implies(And(x.stored(b, N, g), b != A), below(g, F))),
               Exists([g], And(x.stored(A, N, g), up_to(g, F)))))),
    Mutant('a reader is raised to no smaller fence than its own', 'raise', 'above the last',
           instead('above what is stored for others', lambda x: Or(
               ForAll([b, g], Implies(And(x.stored(b, N, g), b != A), below(g, F))), reader(A)))),
    Mutant('a raise checks the token', 'raise', 'nothing from nothing', drop('the token holds')),
    Mutant('a grant is on disk first', 'grant', 'on disk', drop('on disk first')),
    Mutant('a raise is on disk first', 'raise', 'on disk', drop('on disk first')),
    Mutant('a ceiling covers the counter', 'persist', 'on disk', drop('it covers the counter')),
    Mutant('a floor does not fall', 'skip', 'counted', drop('upwards')),
    Mutant('a floor is on disk first', 'skip', 'on disk', drop('on disk first')),
    Mutant('an extension checks the token', 'extend', 'rests on the holder',
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
    Mutant('a repair is as it was asked', 'repair', 'exclusive leases', drop('as it was asked')),
    Mutant('a repair by the counter is as it was asked', 'repair by the counter',
           'exclusive leases', drop('as it was asked')),
    Mutant('a lease that comes from elsewhere is as it was asked', 'arrive', 'exclusive leases',
           drop('as it was asked')),
    Mutant('a repair by the counter lowers no counter', 'repair by the counter', 'counted',
           drop('nothing later was granted')),
    Mutant('a repair by the counter is on disk first', 'repair by the counter', 'on disk',
           drop('on disk first')),
    Mutant('a lease comes from elsewhere to a free lock', 'arrive', 'one holder',
           drop('the lock is free')),
    Mutant('a lease from elsewhere is provisional in a quarantine only', 'arrive',
           'nothing forgotten', drop('in quarantine')),
    Mutant('a lease from elsewhere has a holder', 'arrive', 'nothing from nothing',
           drop('it has begun')),
    Mutant('a lease that comes from elsewhere does not count', 'arrive', 'no vote beside',
           stays('provisional')),
    Mutant('a lease that may have been over is provisional when it comes back', 'arrive',
           'no vote beside', drop('what counts has no vote beside it')),
    Mutant('nothing counts while a promoted node waits', 'extend', 'nothing counts',
           instead('the lease counts', lambda x: Not(x.provisional(N, own(R))))),
    Mutant('an extension ends no lease earlier', 'extend', 'votes stay',
           also(rests=lambda x: lambda y, z: If(y == N, And(z == R, Not(x.over(R))),
                                                x.rests(y, z)))),
    Mutant('leases end by a clock that cannot be stepped', 'lease ends', 'votes stay',
           drop('no validity rests on it')),
    Mutant('a release checks the token', 'release', 'votes stay',
           also(rests=lambda x: without(x.rests, N))),
    Mutant('a client that releases relies on nothing', 'release', 'votes stay',
           drop('its client is done')),
    Mutant('quarantine after a crash', 'crash', 'nothing forgotten', stays('quarantined')),
    Mutant('a quarantine outlasts what was forgotten', 'quarantine ends', 'nothing forgotten',
           drop('all that was forgotten is over')),
    Mutant('fences continue above the ceiling', 'crash', 'counted',
           drop('fences go on above the ceiling')),
    Mutant('an old master grants only to a client that asked', 'the old master serves',
           'nothing from nothing',
           drop('it has begun')),
    Mutant('an old master vouches for one writer', 'the old master serves', 'one voice',
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
    Mutant('a lease is not released while an answer for it is on its way', 'release', 'votes last',
           instead('its client is done', only_answers_on_their_way)),
    Mutant('a lock is not granted to another while an answer for it is on its way', 'grant',
           'votes last',
           both(instead('the lock is free', nobody_is_vouched_for), also(
               holds=lambda x: lambda y, z: If(y == N, z == own(R), x.holds(y, z)),
               exclusive=lambda x: lambda y, z: If(
                   y == N, And(z == own(R), exclusively), x.exclusive(y, z)),
               rests=lambda x: lambda y, z: If(y == N, And(z == R, Not(x.over(z))),
                                               x.rests(y, z))))),
    Mutant('a quarantine waits for answers on their way', 'quarantine ends', 'votes last',
           both(instead('all that was forgotten is over', lambda x: ForAll([r], Implies(
               x.forgot(N, r), Not(x.confirmed(r))))),
               also(forgot=lambda x: without(x.forgot, N)))),
    Mutant('a fence that was stored is not taken back', 'release', 'fences last',
           also(stored=lambda x: lambda y, z, w: And(x.stored(y, z, w), z != N))),
    Mutant('a validity that has ended does not come back', 'extend', 'ends last',
           also(over=lambda x: lambda y: And(x.over(y), y != R))),
    Mutant('a client that is done does not win back its lock', 'finish', 'wins last',
           also(won=lambda x: lambda y: And(x.won(y), y != A))),
    Mutant('a former writer remains a reader', 'finish', 'wins last',
           also(downgraded=lambda x: lambda y: And(x.downgraded(y), y != A))),
    Mutant('a store refuses writes with smaller fences', 'write', 'store',
           drop('no smaller fence')),
    Mutant('a store refuses writes with fences that readers had', 'write', 'store',
           drop('a larger fence than readers')),
    Mutant('a store refuses reads with smaller fences', 'read', 'store', drop('no smaller fence')),
]

# Requirements that only define their actions: nothing breaks without them. A grant to any round of
# an acquisition that began is as good as one to its attempt.
NOT_NEEDED = [('win', 'it is the attempt'), ('grant', 'it is the attempt'),
              ('rejoin', 'it has begun'), ('rejoin', 'of a holder')]
