"""The protocol of docs/design.md as one transition system, for any number of nodes and clients.

`check.py` proves it, `rust.py` translates it for the models (tests/proof/system.rs), docs/proof.md
explains it. A later feature adds its relations, actions and invariants here, never a system of its
own: two separate proofs do not prove the combination.

Time is one fact per round: its validity is over, or not yet. A relation about rounds at a node
contains only rounds whose validity is not over; the end of a validity removes the round.
"""

from dataclasses import dataclass, field

from z3 import (And, BoolSort, Const, Consts, DeclareSort, Exists, ForAll, Function, If,
                Implies, Not, Or)

Bool = BoolSort()
# An acquisition is one token: the attempts with it, and all that follows if one is won.
# A round is sent at once, to one node or to all: an acquire (which may be sent again, with the same
# token), or a renewal.
# A quorum is a set of nodes. Fences are a total order, nothing more.
Node, Acquisition, Round, Quorum, Fence = SORTS = [
    DeclareSort(name) for name in ('Node', 'Acquisition', 'Round', 'Quorum', 'Fence')]

# ---------------------------------------------------------------------- what never changes
own = Function('own', Round, Acquisition)
asks = Function('asks', Round, Bool)
# Both rounds ask for the lock with one token, and the first was sent no later than the other.
no_later = Function('no_later', Round, Round, Bool)
# The client of this acquisition never looks at its clock: only fences protect against it.
blind = Function('blind', Acquisition, Bool)
# It asks for the lock as a reader. All others are writers.
reader = Function('reader', Acquisition, Bool)
member = Function('member', Node, Quorum, Bool)
below = Function('below', Fence, Fence, Bool)

RIGID = ['own', 'asks', 'no_later', 'blind', 'reader', 'member', 'below']

n = Const('n', Node)
a, b = Consts('a b', Acquisition)
r, s = Consts('r s', Round)
p, q = Consts('p q', Quorum)
f, g, h = Consts('f g h', Fence)


def up_to(x, y):
    return Not(below(y, x))


AXIOMS = {
    'two quorums share a node': ForAll([p, q], Exists([n], And(member(n, p), member(n, q)))),
    'fences are ordered': And(
        ForAll([f], Not(below(f, f))),
        ForAll([f, g, h], Implies(And(below(f, g), below(g, h)), below(f, h))),
        ForAll([f, g], Or(below(f, g), below(g, f), f == g))),
    'only requests for one token are ordered': ForAll([r, s], Implies(
        no_later(r, s), And(own(r) == own(s), asks(r), asks(s)))),
}

# ------------------------------------------------------------------------ what the state is
# name: (arguments, value, meaning, whether the code sees it or only the proof does)
RELATIONS = {
    'holds': ((Node, Acquisition), Bool, 'a lease of the acquisition stands at the node', 'seen'),
    'exclusive': ((Node, Acquisition), Bool, 'that lease is a writer\'s', 'seen'),
    'provisional': ((Node, Acquisition), Bool,
                    'that lease does not count before the quarantine is over', 'seen'),
    'rests': ((Node, Round), Bool, 'the standing lease was dated by the round, and counts for it',
              'ours'),
    'forgot': ((Node, Round), Bool, 'the node vouched for the round, and may not know of it now',
               'ours'),
    'counter': ((Node,), Fence,
                'no fence of the lock above it was issued here; the next one will be', 'seen'),
    'ceiling': ((Node,), Fence, 'the fence ceiling in the state file', 'seen'),
    'quarantined': ((Node,), Bool, 'the node grants nothing', 'seen'),
    'promoted': ((Node,), Bool, 'it was a replica, and its master may still be alive', 'seen'),
    'stored': ((Acquisition, Node, Fence), Bool,
               'the node granted this fence to the acquisition, or raised its lease to it', 'ours'),
    'begun': ((Acquisition,), Bool, 'its requests may be on their way', 'seen'),
    'won': ((Acquisition,), Bool, 'its attempt was won', 'seen'),
    'downgraded': ((Acquisition,), Bool,
                   'it was won as a writer, and its client only reads from here on', 'seen'),
    'done': ((Acquisition,), Bool, 'it was abandoned or released: its client relies on nothing',
             'seen'),
    'fence': ((Acquisition,), Fence, 'the fence that it was won with', 'seen'),
    'storing': ((Acquisition,), Quorum, 'the quorum that stored this fence when it was won',
                'ours'),
    'over': ((Round,), Bool, 'the validity of the round has ended', 'seen'),
    'confirmed': ((Round,), Bool, 'a quorum has answered the round in time', 'ours'),
    'voters': ((Round,), Quorum, 'that quorum', 'ours'),
    'before': ((Acquisition, Acquisition), Bool, 'the one was won before the other began', 'ours'),
    'highest': ((), Fence, 'the largest fence of a writer that the fenced store has seen', 'seen'),
    'highest_read': ((), Fence, 'the largest fence of a reader that it has seen', 'seen'),
    'wrote': ((Acquisition,), Bool, 'the store has accepted a write by it', 'ours'),
    'read': ((Acquisition,), Bool, 'the store has accepted a read by it', 'ours'),
    'followed': ((Acquisition, Acquisition), Bool,
                 'a write by the one was accepted after a read or write by the other, '
                 'or a read after a write', 'ours'),
}


