'use strict'

// The locker, which acquires locks for a program. Described in index.d.ts.

const { types } = require('node:util')
const { isMainThread } = require('node:worker_threads')
const { LockError, OptionError, build } = require('./errors.js')
const { Guard, Guards, OURS, endAll, firstLost } = require('./guard.js')
const { binary, native } = require('./native.js')
const { ASKED, MANY, SETTINGS, TRIED, check, detached, flat } = require('./options.js')
const { list, named, shown, urls } = require('./options.js')
const { port, run } = require('./port.js')

/**
 * @typedef {import('..').AcquireOptions} AcquireOptions
 * @typedef {import('..').LockerOptions} LockerOptions
 * @typedef {import('..').ManyOptions} ManyOptions
 * @typedef {import('..').Name} Name
 * @typedef {import('./native.js').Done} Done
 * @typedef {InstanceType<typeof Guard>} Held
 * @typedef {InstanceType<typeof Guards>} HeldTogether
 */

// As in guard.js; the compiler wants constants of this file.
/** @type {typeof Symbol.asyncDispose} */
const asyncDispose = Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')
/** @type {typeof Symbol.dispose} */
const dispose = Symbol.dispose ?? Symbol.for('Symbol.dispose')

class Locker {
  /** @type {import('./native.js').Core} */
  #core

  /**
   * @param {string | Iterable<string>} nodes
   * @param {LockerOptions} [options]
   */
  constructor(nodes, options = {}) {
    const made = native.open({ ...check(options, SETTINGS), nodes: urls(nodes) })
    if ('kind' in made) throw build(made, Locker)
    this.#core = made
  }

  /**
   * What `this` is of, unless the method was taken off its locker.
   *
   * @param {Locker} locker
   * @param {string | symbol} method
   */
  static #of(locker, method) {
    if (Locker.#is(locker)) return locker
    throw detached(Locker.prototype, method, 'locker')
  }

  /** @param {unknown} value */
  static #is(value) {
    return typeof value === 'object' && value !== null && #core in value
  }

  /**
   * @param {Name} name
   * @param {AcquireOptions} [options]
   */
  async acquire(name, options = {}) {
    const core = Locker.#of(this, 'acquire').#core
    const { wait, ttl, label, renew, maxHold, shared, signal } = check(options, ASKED)
    const bytes = named(name)
    const done = await run(
      (port) => core.acquire(port, bytes, wait, ttl, label, renew, maxHold, shared),
      signal,
    )
    return only(done)
  }

  /**
   * @param {Name} name
   * @param {Omit<AcquireOptions, 'wait'>} [options]
   */
  async tryAcquire(name, options = {}) {
    const locker = Locker.#of(this, 'tryAcquire')
    check(options, TRIED)
    return await locker.acquire(name, { ...flat(options, TRIED), wait: 0 })
  }

  /**
   * @param {Iterable<Name>} names
   * @param {ManyOptions} [options]
   * @returns {Promise<HeldTogether>}
   */
  async acquireMany(names, options = {}) {
    const core = Locker.#of(this, 'acquireMany').#core
    const { shared = [], wait, ttl, label, renew, maxHold, signal } = check(options, MANY)
    const [asked, read] = [list(names, 'the names are'), list(shared, 'shared is')]
    const done = await run(
      (port) => core.acquireMany(port, asked, read, wait, ttl, label, renew, maxHold),
      signal,
    )
    return new Guards(done.leases ?? [], OURS)
  }

  /**
   * @template T
   * @param {Name} name
   * @param {AcquireOptions | ((guard: Held, lost: AbortSignal) => T | PromiseLike<T>)} first
   * @param {(guard: Held, lost: AbortSignal) => T | PromiseLike<T>} [second]
   * @returns {Promise<T>}
   */
  async using(name, first, second) {
    const locker = Locker.#of(this, 'using')
    const [options, work] = asked(first, second)
    const guard = await locker.acquire(name, options)
    return await hold([guard], guard.lost, (lost) => work(guard, lost))
  }

  /**
   * @template T
   * @param {Iterable<Name>} names
   * @param {ManyOptions | ((guards: HeldTogether, lost: AbortSignal) => T | PromiseLike<T>)} first
   * @param {(guards: HeldTogether, lost: AbortSignal) => T | PromiseLike<T>} [second]
   * @returns {Promise<T>}
   */
  async usingMany(names, first, second) {
    const locker = Locker.#of(this, 'usingMany')
    const [options, work] = asked(first, second)
    const held = await locker.acquireMany(names, options)
    return await hold(held, firstLost(held), (lost) => work(held, lost))
  }

  /** @param {Name} name */
  async info(name) {
    const core = Locker.#of(this, 'info').#core
    const bytes = named(name)
    return (await run((port) => core.info(port, bytes))).states ?? []
  }

  async settle() {
    const core = Locker.#of(this, 'settle').#core
    return (await run((port) => core.settle(port))).votes ?? []
  }

  close() {
    Locker.#of(this, 'close').#core.close()
  }

  [dispose]() {
    Locker.#of(this, dispose).close()
  }

  async [asyncDispose]() {
    Locker.#of(this, asyncDispose).close()
  }

  [Symbol.for('nodejs.util.inspect.custom')]() {
    // What only inherits from one is shown, too.
    return Locker.#is(this) ? `Locker { ${this.#core.shown()} }` : 'Locker {}'
  }
}

