/// <reference types="node" />
/// <reference lib="esnext.disposable" />

/**
 * Distributed locks on Redis with fencing tokens, over a quorum of nodes.
 *
 * All lengths of time are in milliseconds.
 */

/** A lock's name: text, or bytes; 1 to 65536 bytes in UTF-8. */
export type Name = string | Uint8Array

/** One node's vote. */
export interface NodeVote {
  /** The node's address, without password. */
  readonly node: string
  /**
   * The master that was asked last, if the node is a Cluster or a group under Sentinel, and it is
   * known.
   */
  readonly master?: string
  /** In one word: `granted`, `held`, `timed_out`, `unreachable` and so on. */
  readonly vote: string
  /** For people to read. */
  readonly text: string
  /** The fence that it granted. */
  readonly fence?: number
  /** The label of the holder there. */
  readonly label?: string
  /** How long that lease lasts unless it is extended. */
  readonly left?: number
  /** How long that holder has had the lock. */
  readonly heldFor?: number
}

/** What one node reports about a lock. */
export interface NodeInfo {
  /** The node's address, without password. */
  readonly node: string
  /** `free`, `held`, or `reserved` for the first in line; empty if the node reports nothing. */
  readonly state: string
  /** The highest fence issued. */
  readonly fence: number
  /** The holder's label; of several readers, that of the one that has held it longest. */
  readonly label?: string
  /**
   * How long the lease, or the last of several readers' leases, lasts unless it is extended; 0 if
   * the lock is free.
   */
  readonly left?: number
  /** How long it has been held; 0 if the lock is free. */
  readonly heldFor?: number
  /** How many requests wait in line for it. */
  readonly waiters: number
  /** How many readers hold it; 0 if a writer or nobody does. */
  readonly readers: number
  /** The labels of the readers who have held it longest. */
  readonly readerLabels: ReadonlyArray<string>
  /** How many of those in line wait as readers. */
  readonly waitingReaders: number
  /** How long the first in line has been waiting at this node. */
  readonly firstWaiting?: number
  /** Why, if the node reports nothing. */
  readonly vote?: NodeVote
}

/** The options of an acquisition. The defaults, also of what is undefined, are the locker's. */
export interface AcquireOptions {
  /**
   * How long to wait in line while another holds the lock, or while too few nodes grant it, also
   * because they are down. 0 tries once, as `tryAcquire` does; `Infinity` waits without end. If
   * nodes are silent, the error may come later than that, by one `timeout` of the locker.
   */
  wait?: number | undefined
  /** The length of the lease. */
  ttl?: number | undefined
  /** A name for the caller, for people to read: up to 128 bytes, shown to waiters. */
  label?: string | undefined
  /** Whether the lease is renewed in the background. */
  renew?: boolean | undefined
  /**
   * The longest total time that the lease may be held; `Infinity` lifts the locker's limit. Others
   * get the lock when the last ttl has passed, or at the release.
   */
  maxHold?: number | undefined
  /**
   * Acquires the lock as a reader: with any number of readers, but no writer. Readers and writers
   * are served in the order in which they came.
   */
  shared?: boolean | undefined
  /** Ends the wait: the promise is rejected with the signal's reason, and nothing is left. */
  signal?: AbortSignal | undefined
}

/** The options of an acquisition of several locks: those of one, for each of them. */
export interface ManyOptions extends Omit<AcquireOptions, 'shared' | 'wait'> {
  /** How long to wait for all of them together; with 0 each is tried once. */
  wait?: number | undefined
  /** More locks, acquired as a reader unless they are in `names`. */
  shared?: Iterable<Name> | undefined
}

