'use strict'

// Locks that are held. Described in index.d.ts.

const { LostError, NoQuorumError, OptionError, RefusedError, build } = require('./errors.js')
const { detached, length, shown } = require('./options.js')
const { run, watch } = require('./port.js')

/**
 * @typedef {import('./native.js').Failed} Failed
 * @typedef {import('./native.js').Lease} Lease
 */

/**
 * Node.js 18.0 to 18.17 have no such symbol; compilers look it up by this name if it is missing.
 *
 * @type {typeof Symbol.asyncDispose}
 */
const asyncDispose = Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')
/** @type {typeof Symbol.dispose} */
const dispose = Symbol.dispose ?? Symbol.for('Symbol.dispose')

/** @type {WeakMap<AbortSignal, Guard>} A signal keeps its guard, and so the lock. */
const guards = new WeakMap()

/** @type {WeakSet<Guard>} Those that have thrown their loss: their block's end does not again. */
const told = new WeakSet()

/** @type {WeakMap<Guard, WeakRef<Guards>>} Those that a guard was acquired with. */
const together = new WeakMap()

/**
 * Notes that a guard throws its loss. Several are often lost at once, so what is lost by then is
 * not thrown after it; what is lost later is.
 *
 * @param {Guard} guard
 */
function tell(guard) {
  told.add(guard)
  for (const other of together.get(guard)?.deref() ?? []) if (other.isLost) told.add(other)
}

/**
 * Only this package gives it to the constructors. They do not ask for the class of the lease: after
 * the package was loaded again in one thread, its native part makes all leases of the newest class,
 * also those of older lockers.
 */
const OURS = Symbol('ours')

class Guard {
  /** @type {Lease} */
  #lease
  /** @type {AbortController | undefined} */
  #controller

  /**
   * @param {Lease} lease
   * @param {symbol} key
   */
  constructor(lease, key) {
    if (key !== OURS) {
      throw new OptionError('a Guard is not made with new: acquire of a Locker returns one')
    }
    this.#lease = lease
  }

  /**
   * The lease of `this`, unless the member was taken off its guard.
   *
   * @param {Guard} guard
   * @param {string | symbol} member
   */
  static #of(guard, member) {
    if (Guard.#is(guard)) return guard.#lease
    throw detached(Guard.prototype, member, 'guard')
  }