/**
 * The options, which may be left out, and the work.
 *
 * @template {Function} W
 * @param {object | W} first
 * @param {W} [second]
 * @returns {[object, W]}
 */
function asked(first, second) {
  const isWork = second === undefined && (typeof first !== 'object' || first === null)
  const [options, work] = isWork ? [{}, first] : [first, second]
  if (typeof work !== 'function') {
    throw new OptionError(`the work is ${shown(work)}: give a function`)
  }
  if (types.isGeneratorFunction(work)) {
    throw new OptionError('the work is a generator, which runs after it has returned: ' +
      'acquire the lock in its body, with await using')
  }
  return [options, /** @type {W} */ (work)]
}

/**
 * Releases these locks when the work is done. It is not begun if one of them is lost by then, as
 * after a pause of the process.
 *
 * @template T
 * @param {Held[]} held
 * @param {AbortSignal} signal
 * @param {(lost: AbortSignal) => T | PromiseLike<T>} work
 * @returns {Promise<T>}
 */
async function hold(held, signal, work) {
  let result
  try {
    for (const guard of held) guard.check()
    result = await work(signal)
  } catch (error) {
    const lost = await endAll(held)
    // An error of the work itself is not replaced, but having been stopped is no such error.
    if (lost === null || !isStop(error, signal)) throw error
    // It may be about another signal: nothing says which one.
    if (error !== signal.reason && lost.cause === undefined) lost.cause = error
    throw lost
  }
  const lost = await endAll(held)
  if (lost !== null) throw lost
  return result
}

/** @param {Done} done */
function only({ leases: [lease] = [] }) {
  if (lease === undefined) throw new LockError('an acquisition came to nothing')
  return new Guard(lease, OURS)
}

/**
 * Whether the work ended because the signal was aborted: with its reason, or with an `AbortError`
 * that names this cause, or none. Whatever has another name, and may have come of it, is an error
 * of the work, which may have failed to clean up.
 *
 * @param {unknown} error
 * @param {AbortSignal} signal
 */
function isStop(error, signal) {
  if (!signal.aborted || typeof error !== 'object' || error === null) return false
  if (error === signal.reason) return true
  // Not `instanceof`: it may be an error of another realm, as in the sandboxes of test runners.
  const { name, cause } = /** @type {{ name?: unknown, cause?: unknown }} */ (error)
  return name === 'AbortError' && (cause === undefined || cause === signal.reason)
}

// When the program ends, sends what was started in its last turn, and releases what is held. A node
// that hangs delays that by its timeout. When a worker thread ends, its guards are collected.
// The package may be loaded again, as between tests: one listener is enough for one native part.
const ending = Symbol.for(`lockmod at exit: ${binary}`)
/** @type {Set<WeakRef<typeof port>>} Those of all that were loaded. */
const ports = /** @type {any} */ (process)[ending] ?? new Set()
if (isMainThread) {
  if (!(ending in process)) {
    Object.defineProperty(process, ending, { value: ports })
    process.on('exit', () => {
      for (const port of ports) port.deref()?.flush()
      native.finish()
    })
  }
  ports.add(new WeakRef(port))
}

module.exports = { Locker }