/** The settings of a locker. */
export interface LockerOptions {
  /**
   * The length of a lease, 30 s unless given. It is renewed at a third of it. A holder that crashes
   * blocks others for up to this long.
   */
  ttl?: number | undefined
  /**
   * How long `acquire` waits while another holds the lock, or too few nodes grant it, also because
   * they are down; 10 s unless given. For an error at once, use `tryAcquire` or `wait: 0`. If
   * nodes are silent, the error may come later than that, by one `timeout`.
   */
  wait?: number | undefined
  /** A name for the caller, for people to read: up to 128 bytes, shown to waiters. */
  label?: string | undefined
  /** Whether leases are renewed in the background: yes, unless given. */
  renew?: boolean | undefined
  /**
   * The longest total time that a lease may be held. Others get the lock when the last ttl has
   * passed, or at the release.
   */
  maxHold?: number | undefined
  /**
   * How long to wait for each node's answer: a twentieth of the ttl, at least 50 ms and at most 500
   * ms, unless given. A node that was silent for some seconds is not waited for until it answers
   * again; meanwhile its vote is `timed_out` at once.
   */
  timeout?: number | undefined
  /**
   * How long before its end a lease counts as lost: a tenth of the ttl, at most 1 s by default. At
   * most about a third of the ttl, so that as long is left for a renewal.
   */
  lostMargin?: number | undefined
  /**
   * The nodes' `lockmod.max-ttl`, if it is not a day. (In a Cluster, and with `lockmod.replicas`,
   * the default is a minute.)
   */
  maxTtl?: number | undefined
  /**
   * How much the validity is shortened for clocks that run at different rates, in milliseconds: a
   * hundredth of the ttl and 2 ms, unless given.
   */
  drift?: number | undefined
  /** Allows an even number of nodes, which survives no more failures than one node fewer. */
  allowEvenNodes?: boolean | undefined
  /** The file with the root certificates to trust, in PEM. */
  cacert?: string | undefined
  /** The file with the client's certificate, in PEM. */
  cert?: string | undefined
  /** The file with its key, in PEM. */
  key?: string | undefined
}

/**
 * Acquires locks over a quorum of nodes. A program needs only one: it keeps its connections to all
 * nodes until it is closed or garbage-collected, or the program ends.
 *
 * `tryAcquire` and `using` call `acquire`, and `usingMany` calls `acquireMany`, so a subclass
 * overrides these for them too. `acquireMany` does not call `acquire`.
 *
 * @example
 * const locker = new Locker(['redis://10.0.0.1', 'redis://10.0.0.2', 'redis://10.0.0.3'])
 * await locker.using('account-17', { wait: 2000 }, async (guard, lost) => {
 *   await write(guard.fence, { signal: lost })
 * })
 */
export class Locker {
  /**
   * Connects in the background, and waits for no node.
   *
   * @param nodes Redis URLs: `redis://`, `rediss://` (TLS) or `unix://`, with user, password and
   *   database (`unix:///run/redis.sock?user=me&pass=secret&db=1`);
   *   `redis+sentinel://host:port,host:port/group` for the master of a group under Sentinel, and
   *   `redis+cluster://host:port,host:port` for a Redis Cluster, each of which is one node. All
   *   users of a lock need the same list. A single text has them separated by commas, as in
   *   `LOCKMOD_NODES`; a comma within a password is `%2C` there.
   * @throws {OptionError} if a setting is wrong
   */
  constructor(nodes: string | Iterable<string>, options?: LockerOptions)

  /**
   * Acquires the lock, waiting in line while another holds it.
   *
   * Rejected with a `HeldError`, `NoQuorumError`, `RefusedError`, `TooLateError` or `OptionError`,
   * or with the reason of the signal.
   *
   * @example
   * await using guard = await locker.acquire('account-17')
   * await write(guard.fence, { signal: guard.lost })
   */
  acquire(name: Name, options?: AcquireOptions): Promise<Guard>

  /** Acquires the lock if nobody holds it, trying once. Rejected as `acquire` is. */
  tryAcquire(name: Name, options?: Omit<AcquireOptions, 'wait'>): Promise<Guard>

  /**
   * Acquires all of these locks or none. `wait` is for all of them together.
   *
   * They are acquired in the order of their names, whatever order they are given in, so that two
   * callers cannot wait for each other; a repeated name counts once. The guards come in the order
   * of the names. Rejected with the error of the first lock that was not acquired.
   *
   * @example
   * await using guards = await locker.acquireMany(['account-17', 'account-21'])
   * for (const guard of guards) guard.check()
   */
  acquireMany(names: Iterable<Name> & object, options?: ManyOptions): Promise<Guards>

  /**
   * Holds the lock while `work` runs, then releases it.
   *
   * `lost` is aborted when the lease is lost; then the promise is rejected with the `LostError`,
   * whether the signal stopped the work or the work ignored it. If the work itself throws, that
   * error is not replaced, unless it is an `AbortError` without another cause: that is the `cause`
   * of the `LostError` then. (`lost.reason` is the `LostError` itself.) A release that too few
   * nodes confirmed is no error here: the lease runs out. Neither `lost` nor the lock keeps the
   * process alive: work that waits for `lost` alone ends with the process, unless something else
   * keeps that alive.
   */
  using<T>(name: Name, work: (guard: Guard, lost: AbortSignal) => T | PromiseLike<T>): Promise<T>
  using<T>(
    name: Name,
    options: AcquireOptions,
    work: (guard: Guard, lost: AbortSignal) => T | PromiseLike<T>,
  ): Promise<T>