  /** @param {unknown} value */
  static #is(value) {
    return typeof value === 'object' && value !== null && #lease in value
  }

  get fence() {
    return Guard.#of(this, 'fence').fence
  }

  get name() {
    return Guard.#of(this, 'name').name
  }

  get validity() {
    return Guard.#of(this, 'validity').validity()
  }

  get exclusive() {
    return Guard.#of(this, 'exclusive').isExclusive()
  }

  get isLost() {
    return Guard.#of(this, 'isLost').reason() !== null
  }

  get lost() {
    const lease = Guard.#of(this, 'lost')
    if (this.#controller === undefined) {
      const controller = new AbortController()
      this.#controller = controller
      guards.set(controller.signal, this)
      const tell = (/** @type {Failed} */ loss) => {
        if (loss.reason !== 'released') controller.abort(build(loss))
      }
      const loss = lease.loss()
      if (loss !== null) tell(loss)
      // It waits in a global map, so it keeps the controller, whose signal keeps the guard: who
      // listens is told, although often nothing else refers to a function that awaits the signal.
      else watch((port) => lease.lost(port), tell)
    }
    return this.#controller.signal
  }

  check() {
    const loss = Guard.#of(this, 'check').loss()
    if (loss === null) return
    tell(this)
    throw build(loss, this.check)
  }

  /** @param {number} [ttl] */
  async extend(ttl) {
    const lease = Guard.#of(this, 'extend')
    const checked = length(ttl)
    await this.#run((port) => lease.extend(port, checked))
  }

  async downgrade() {
    const lease = Guard.#of(this, 'downgrade')
    await this.#run((port) => lease.downgrade(port))
  }

  async release() {
    const lease = Guard.#of(this, 'release')
    await this.#run((port) => lease.release(port))
  }

  /** @param {Parameters<typeof run>[0]} start */
  async #run(start) {
    try {
      await run(start)
    } catch (error) {
      if (error instanceof LostError) tell(this)
      throw error
    }
  }

  keep() {
    const lease = Guard.#of(this, 'keep')
    this.check()
    lease.keep()
  }

  // JavaScript does not say how the block ended. If it ended with the loss, as thrown by `check`, a
  // second error would hide it in a SuppressedError.
  async [asyncDispose]() {
    Guard.#of(this, asyncDispose)
    const isTold = told.has(this)
    const error = await end(this)
    if (error !== null && !isTold) throw error
  }

  // `using` looks for this before the block begins. Without it, the lock would stay held.
  get [dispose]() {
    if (Guard.#is(this)) refuse([this], 'acquire(name)')
    return undefined
  }

  [Symbol.for('nodejs.util.inspect.custom')]() {
    // What only inherits from one is shown, too.
    if (!Guard.#is(this)) return 'Guard {}'
    const reason = this.#lease.reason()
    const state = reason ?? `valid for ${Math.round(this.validity)} ms`
    const shared = reason === null && !this.exclusive ? 'shared, ' : ''
    return `Guard { name: ${shown(this.name)}, fence: ${this.fence}, ${shared}${state} }`
  }
}

/**
 * The guards of several locks, usable as one. What was taken out of them would stay held after the
 * block, so they are frozen.
 *
 * @extends {Array<Guard>}
 */
class Guards extends Array {
  /**
   * @param {Lease[]} leases
   * @param {symbol} key
   */
  constructor(leases, key) {
    if (key !== OURS) {
      throw new OptionError('Guards are not made with new: acquireMany of a Locker returns them')
    }
    super()
    for (const lease of leases) {
      const guard = new Guard(lease, OURS)
      together.set(guard, new WeakRef(this))
      this.push(guard)
    }
    Object.freeze(this)
  }

  // What is made of them is an ordinary array.
  static get [Symbol.species]() {
    return Array
  }

  async [asyncDispose]() {
    if (!(this instanceof Guards)) throw detached(Guards.prototype, asyncDispose, 'guards')
    const isTold = this.map((guard) => told.has(guard))
    const errors = await endEach(this)
    const error = errors.find((error, place) => error !== null && !isTold[place])
    if (error) throw error
  }

  get [dispose]() {
    if (this instanceof Guards) refuse(this, 'acquireMany(names)')
    return undefined
  }
}

/**
 * Releases them, and says that a block cannot end without waiting for that.
 *
 * @param {Guard[]} held
 * @param {string} call
 * @returns {never}
 */
function refuse(held, call) {
  for (const guard of held) guard.release().catch(() => {})
  throw new OptionError(
    `a lock is released by \`await using\`, not by \`using\`: write \`await using held = await ` +
      `locker.${call}\``,
  )
}

/**
 * The signal that is aborted when the first of these leases is lost.
 *
 * @param {Guard[]} held
 */
function firstLost(held) {
  const controller = new AbortController()
  for (const { lost } of held) {
    if (lost.aborted) controller.abort(lost.reason)
    else lost.addEventListener('abort', () => controller.abort(lost.reason), { once: true })
  }
  return controller.signal
}

/**
 * Releases all of them at the end of a block. Returns for each the error of a lease that ended
 * while the block ran.
 *
 * @param {Guard[]} held
 */
async function endEach(held) {
  const results = await Promise.allSettled(held.map(end))
  for (const result of results) if (result.status === 'rejected') throw result.reason
  return results.map((result) => (result.status === 'fulfilled' ? result.value : null))
}

/**
 * The same, but returns only the first of these errors.
 *
 * @param {Guard[]} held
 */
async function endAll(held) {
  return (await endEach(held)).find((error) => error !== null) ?? null
}

/**
 * Releases at the end of a block. Returns the error of a lease that ended while the block ran.
 *
 * @param {Guard} guard
 */
async function end(guard) {
  let error = null
  try {
    guard.check()
  } catch (ended) {
    if (!(ended instanceof LostError)) {
      // What the `acquire` of a subclass returns may lack it.
      await guard.release()
      throw ended
    }
    // The block may have released the lock itself.
    if (ended.reason !== 'released') error = ended
  }
  try {
    await guard.release()
  } catch (failure) {
    if (failure instanceof LostError) error ??= failure
    // If nodes said so, the work was done in time, and the lease runs out.
    else if (!isUnconfirmed(failure)) throw failure
  }
  return error
}

/** @param {unknown} failure */
function isUnconfirmed(failure) {
  const isOfNodes = failure instanceof NoQuorumError || failure instanceof RefusedError
  return isOfNodes && failure.nodes.length > 0
}

module.exports = { Guard, Guards, OURS, endAll, firstLost }