class State:
    """One state: a function for each relation."""

    def __init__(self, suffix=''):
        for name, (arguments, value, *_) in RELATIONS.items():
            made = (Function(name + suffix, *arguments, value) if arguments
                    else Const(name + suffix, value))
            setattr(self, name, made)

    def vouches(self, node, round_):
        """The answer of the node counts for the round, whatever happened to the lease since."""
        return Or(self.rests(node, round_), self.forgot(node, round_))

    def writes(self, acquisition):
        """Its client is a writer."""
        return Not(Or(reader(acquisition), self.downgraded(acquisition)))

    def conflict(self, one, other):
        return And(one != other, Or(self.writes(one), self.writes(other)))

    def is_free(self, node, acquisition, exclusively):
        """The node may give the lock to the acquisition, with other readers if it is a reader's."""
        return And(Not(self.holds(node, acquisition)), ForAll([a], Implies(
            self.holds(node, a), Not(Or(exclusively, self.exclusive(node, a))))))


# ----------------------------------------------------------------------------- what must hold
@dataclass
class Invariant:
    name: str
    sentence: str
    holds: object
    is_promise: bool = False


INVARIANTS = []


def invariant(name, is_promise=False):
    def note(function):
        INVARIANTS.append(Invariant(name, ' '.join(function.__doc__.split()), function, is_promise))
        return function
    return note


def later(acquisition, one, other):
    """The other fence is one that a later acquisition may get after a win with the one."""
    return And(up_to(one, other), Implies(Not(reader(acquisition)), below(one, other)))


@invariant('exclusion', is_promise=True)
def _(x):
    """All validities that are not over belong to one writer, or to readers."""
    return ForAll([r, s], Implies(
        And(x.confirmed(r), x.confirmed(s), Not(x.over(r)), Not(x.over(s))),
        Not(x.conflict(own(r), own(s)))))


@invariant('unique', is_promise=True)
def _(x):
    """No two writers have the same fence."""
    return ForAll([a, b], Implies(
        And(x.won(a), x.won(b), Not(reader(a)), Not(reader(b)), x.fence(a) == x.fence(b)), a == b))


@invariant('rising', is_promise=True)
def _(x):
    """If one acquisition was won before another began, the later one has no smaller fence, and if
    it is a writer's, a larger one."""
    return ForAll([a, b], Implies(And(x.before(a, b), x.won(b)), later(b, x.fence(a), x.fence(b))))


@invariant('store', is_promise=True)
def _(x):
    """If one acquisition was won before another began, the fenced store accepts nothing of the
    first after something of the second, except reads after reads."""
    return ForAll([a, b], Implies(x.followed(a, b), Not(x.before(a, b))))


