"""Things that can happen, each a trace over three nodes, and what prevents all others."""

from finite import Finite

# Every trace, in the order of this file.
ALL = []

# B+ asks for the lock, like B0.
ROUNDS = ['A0', 'A1', 'A2', 'B0', 'B1', 'B+']
# The mode of a request.
WRITER, READER = True, False
ZERO_ONE, ZERO_TWO, ONE_TWO = frozenset('01'), frozenset('02'), frozenset('12')


def world(blind=(), readers=()):
    """Three nodes, of which the last is one fence ahead; acquisitions A and B; A0 is A's acquire,
    A1 and A2 are its renewals."""
    sets = {'Node': list('012'), 'Acquisition': list('AB'), 'Round': ROUNDS,
            'Quorum': [ZERO_ONE, ZERO_TWO, ONE_TWO], 'Fence': list(range(10))}
    rigid = {'own': lambda r: r[0], 'asks': lambda r: r[1] in '0+',
             'no_later': lambda r, s: r[0] == s[0] and r[1] + s[1] in ['00', '0+', '++'],
             'blind': lambda a: a in blind,
             'reader': lambda a: a in readers,
             'member': lambda n, q: n in q, 'below': lambda f, g: f < g}
    ceilings = {(node,): 5 for node in '012'}
    return Finite.start(sets, rigid, counter={('2',): 1}, ceiling=ceilings)


def won(blind=(), readers=()):
    """A is won with fence 1, by nodes 0 and 1."""
    return world(blind, readers).run(
        ('begin', 'A'), ('grant', '0', 'A0', 1, WRITER), ('grant', '1', 'A0', 1, WRITER),
        ('win', 'A0', ZERO_ONE, 1))


@ALL.append
def a_win_by_a_raise():
    """Node 2 is ahead, and node 1 is raised to what it granted."""
    state = world().run(('begin', 'A'), ('grant', '1', 'A0', 1, WRITER), ('grant', '2', 'A0', 2, WRITER))
    assert state.missing('win', 'A0', ONE_TWO, 2) == ['a quorum stored just this fence']
    state.run(('raise', '1', 'A', 2), ('win', 'A0', ONE_TWO, 2))


@ALL.append
def a_late_grant():
    """A request arrives after its attempt was abandoned, and blocks the node until its lease
    ends."""
    state = world().run(('begin', 'A'), ('finish', 'A'), ('grant', '0', 'A0', 1, WRITER), ('begin', 'B'))
    assert state.missing('grant', '0', 'B0', 2, WRITER) == ['the lock is free']
    state.run(('lease ends', '0', 'A'), ('grant', '0', 'B0', 2, WRITER))


@ALL.append
def a_repair():
    """A node that forgot keeps the repaired lease, and counts when its quarantine is over."""
    state = won().run(('crash', '1', 5), ('repair', '1', 'A1', WRITER), ('extend', '0', 'A1'))
    assert state.missing('extend', '1', 'A1') == ['the lease counts']
    assert state.missing('renew', 'A1', 'A0', ZERO_ONE) == ['a quorum answered this very round']
    state.run(('rejoin', '2', 'A1', 2, WRITER), ('renew', 'A1', 'A0', ZERO_TWO), ('time passes', 'A0'),
              ('quarantine ends', '1'), ('extend', '1', 'A2'), ('extend', '0', 'A2'),
              ('renew', 'A2', 'A1', ZERO_ONE))


@ALL.append
def two_holders_averted():
    """The vote of node 2 for B is from before its crash, the repair by A from after it."""
    state = won().run(('begin', 'B'), ('grant', '2', 'B0', 2, WRITER), ('crash', '2', 5),
                      ('repair', '2', 'A1', WRITER), ('extend', '0', 'A1'), ('extend', '0', 'A2'))
    assert state.missing('extend', '2', 'A2') == ['the lease counts']
    # So A is not renewed by 0 and 2: its lease at node 1 ends, and B is granted there.
    state = state.run(('time passes', 'A0'), ('lease ends', '1', 'A'), ('grant', '1', 'B0', 2, WRITER))
    assert 'a quorum answered this very round' in state.missing('renew', 'A2', 'A0', ZERO_TWO)
    state.run(('win', 'B0', ONE_TWO, 2))


@ALL.append
def an_arrival():
    """The same, but A's lease is copied to node 2 instead."""
    state = won().run(('begin', 'B'), ('grant', '2', 'B0', 2, WRITER), ('crash', '2', 5),
                      ('arrive', '2', 'A', WRITER, False), ('extend', '0', 'A1'))
    assert state.missing('extend', '2', 'A1') == ['the lease counts']
    assert state.missing('quarantine ends', '2') == ['all that was forgotten is over']
    state.run(('finish', 'B'), ('quarantine ends', '2'), ('extend', '2', 'A1'),
              ('renew', 'A1', 'A0', ZERO_TWO))


