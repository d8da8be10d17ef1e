/// <reference types="node" />

/**
 * The interface of node-redlock 5, on lockmod: change one line to switch. (That is a beta,
 * `npm install redlock@5.0.0-beta.2`; without a version npm installs 4.2.0.)
 *
 *     import Redlock from 'lockmod/redlock'        // was: from 'redlock'
 *
 * It takes clients of ioredis or node-redis, only to learn the addresses of their servers, which
 * need the module; a client of ioredis with `sentinels` stands for the master of its group. A
 * client whose address or login is not understood is refused, and so is one of a mock, and one with
 * settings of TLS that would not be used, such as `rejectUnauthorized: false`, or with certificates
 * (`ca`, `cert`, `key`), which a `Locker` takes from files. As in node-redlock, a lock lasts for
 * its duration unless it is extended or released, and `using` extends it while the routine runs.
 *
 * What differs, by design:
 *
 * - The key is a `fencelock`, not a string, and the token (`value`) is secret. `fence` is new.
 * - An extension never makes a lock shorter.
 * - There are no scripts to replace, since the module decides.
 * - The resources must be an array of strings that are not empty. node-redlock takes a text for its
 *   letters, and an empty array for locked. A resource that is repeated counts once; node-redlock
 *   finds it held.
 * - Waiters stand in line for `retryCount * retryDelay` instead of polling, and `retryJitter` is
 *   not used. So `attempts` has one entry for all retries, and `votesFor` in it is empty.
 * - `using` extends at a third of the duration, whatever `automaticExtensionThreshold` says, in a
 *   thread that a blocked event loop cannot stop. If a subclass overrides `acquire` and `release`,
 *   `using` calls these, as in node-redlock; such an `acquire` has to pass its settings on. It does
 *   not call `extend`.
 * - `release` and `extend` take a `Lock` itself, not a copy such as `{ ...lock }`: that is an
 *   `ExecutionError`. What a lock needs to be released is no field of it.
 * - A `release` that too few nodes confirmed rejects, but the package goes on with it until the
 *   lock is over. So a second `release` of that lock does nothing, and resolves.
 * - `quit()` ends an ioredis client that is still connecting by its own `quit`, which may take two
 *   seconds.
 * - `error` is emitted only for an operation that failed, for each node that did not grant or
 *   confirm. An acquisition that a quorum grants is over before the others have answered, so a node
 *   that fails meanwhile emits nothing: `lockmod status` and `lockmod exporter` watch the nodes.
 * - An even number of clients is refused: it survives no more failures than one client fewer. Give
 *   a `Locker` with `allowEvenNodes: true`.
 * - After `quit()` nothing can be acquired. Objects for the same servers share their connections,
 *   which end with the last of them.
 * - A duration is 30 ms to a day.
 * - A node has half a second to answer; if the duration is below 2 s, the longest of 200, 50 and
 *   10 ms that fits into it four times. A slower node counts as one that does not answer: then
 *   `release`, and so `using`, may fail where node-redlock goes on waiting. If your network is
 *   that slow, give a `Locker` with a longer `timeout` in place of the clients.
 * - The database is that of a client's options, whatever `select` has changed since.
 * - A wrong client or setting is an `OptionError`, also one that node-redlock ignores: a setting
 *   that it does not know, or a negative one (`retryCount` may be -1).
 */

import { EventEmitter } from 'node:events'
import { Locker } from './index.js'

/** A client of ioredis or node-redis for one server, or its URL. */
export type Client = object | string

/** One client's vote, as node-redlock names it. No member of this package has it. */
export type ClientExecutionResult =
  | { client: Client; vote: 'for'; value: number }
  | { client: Client; vote: 'against'; error: Error }

export interface ExecutionStats {
  readonly membershipSize: number
  readonly quorumSize: number
  /** Always empty. */
  readonly votesFor: Set<Client>
  /**
   * Which clients did not grant, and why: known only for a failed operation. For one that was given
   * as a URL, the node's address without password.
   */
  readonly votesAgainst: Map<Client, Error>
}

export type ExecutionResult = { attempts: ReadonlyArray<Promise<ExecutionStats>> }

/** Each may be given for all operations, or for one. */
export interface Settings {
  /** What is subtracted from a lock's duration for clocks: 1 % and 2 ms at least. */
  readonly driftFactor: number
  /** With `retryDelay`, how long to wait: -1 waits without end, 0 tries once. */
  readonly retryCount: number
  readonly retryDelay: number
  /** Not used: waiters are called. */
  readonly retryJitter: number
  /** `duration` must be at least 100 ms longer; otherwise not used. */
  readonly automaticExtensionThreshold: number
}

/** Another holds it on this node: emitted as `error`. */
export class ResourceLockedError extends Error {}

/** An operation failed; `cause` is the error of lockmod. */
export class ExecutionError extends Error {
  constructor(
    message: string,
    attempts: ReadonlyArray<Promise<ExecutionStats>>,
    options?: { cause?: unknown },
  )
  /** One entry for all retries; none if nothing was asked of the nodes. */
  readonly attempts: ReadonlyArray<Promise<ExecutionStats>>
}

export class Lock {
  private constructor()
  readonly redlock: Redlock
  readonly resources: string[]
  /** Throws: the token is secret. */
  readonly value: string
  /** The fencing token, for whatever the lock protects; of several resources the largest. */
  readonly fence: number
  readonly attempts: ReadonlyArray<Promise<ExecutionStats>>
  /** Until when it may be relied on, in milliseconds since 1970; 0 once released or replaced. */
  expiration: number
  release(): Promise<ExecutionResult>
  extend(duration: number): Promise<Lock>
}

export type RedlockAbortSignal = AbortSignal & { error?: Error }

export class Redlock extends EventEmitter {
  readonly clients: Set<Client>
  readonly settings: Settings

  constructor(clients: Iterable<Client> | Locker, settings?: Partial<Settings>)

  /**
   * Calls `quit()` of the clients that are connected. After it, nothing can be acquired, and the
   * connections that this object has made itself end with the last lock.
   */
  quit(): Promise<void>

  /**
   * Acquires all of these or none, for `duration` milliseconds. Rejected with an `ExecutionError`,
   * also if the resources are no array, or it is empty: then there would be no lock.
   */
  acquire(resources: string[], duration: number, settings?: Partial<Settings>): Promise<Lock>

  release(lock: Lock, settings?: Partial<Settings>): Promise<ExecutionResult>

  /**
   * Makes the lock last for `duration` milliseconds from now, but never shorter. Returns the object
   * that stands for it from now on. As in node-redlock, the existing object has expired, so it
   * cannot be extended again; it can still be released, and that releases the lock.
   */
  extend(existing: Lock, duration: number, settings?: Partial<Settings>): Promise<Lock>

  /**
   * Holds the resources while the routine runs; the signal is aborted when they are lost. Keeps the
   * process alive meanwhile.
   */
  using<T>(
    resources: string[],
    duration: number,
    settings: Partial<Settings>,
    routine?: (signal: RedlockAbortSignal) => Promise<T>,
  ): Promise<T>
  using<T>(
    resources: string[],
    duration: number,
    routine: (signal: RedlockAbortSignal) => Promise<T>,
  ): Promise<T>
}

export default Redlock