@invariant('superseded', is_promise=True)
def _(x):
    """If both clients look at their clocks, and one of them is a writer, no acquisition is valid
    once another is won that began after the first was won."""
    return ForAll([a, b, r], Implies(
        And(x.before(a, b), x.won(b), x.conflict(a, b), Not(blind(a)), Not(blind(b)), own(r) == a,
            x.confirmed(r)),
        x.over(r)))


@invariant('one voice')
def _(x):
    """A node vouches for one writer at a time, or for readers."""
    return ForAll([n, r, s], Implies(
        And(x.vouches(n, r), x.vouches(n, s)), Not(x.conflict(own(r), own(s)))))


@invariant('votes stay')
def _(x):
    """A node that was counted for a validity that is not over still vouches for it."""
    return ForAll([n, r], Implies(
        And(x.confirmed(r), Not(x.over(r)), member(n, x.voters(r))), x.vouches(n, r)))


@invariant('one holder')
def _(x):
    """A node has one lease of a writer, or leases of readers."""
    return ForAll([n, a, b], Implies(
        And(x.holds(n, a), x.holds(n, b), a != b), Not(x.exclusive(n, a))))


@invariant('exclusive leases')
def _(x):
    """The lease of a writer is exclusive, and no other lease is, except that of a former writer."""
    return And(
        ForAll([n, a], Implies(And(x.holds(n, a), x.writes(a)), x.exclusive(n, a))),
        ForAll([n, a], Implies(x.exclusive(n, a), And(x.holds(n, a), Not(reader(a))))),
        ForAll([a], Implies(x.downgraded(a), And(x.won(a), Not(reader(a))))))


@invariant('rests on the holder')
def _(x):
    """A lease rests on rounds of its holder."""
    return ForAll([n, r], Implies(x.rests(n, r), x.holds(n, own(r))))


@invariant('no vote beside')
def _(x):
    """If a lease counts and its client is not done, the node has forgotten no vote that conflicts
    with it. (At a promoted node that waits, none counts.)"""
    return ForAll([n, a, r], Implies(
        And(x.holds(n, a), Not(x.provisional(n, a)), Not(x.promoted(n)), Not(x.done(a)),
            x.forgot(n, r)),
        Not(x.conflict(own(r), a))))


@invariant('nothing counts')
def _(x):
    """No lease counts for a round while it is provisional, or at a promoted node that waits."""
    return And(
        ForAll([n, r], Implies(x.provisional(n, own(r)), Not(x.rests(n, r)))),
        ForAll([n, r], Implies(x.promoted(n), Not(x.rests(n, r)))))


@invariant('nothing forgotten')
def _(x):
    """Outside a quarantine nothing is forgotten, and every lease counts."""
    return ForAll([n, r, a], Implies(
        Not(x.quarantined(n)),
        And(Not(x.forgot(n, r)), Not(x.provisional(n, a)), Not(x.promoted(n)))))


@invariant('over is over')
def _(x):
    """Nothing is kept of a validity that has ended, and a client that is done has none."""
    return And(
        ForAll([n, r], Implies(x.over(r), Not(x.vouches(n, r)))),
        ForAll([r], Implies(x.done(own(r)), x.over(r))))


@invariant('counted')
def _(x):
    """No fence stored at a node is above the node's counter."""
    return ForAll([a, n, f], Implies(x.stored(a, n, f), up_to(f, x.counter(n))))


@invariant('on disk')
def _(x):
    """No counter is above the ceiling in the state file."""
    return ForAll([n], up_to(x.counter(n), x.ceiling(n)))


@invariant('stored once')
def _(x):
    """A node stores a fence for at most one writer."""
    return ForAll([a, b, n, f], Implies(
        And(x.stored(a, n, f), x.stored(b, n, f), Not(reader(a)), Not(reader(b))), a == b))


@invariant('won with')
def _(x):
    """The fence that an acquisition was won with is stored at a quorum."""
    return ForAll([a, n], Implies(
        And(x.won(a), member(n, x.storing(a))), x.stored(a, n, x.fence(a))))


@invariant('above the last')
def _(x):
    """A node that stores a winning fence gives acquisitions that began later no smaller fences, and
    writers larger ones."""
    return ForAll([a, b, n, f], Implies(
        And(x.before(a, b), member(n, x.storing(a)), x.stored(b, n, f)),
        later(b, x.fence(a), f)))