  /** The same with all of these locks: `lost` is aborted when the first of them is lost. */
  usingMany<T>(
    names: Iterable<Name> & object,
    work: (guards: Guards, lost: AbortSignal) => T | PromiseLike<T>,
  ): Promise<T>
  usingMany<T>(
    names: Iterable<Name> & object,
    options: ManyOptions,
    work: (guards: Guards, lost: AbortSignal) => T | PromiseLike<T>,
  ): Promise<T>

  /** Returns what each node reports about the lock, and changes nothing. */
  info(name: Name): Promise<NodeInfo[]>

  /**
   * Waits until every reachable node has carried out everything that was sent to it, and returns
   * each node's vote. A program does this automatically when it ends.
   */
  settle(): Promise<NodeVote[]>

  /**
   * Refuses every later call with a `RefusedError`. A program that makes only one locker needs no
   * `close()`. It may be called again, and waits for nothing.
   *
   * Locks that are held stay held and are renewed, and calls in progress go on. The connections end
   * when the last of these guards is released or garbage-collected, and the last call is over; at
   * once if there are none. What was sent before is carried out.
   *
   * @example
   * using locker = new Locker(nodes) // or `await using`, or `locker.close()` in the end
   */
  close(): void

  [Symbol.dispose](): void
  [Symbol.asyncDispose](): Promise<void>
}

/**
 * A lock that is held: to be released, or used with `await using`.
 *
 * `await using` releases at the end of the block, and throws a `LostError` if the lease ended while
 * the block ran, unless the guard has thrown that before: from `check()`, `extend()`, `downgrade()`
 * or `release()`. (If the block throws another error after the loss, JavaScript wraps both in a
 * `SuppressedError`, also if the signal `lost` stopped it; `Locker.using` throws the one that
 * matters.) A release that too few nodes confirmed is no error at the end of a block: the lease
 * runs out. A guard that is forgotten is renewed until it is garbage-collected, which may be never,
 * and then releases in the background. One whose `lost` was read is not collected while it holds
 * the lock.
 *
 * It can be neither copied nor sent to a worker thread: it is one lock, held by this thread. What
 * `structuredClone` and `postMessage` make of it is an empty object, without an error.
 */
export class Guard {
  private constructor()

  /**
   * The fencing token: larger than that of every earlier grant of this lock. Pass it to whatever
   * the lock protects, so that it can refuse a late holder. A reader's is at least that of every
   * earlier writer, and smaller than that of every later one.
   */
  readonly fence: number
  /** The lock's name; of a name that is not UTF-8, the wrong bytes are replaced. */
  readonly name: string
  /**
   * Whether it is a writer's, so that nobody else holds the lock; false after a release or a loss.
   */
  readonly exclusive: boolean
  /**
   * How many milliseconds the holder may still rely on the lease; 0 when that is over. A lease that
   * was not extended in time is lost `lostMargin` before: so much is left then, to stop in.
   */
  readonly validity: number
  /** Whether the lease has ended, also by a release. Once true, it stays true. */
  readonly isLost: boolean
  /**
   * Aborted when the lease is lost, with the `LostError` as its reason.
   *
   * That is `lostMargin` before the validity ends, whether any node answers or not; or, if the lock
   * was removed by force, when the next renewal or extension finds that. A blocked event loop sees
   * it as soon as it is free. A release does not abort it. Once the program has read this, the lock
   * is held until it is released or lost, or the program ends. It does not keep the process alive.
   */
  readonly lost: AbortSignal

  /** @throws {LostError} if the lease has ended: call it before every step that matters */
  check(): void

  /**
   * Extends the lease to the ttl from now: to `ttl` milliseconds, if it is given.
   *
   * Background renewal does this by itself, so call it only if that is turned off, or for another
   * ttl. Once a quorum has confirmed it, each later renewal asks for that ttl too. A shorter ttl
   * does not shorten the lease now: renewals ask for it from now on, so the lease is shorter after
   * its present end.
   *
   * Rejected with a `NoQuorumError` if too few nodes answered: the lease is as it was, and may be
   * extended again. Rejected with a `RefusedError` if too many refuse, for example a ttl above
   * their `lockmod.max-ttl`: the lease is as it was. Rejected with a `LostError` if the lease has
   * ended.
   */
  extend(ttl?: number): Promise<void>