@ALL.append
def a_rejoining():
    """A node that is far ahead grants anew to the holder's token; the holder's fence stays."""
    state = won().run(('persist', '2', 9), ('skip', '2', 6))
    assert state.missing('rejoin', '2', 'A1', 6, WRITER) == ['above the counter, or at it for a reader']
    state = state.run(('rejoin', '2', 'A1', 7, WRITER), ('extend', '0', 'A1'),
                      ('renew', 'A1', 'A0', ZERO_TWO),
                      ('time passes', 'A0'), ('lease ends', '1', 'A'), ('begin', 'B'))
    assert state.tables['fence']['A',] == 1 and state.tables['stored']['A', '2', 7]
    assert state.missing('grant', '2', 'B0', 8, WRITER) == ['the lock is free']


@ALL.append
def a_superseded_renewal():
    """A client that ignores its clock comes back after its successor: the store refuses it."""
    state = won(blind='A').run(
        ('write', 'A'), ('time passes', 'A0'), ('lease ends', '0', 'A'), ('lease ends', '1', 'A'),
        ('begin', 'B'),
        ('grant', '0', 'B0', 2, WRITER), ('grant', '1', 'B0', 2, WRITER), ('win', 'B0', ZERO_ONE, 2),
        ('write', 'B'))
    assert state.tables['before']['A', 'B'] and state.tables['followed']['B', 'A']
    assert state.missing('extend', '0', 'A1') == ['the token holds']
    state = state.run(('finish', 'B'), ('release', '0', 'B'), ('release', '1', 'B'),
                      ('rejoin', '0', 'A1', 3, WRITER), ('rejoin', '1', 'A1', 3, WRITER),
                      ('renew', 'A1', 'A0', ZERO_ONE))
    assert state.missing('write', 'A') == ['no smaller fence']


@ALL.append
def a_repair_by_the_counter():
    """A node that has granted nothing later gives the lease to a holder that never had it there,
    with the holder's fence, and that lease counts."""
    state = world().run(('begin', 'A'), ('grant', '0', 'A0', 1, WRITER), ('grant', '2', 'A0', 2, WRITER),
                        ('raise', '0', 'A', 2), ('win', 'A0', ZERO_TWO, 2),
                        ('repair by the counter', '1', 'A1', WRITER), ('extend', '0', 'A1'),
                        ('renew', 'A1', 'A0', ZERO_ONE))
    assert state.tables['counter']['1',] == 2


@ALL.append
def a_mark_that_goes():
    """The mark of a provisional lease is gone when the lease ends, is released or is forgotten."""
    state = won().run(('crash', '1', 5), ('repair', '1', 'A1', WRITER))
    assert state.tables['provisional']['1', 'A']
    for step in [('lease ends', '1', 'A'), ('release', '1', 'A'), ('crash', '1', 5),
                 ('promote', '1', 9)]:
        after = state.run(('finish', 'A'), step)
        assert not after.tables['provisional']['1', 'A'], step


@ALL.append
def a_lease_that_comes_back_in_doubt():
    """A lease that may have been over comes back with the data: it stands, and does not count."""
    state = won().run(('crash', '1', 5), ('arrive', '1', 'A', WRITER, False))
    assert state.tables['counter']['1',] == 5
    assert state.missing('extend', '1', 'A1') == ['the lease counts']


@ALL.append
def a_lease_that_comes_back():
    """A lease that stood comes back with the data, and counts in the quarantine."""
    won().run(('crash', '1', 5), ('arrive', '1', 'A', WRITER, True), ('extend', '1', 'A1'),
              ('extend', '0', 'A1'), ('renew', 'A1', 'A0', ZERO_ONE))


@ALL.append
def a_promotion():
    """A promoted node has A's lease while its old master vouches for B."""
    state = won().run(('promote', '1', 9), ('arrive', '1', 'A', WRITER, True),
                      ('time passes', 'A0'), ('begin', 'B'),
                      ('the old master serves', '1', 'B0', 2, True), ('lease ends', '0', 'A'),
                      ('grant', '0', 'B0', 2, WRITER), ('win', 'B0', ZERO_ONE, 2))
    assert state.missing('extend', '1', 'A1') == ['the lease counts']
    assert state.missing('quarantine ends', '1') == ['all that was forgotten is over']