@invariant('history')
def _(x):
    """If one acquisition was won before another began, the two differ, the first is won and the
    second has begun."""
    return And(
        ForAll([a, b], Implies(x.before(a, b), And(a != b, x.won(a), x.begun(b)))),
        ForAll([a], Implies(Or(x.won(a), x.done(a)), x.begun(a))))


@invariant('nothing from nothing')
def _(x):
    """There is no trace of an acquisition that has not begun."""
    return And(
        ForAll([a, n, f], Implies(
            Not(x.begun(a)),
            And(Not(x.stored(a, n, f)), Not(x.holds(n, a)), Not(x.provisional(n, a)),
                Not(x.wrote(a)), Not(x.read(a))))),
        ForAll([r, n], Implies(
            Not(x.begun(own(r))), And(Not(x.vouches(n, r)), Not(x.confirmed(r))))))


@invariant('written')
def _(x):
    """The store has accepted reads and writes only from acquisitions that were won, and their
    fences are not above the largest that it has seen."""
    return And(
        ForAll([a], Implies(x.wrote(a), And(
            x.won(a), Not(reader(a)), up_to(x.fence(a), x.highest)))),
        ForAll([a], Implies(x.read(a), And(x.won(a), up_to(x.fence(a), x.highest_read)))),
        ForAll([a, b], Implies(x.followed(a, b), Or(x.wrote(b), x.read(b)))))


# ----------------------------------------------------------------------------- what must last
@dataclass
class Lasting:
    """What no action undoes. A reply may arrive long after the node has sent it, and `win` and
    `renew` look at the nodes and not at replies: that is equivalent only because of this."""
    name: str
    sentence: str
    holds: object


LASTING = []


def lasting(name):
    def note(function):
        LASTING.append(Lasting(name, ' '.join(function.__doc__.split()), function))
        return function
    return note


@lasting('votes last')
def _(x, y):
    """A node that has vouched for a round keeps vouching for it until the round is over."""
    return ForAll([n, r], Implies(And(x.vouches(n, r), Not(y.over(r))), y.vouches(n, r)))


@lasting('fences last')
def _(x, y):
    """A fence that was stored remains stored."""
    return ForAll([a, n, f], Implies(x.stored(a, n, f), y.stored(a, n, f)))


@lasting('ends last')
def _(x, y):
    """A validity that has ended does not begin again, and a client that is done remains so."""
    return And(ForAll([r], Implies(x.over(r), y.over(r))),
               ForAll([a], Implies(x.done(a), y.done(a))))


@lasting('wins last')
def _(x, y):
    """An acquisition that was won remains won, with the same fence; a writer that has become a
    reader remains one; and the history of reads, of writes, and of which acquisition was won before
    which began is kept."""
    return And(
        ForAll([a], Implies(x.won(a), And(y.won(a), y.fence(a) == x.fence(a)))),
        ForAll([a, b], Implies(x.before(a, b), y.before(a, b))),
        ForAll([a], Implies(x.wrote(a), y.wrote(a))),
        ForAll([a], Implies(x.read(a), y.read(a))),
        ForAll([a], Implies(x.downgraded(a), y.downgraded(a))),
        ForAll([a, b], Implies(x.followed(a, b), y.followed(a, b))))


def initial(x):
    """Nothing has happened; counters have any value, and are on disk."""
    nothing = []
    for name, (arguments, value, *_) in RELATIONS.items():
        if value == Bool:
            places = [Const(f'{name}_{index}', sort) for index, sort in enumerate(arguments)]
            nothing.append(ForAll(places, Not(getattr(x, name)(*places))))
    return And(*nothing, ForAll([n], up_to(x.counter(n), x.ceiling(n))))


# --------------------------------------------------------------------------- what may happen
@dataclass
class Action:
    name: str
    sentence: str
    rule: str
    code: str
    parameters: list
    step: object


@dataclass
class Step:
    """What an action requires, each by a name, and what it changes; all else stays."""
    requires: dict
    changes: dict = field(default_factory=dict)