  /**
   * Turns a writer into a reader in one step, and lets other readers in. The fence stays.
   *
   * There is no upgrade: two readers would wait for each other. A reader stays one. Rejected as
   * `extend` is. The guard is a reader's in any case; nodes that did not receive the downgrade let
   * no reader in before the next renewal, or an `extend`.
   *
   * @example
   * await using guard = await locker.acquire('plan')
   * await write(guard.fence)
   * await guard.downgrade() // others may read, and nobody writes
   * await check(guard.fence)
   */
  downgrade(): Promise<void>

  /**
   * Releases the lock, and waits until a quorum of nodes has confirmed.
   *
   * Rejected with a `LostError` if the lease had ended before, by the clock or at the nodes, so
   * that another may have held the lock since; what `lost` and `check()` said stays the reason.
   * Rejected with a `NoQuorumError` if too few nodes answered, and with a `RefusedError` if too
   * many refuse: on those the lease runs out. In each case there is nothing left to do. A second
   * release does nothing.
   */
  release(): Promise<void>

  /**
   * Keeps the lock when the guard is forgotten or the process ends: nothing releases it then, and
   * the lease ends with its ttl, because nothing renews it either. Until then it is renewed as
   * before. Throws `LostError` if the lease has ended.
   */
  keep(): void

  [Symbol.asyncDispose](): Promise<void>
}

/**
 * The guards of several locks, in the order of their names: a frozen array, to be used with
 * `await using`, which releases all of them. The end of the block throws the `LostError` of the
 * first that was lost, but not of one that had been lost when a guard of them threw its loss.
 */
export interface Guards extends ReadonlyArray<Guard> {}
export class Guards {
  private constructor()
  [Symbol.asyncDispose](): Promise<void>
}

/**
 * The base class of all errors of this package. `message` is one line for an operator: who holds
 * the lock and for how long, and which nodes have which problem.
 */
export class LockError extends Error {
  /** Each node's vote, in the order of the nodes; empty if none was asked. */
  readonly nodes: ReadonlyArray<NodeVote>
  /**
   * For an acquisition, how long it tried. The nodes are asked afterwards who holds the lock, for
   * at most `timeout`.
   */
  readonly waited: number | undefined
  /** For an acquisition, how many attempts it made. */
  readonly attempts: number | undefined
  /**
   * Whether the same call may succeed later without a manual repair. Not that of a release: what
   * too few nodes have confirmed is released anyway, or runs out.
   */
  readonly isRetryable: boolean
}

/**
 * Another holds the lock, or several compete for it, or the nodes keep it for the first in line;
 * and the wait is over.
 */
export class HeldError extends LockError {
  /**
   * The label of the holder, as most nodes report it; undefined if it has none, or nobody holds it.
   */
  readonly label: string | undefined
  /** How long its lease lasts unless it is extended. */
  readonly left: number | undefined
  /** How long it has had the lock. */
  readonly heldFor: number | undefined
}

/**
 * Too few nodes answered: `nodes` has each node's vote.
 *
 * A failed extension takes nothing away: the lease stays valid until its end. After a failed
 * release there is nothing left to do: the lease is over for its holder.
 */
export class NoQuorumError extends LockError {}

/**
 * A retry does not help: too many nodes have no module, give no permission, have something else
 * under the name, or refuse a ttl above their limit; or the locker is closed, or the program ends.
 * As with `NoQuorumError`, a failed extension takes nothing away.
 */
export class RefusedError extends LockError {}

/** The nodes answered so slowly that the validity was used up. A longer ttl helps. */
export class TooLateError extends LockError {}

/**
 * The lease has ended: stop what it protected. If it expired, the message names the ttl that it
 * had. If that was because too few nodes confirmed an extension, `nodes` has their votes on the
 * last one; if it was removed, the votes that showed this.
 */
export class LostError extends LockError {
  /** `expired`, `removed` by force, `max_hold` reached, or `released`. */
  readonly reason: string
}

/** A setting or an argument is wrong; nothing was sent. The text says what to do. */
export class OptionError extends LockError {}