@ALL.append
def two_readers():
    """Two readers hold the lock with one fence, and a third client, a writer, must wait."""
    state = world(readers='AB').run(
        ('begin', 'A'), ('begin', 'B'), ('grant', '0', 'A0', 0, READER),
        ('grant', '1', 'A0', 0, READER), ('grant', '0', 'B0', 0, READER),
        ('grant', '1', 'B0', 0, READER), ('win', 'A0', ZERO_ONE, 0), ('win', 'B0', ZERO_ONE, 0))
    assert state.missing('grant', '0', 'A1', 1, WRITER) != []
    state.run(('read', 'A'), ('read', 'B'), ('extend', '0', 'A1'), ('extend', '1', 'A1'),
              ('renew', 'A1', 'A0', ZERO_ONE))


@ALL.append
def a_reader_raised_by_another():
    """B raises node 0 to the fence of node 2, and A still wins there with a smaller fence."""
    state = world(readers='AB').run(
        ('begin', 'A'), ('begin', 'B'), ('grant', '0', 'A0', 0, READER),
        ('grant', '0', 'B0', 0, READER), ('grant', '2', 'B0', 3, READER), ('raise', '0', 'B', 3),
        ('win', 'B0', ZERO_TWO, 3), ('grant', '1', 'A0', 1, READER), ('raise', '0', 'A', 1),
        ('win', 'A0', ZERO_ONE, 1))
    assert state.tables['counter']['0',] == 3


@ALL.append
def a_writer_keeps_readers_out():
    """A reader waits for the writer, and gets no smaller fence."""
    state = won(readers='B').run(('begin', 'B'))
    assert state.missing('grant', '0', 'B0', 1, READER) == ['the lock is free']
    state = state.run(('finish', 'A'), ('release', '0', 'A'), ('release', '1', 'A'))
    assert state.missing('grant', '0', 'B0', 0, READER) == [
        'above the counter, or at it for a reader']
    state.run(('grant', '0', 'B0', 1, READER), ('grant', '1', 'B0', 1, READER),
              ('win', 'B0', ZERO_ONE, 1))


@ALL.append
def a_writer_becomes_a_reader():
    """B reads together with A, a former writer; node 1, which A's message has not reached, lets no
    reader in."""
    state = won(readers='B').run(('begin', 'B'), ('write', 'A'))
    assert state.missing('downgrade at a node', '0', 'A') == ['its client reads already']
    state = state.run(('downgrade', 'A'), ('downgrade at a node', '0', 'A'),
                      ('grant', '0', 'B0', 1, READER))
    assert state.missing('grant', '1', 'B0', 1, READER) == ['the lock is free']
    state = state.run(('grant', '2', 'B0', 1, READER), ('win', 'B0', ZERO_TWO, 1),
                      ('read', 'A'), ('read', 'B'), ('extend', '0', 'A1'), ('extend', '1', 'A1'),
                      ('renew', 'A1', 'A0', ZERO_ONE))
    # The store refuses a write that A sent before and that arrives only now.
    assert state.missing('write', 'A') == ['a larger fence than readers']


@ALL.append
def a_late_reader():
    """The store refuses a reader whose validity is over, because a later writer has written."""
    state = world(readers='A').run(
        ('begin', 'A'), ('grant', '0', 'A0', 0, READER), ('grant', '1', 'A0', 0, READER),
        ('win', 'A0', ZERO_ONE, 0), ('read', 'A'), ('time passes', 'A0'), ('lease ends', '0', 'A'),
        ('lease ends', '1', 'A'), ('begin', 'B'), ('grant', '0', 'B0', 1, WRITER),
        ('grant', '1', 'B0', 1, WRITER), ('win', 'B0', ZERO_ONE, 1), ('write', 'B'))
    assert state.missing('read', 'A') == ['no smaller fence']


@ALL.append
def an_acquire_that_is_sent_again():
    """B has asked twice with one token, and node 0 has received only the first request: B's
    validity is that of the first, not of the newer."""
    state = won().run(('begin', 'B'), ('finish', 'A'), ('release', '0', 'A'), ('release', '1', 'A'),
                      ('grant', '0', 'B0', 2, WRITER), ('grant', '1', 'B+', 2, WRITER))
    assert state.missing('win', 'B+', ZERO_ONE, 2) == ['a quorum granted']
    state = state.run(('win', 'B0', ZERO_ONE, 2), ('time passes', 'B0'), ('lease ends', '0', 'B'))
    assert state.missing('lease ends', '1', 'B') == ['no validity rests on it']