ACTIONS = []


def action(name, *parameters, rule, code):
    def note(function):
        ACTIONS.append(Action(
            name, ' '.join(function.__doc__.split()), rule, code, list(parameters), function))
        return function
    return note


N, A, R, Q, F = [Const('at_' + sort.name().lower(), sort) for sort in SORTS]
S = Const('standing', Round)
comes = Const('comes', Bool)
counts = Const('counts', Bool)
exclusively = Const('exclusively', Bool)


def plus(relation, *place, where=True):
    """The relation, with one place added."""
    return lambda *x: Or(relation(*x), And(where, *[i == j for i, j in zip(x, place)]))


def without(relation, node):
    """The relation, with everything at the node removed."""
    return lambda x, y: And(relation(x, y), x != node)


def counts_for(round_, answered):
    """An answer to the one round counts for the other: the same, or one that asked earlier."""
    return Or(round_ == answered, no_later(round_, answered))


def rests_on(x):
    """The lease at the node is dated by the round R, and also rests on earlier requests."""
    return lambda y, z: Or(x.rests(y, z), And(y == N, counts_for(z, R), Not(x.over(z))))


def minus(relation, *place):
    """The relation, with one place removed."""
    return lambda *x: And(relation(*x), Not(And(*[i == j for i, j in zip(x, place)])))


def at(function, place, value):
    """The function, with another value at one place."""
    return lambda x: If(x == place, value, function(x))


def ends(x, is_over):
    """These rounds are over: nothing is kept of them."""
    return {
        'over': lambda y: Or(x.over(y), is_over(y)),
        'rests': lambda y, z: And(x.rests(y, z), Not(is_over(z))),
        'forgot': lambda y, z: And(x.forgot(y, z), Not(is_over(z))),
    }


def issues(x, acquisition, where=True):
    """The node issues the fence F to the acquisition."""
    return {'stored': plus(x.stored, acquisition, N, F, where=where),
            'counter': at(x.counter, N, F)}


def stands(x, acquisition):
    """A lease of the acquisition stands at the node: a writer's, or a reader's."""
    return {'holds': plus(x.holds, N, acquisition),
            'exclusive': plus(x.exclusive, N, acquisition, where=exclusively)}


def ended(x, acquisition):
    """The lease of the acquisition stands no longer."""
    return {'holds': minus(x.holds, N, acquisition),
            'exclusive': minus(x.exclusive, N, acquisition),
            'provisional': minus(x.provisional, N, acquisition),
            'rests': lambda y, z: And(x.rests(y, z), Not(And(y == N, own(z) == acquisition)))}


def may_ask(x, acquisition):
    """A writer asks for an exclusive lease; a reader does not. A writer that has become a reader
    may ask for either, because a request may be late."""
    return And(Implies(x.writes(acquisition), exclusively),
               Implies(exclusively, Not(reader(acquisition))))


# ---- clients

@action('begin', A, rule='Acquire, 1', code='Attempt::new')
def _(x):
    """A client begins to acquire, with a fresh token."""
    return Step(
        {'a fresh token': Not(x.begun(A))},
        {'begun': plus(x.begun, A),
         'before': lambda y, z: Or(x.before(y, z), And(z == A, x.won(y)))})


@action('time passes', R, rule='Why nobody else holds it', code='Terms::validity')
def _(x):
    """The validity of a round ends at the client, whether the client checks or not."""
    return Step({}, ends(x, lambda y: y == R))


@action('win', R, Q, F, rule='Acquire, 2 to 4', code='Attempt::decide')
def _(x):
    """A quorum has granted, and each of its nodes has stored the fence that the attempt is won
    with. The validity is that of the oldest request that a counted node has answered."""
    return Step(
        {'it is the attempt': And(asks(R), x.begun(own(R)), Not(x.done(own(R)))),
         'once': And(Not(x.won(own(R))), Not(x.confirmed(R))),
         'a quorum granted': ForAll([n], Implies(
             And(member(n, Q), Not(x.over(R))), x.vouches(n, R))),
         'a quorum stored just this fence': ForAll([n], Implies(
             member(n, Q), x.stored(own(R), n, F))),
         'the validity is not over': Or(Not(x.over(R)), blind(own(R)))},
        {'won': plus(x.won, own(R)), 'fence': at(x.fence, own(R), F),
         'storing': at(x.storing, own(R), Q), 'confirmed': plus(x.confirmed, R),
         'voters': at(x.voters, R, Q)})


@action('renew', R, S, Q, rule='Extend', code='Renewal::decide')
def _(x):
    """A quorum has confirmed a renewal while the holder was still valid by another round."""
    return Step(
        {'of a holder': And(x.won(own(R)), Not(x.done(own(R))), Not(asks(R)),
                            Not(x.confirmed(R))),
         'a quorum answered this very round': ForAll([n], Implies(
             And(member(n, Q), Not(x.over(R))), x.vouches(n, R))),
         'the holder is still valid': Or(blind(own(R)), And(
             own(S) == own(R), x.confirmed(S), Not(x.over(S))))},
        {'confirmed': plus(x.confirmed, R), 'voters': at(x.voters, R, Q)})


@action('finish', A, rule='Acquire, 5; Release', code='Renewal::release')
def _(x):
    """A client abandons its attempt or releases its lock: it relies on nothing from here on."""
    return Step({'it has begun': x.begun(A)},
                {**ends(x, lambda y: own(y) == A), 'done': plus(x.done, A)})


@action('downgrade', A, rule='Readers and writers', code='Renewal::downgrade')
def _(x):
    """A client that has won as a writer only reads from here on; it asks the nodes afterwards."""
    return Step({'a writer': And(x.won(A), Not(reader(A)))},
                {'downgraded': plus(x.downgraded, A)})


@action('write', A, rule='What is not promised, 1', code='Store::write')
def _(x):
    """The fenced store accepts a write: its fence is no smaller than any writer's that it has seen,
    and larger than any reader's."""
    return Step(
        {'of a writer, or one who was': And(x.won(A), Not(reader(A))),
         'no smaller fence': up_to(x.highest, x.fence(A)),
         'a larger fence than readers': below(x.highest_read, x.fence(A))},
        {'highest': lambda: x.fence(A), 'wrote': plus(x.wrote, A),
         'followed': lambda y, z: Or(x.followed(y, z), And(y == A, Or(x.wrote(z), x.read(z))))})


@action('read', A, rule='What is not promised, 1', code='Store::read')
def _(x):
    """The fenced store accepts a read: its fence is no smaller than any writer's that it has
    seen."""
    return Step(
        {'of a holder, or one who was': x.won(A),
         'no smaller fence': up_to(x.highest, x.fence(A))},
        {'highest_read': lambda: If(below(x.highest_read, x.fence(A)), x.fence(A), x.highest_read),
         'read': plus(x.read, A),
         'followed': lambda y, z: Or(x.followed(y, z), And(y == A, x.wrote(z)))})


# ---- nodes that serve

def grants(x):
    """A node gives its lock to the round R, with the fence F."""
    return Step(
        {'the lock is free': x.is_free(N, own(R), exclusively),
         'not in quarantine': Not(x.quarantined(N)),
         'above the counter, or at it for a reader': And(
             up_to(x.counter(N), F), Implies(exclusively, below(x.counter(N), F))),
         'on disk first': up_to(F, x.ceiling(N)),
         'it has begun': x.begun(own(R))},
        {**stands(x, own(R)), 'rests': rests_on(x),
         **issues(x, own(R), where=exclusively == Not(reader(own(R))))})


@action('grant', N, R, F, exclusively, rule='Fences; Acquire, 1', code='Promises::acquire')
def _(x):
    """A node grants a free lock to an attempt: now, late, or once more, to any of its requests. A
    lock that readers hold is free for a reader."""
    step = grants(x)
    return Step({**step.requires, 'it is the attempt': asks(R),
                 'as it was asked': exclusively == Not(reader(own(R)))}, step.changes)


@action('rejoin', N, R, F, exclusively, rule='Repair', code='Promises::rejoin')
def _(x):
    """A node that has lost the lease grants anew to the holder's own token, perhaps with a larger
    fence. The holder keeps its own fence. (For a former writer, the new fence is not stored.)"""
    step = grants(x)
    return Step({**step.requires, 'as it was asked': may_ask(x, own(R)),
                 'of a holder': And(x.won(own(R)), Not(asks(R)))}, step.changes)


@action('extend', N, R, rule='Extend; Quarantine', code='Promises::extend')
def _(x):
    """A node moves the end of the lease later, never earlier, even in quarantine: for a renewal, or
    for an acquire that is sent again. (A provisional lease is extended too, which changes nothing
    here: it does not count.)"""
    return Step(
        {'the token holds': x.holds(N, own(R)),
         'the lease counts': And(Not(x.provisional(N, own(R))), Not(x.promoted(N)))},
        {'rests': rests_on(x)})


@action('raise', N, A, F, rule='Acquire, 3; Why fences rise', code='Promises::raise')
def _(x):
    """A node raises the lease of the token, and its counter, to a larger fence than it has stored
    for any other. (After a crash the floor may be above that.) For a reader any fence is enough
    that is no smaller than its own."""
    return Step(
        {'the token holds': x.holds(N, A),
         'above what is stored for others': Or(
             ForAll([b, g], Implies(And(x.stored(b, N, g), b != A), below(g, F))),
             And(reader(A), Exists([g], And(x.stored(A, N, g), up_to(g, F))))),
         'on disk first': up_to(F, x.ceiling(N))},
        {'stored': plus(x.stored, A, N, F),
         'counter': lambda y: If(And(y == N, below(x.counter(y), F)), F, x.counter(y))})


@action('downgrade at a node', N, A, rule='Readers and writers', code='Promises::extend')
def _(x):
    """A node learns that the holder only reads from here on, and lets other readers in."""
    return Step({'its client reads already': x.downgraded(A)},
                {'exclusive': minus(x.exclusive, N, A)})


@action('persist', N, F, rule='The state file', code='Promises::persisted')
def _(x):
    """A node writes a fence ceiling to its disk: a higher one, or at a clean stop the highest fence
    that it used."""
    return Step({'it covers the counter': up_to(x.counter(N), F)},
                {'ceiling': at(x.ceiling, N, F)})


@action('skip', N, F, rule='What removes a key', code='Promises::raise_floor')
def _(x):
    """The floor of a node rises: some fences of the lock are skipped."""
    return Step({'upwards': up_to(x.counter(N), F), 'on disk first': up_to(F, x.ceiling(N))},
                {'counter': at(x.counter, N, F)})


@action('repair', N, R, exclusively, rule='Repair; Quarantine', code='Promises::rejoin')
def _(x):
    """A node in quarantine restores the lease of a holder that it has forgotten. That does not
    count until the quarantine is over, because the node may have vouched for another holder."""
    return Step(
        {'the lock is free': x.is_free(N, own(R), exclusively),
         'in quarantine': x.quarantined(N),
         'as it was asked': may_ask(x, own(R)),
         'of a holder': x.won(own(R))},
        {**stands(x, own(R)), 'provisional': plus(x.provisional, N, own(R))})


@action('arrive', N, A, exclusively, counts, rule='What a node does after a start; Quarantine',
        code='Lock::changed_name')
def _(x):
    """A lease comes to a node in quarantine: with the data set of an earlier moment, from another
    name, or from another node. It counts if the node has vouched for no other holder since, for
    example because it stood at the crash; otherwise it is provisional, like a repaired one. (A
    lease that had ended is over by its date; the client of a released lease is done.)"""
    return Step(
        {'the lock is free': x.is_free(N, A, exclusively),
         'in quarantine': x.quarantined(N),
         'as it was asked': may_ask(x, A),
         'it has begun': x.begun(A),
         'what counts has no vote beside it': Implies(counts, Or(
             x.done(A), x.promoted(N),
             ForAll([r], Implies(x.forgot(N, r), Not(x.conflict(own(r), A))))))},
        {**stands(x, A), 'provisional': plus(x.provisional, N, A, where=Not(counts))})


@action('repair by the counter', N, R, exclusively, rule='Repair', code='Promises::rejoin')
def _(x):
    """A node outside quarantine that has granted nothing later restores the lease, and that
    counts."""
    return Step(
        {'the lock is free': x.is_free(N, own(R), exclusively),
         'not in quarantine': Not(x.quarantined(N)),
         'as it was asked': may_ask(x, own(R)),
         'of a holder': x.won(own(R)),
         'nothing later was granted': up_to(x.counter(N), x.fence(own(R))),
         'on disk first': up_to(x.fence(own(R)), x.ceiling(N))},
        {**stands(x, own(R)), 'rests': plus(x.rests, N, R, where=Not(x.over(R))),
         'counter': at(x.counter, N, x.fence(own(R)))})


@action('lease ends', N, A, rule='Clocks; Why nobody else holds it', code='Lock::is_held')
def _(x):
    """The clock of a node passes the end of a lease: every validity that rested on it is over."""
    return Step({'no validity rests on it': ForAll([r], Not(And(x.rests(N, r), own(r) == A)))},
                ended(x, A))


@action('release', N, A, rule='Release', code='Promises::release')
def _(x):
    """A node ends the lease of a client that has sent its release."""
    return Step({'its client is done': x.done(A)}, ended(x, A))


# ---- nodes that crash

def begins_anew(x):
    """A node begins anew, and may have forgotten every vote that it gave."""
    return {'holds': without(x.holds, N), 'exclusive': without(x.exclusive, N),
            'provisional': without(x.provisional, N), 'rests': without(x.rests, N),
            'forgot': lambda y, z: Or(x.forgot(y, z), And(y == N, x.rests(y, z))),
            'quarantined': plus(x.quarantined, N),
            'counter': at(x.counter, N, F),
            'ceiling': lambda y: If(And(y == N, below(x.ceiling(y), F)), F, x.ceiling(y))}


@action('crash', N, F, rule='What a node does after a start', code='recovery::recover')
def _(x):
    """A node crashes and forgets everything. (Leases that come back with its data arrive
    afterwards.) Its fences continue above the fence ceiling, and it grants nothing until all that
    it may have forgotten is over."""
    return Step({'fences go on above the ceiling': up_to(x.ceiling(N), F)}, begins_anew(x))


@action('promote', N, F, rule='What a node does after a start', code='recovery::promote')
def _(x):
    """A replica replaces its master. (The leases in its data set arrive afterwards.) Its fences
    jump above all that its master issues, and none of its answers counts while it waits."""
    return Step({'its fences jump': up_to(x.counter(N), F)},
                {**begins_anew(x), 'promoted': plus(x.promoted, N), 'ceiling': at(x.ceiling, N, F)})


@action('the old master serves', N, R, F, comes, rule='What is not promised, 4',
        code='Promises::acquire')
def _(x):
    """While a promoted node waits, its old master still vouches for one writer, or for readers,
    with fences below the jump."""
    return Step(
        {'its replica waits': x.promoted(N),
         'it has begun': x.begun(own(R)),
         'it vouches for nobody else': ForAll([s], Implies(
             x.forgot(N, s), Not(x.conflict(own(s), own(R))))),
         'above its counter': ForAll([a, g], Implies(
             And(comes, x.stored(a, N, g)), later(own(R), g, F))),
         'below the jump': Implies(comes, up_to(F, x.counter(N)))},
        {'forgot': plus(x.forgot, N, R, where=Not(x.over(R))),
         'stored': plus(x.stored, own(R), N, F, where=comes)})


@action('quarantine ends', N, rule='Quarantine', code='Promises::quarantine')
def _(x):
    """A node grants again: every validity that it may have forgotten is over. Provisional
    leases count from here on."""
    return Step({'all that was forgotten is over': ForAll([r], Not(x.forgot(N, r)))},
                {'quarantined': lambda y: And(x.quarantined(y), y != N),
                 'promoted': lambda y: And(x.promoted(y), y != N),
                 'provisional': without(x.provisional, N)})
