'use strict'

// The locker, which acquires locks for a program. Described in index.d.ts.

const { isMainThread } = require('node:worker_threads')
const { LockError, OptionError, build } = require('./errors.js')
const { Guard, end } = require('./guard.js')
const { native } = require('./native.js')
const { run } = require('./port.js')

/**
 * @typedef {import('..').AcquireOptions} AcquireOptions
 * @typedef {import('..').LockerOptions} LockerOptions
 * @typedef {import('..').Name} Name
 * @typedef {import('./native.js').Done} Done
 * @typedef {InstanceType<typeof Guard>} Held
 */

/** @type {Record<string, string>} The options, and their types. */
const TERMS = { wait: 'number', ttl: 'number', label: 'string', renew: 'boolean', maxHold: 'number' }
const ASKED = { ...TERMS, shared: 'boolean' }
const SETTINGS = {
  ...TERMS,
  timeout: 'number',
  lostMargin: 'number',
  maxTtl: 'number',
  drift: 'number',
  allowEvenNodes: 'boolean',
  cacert: 'string',
  cert: 'string',
  key: 'string',
}

/**
 * Refuses misspelt options, which would have no effect, and values of another type, which would
 * mean something else.
 *
 * @param {object} options
 * @param {Record<string, string>} known
 */
function check(options, known) {
  for (const [name, value] of Object.entries(options)) {
    if (!Object.hasOwn(known, name)) {
      throw new OptionError(`there is no option '${name}': there are ${Object.keys(known).join(', ')}`)
    }
    if (value !== undefined && typeof value !== known[name]) {
      throw new OptionError(`${name} is ${inspect(value)}: give a ${known[name]}`)
    }
  }
}

/** @param {unknown} value */
function inspect(value) {
  return typeof value === 'string' ? `'${value}'` : String(value)
}

/** @param {unknown} name */
function named(name) {
  if (typeof name === 'string' || name instanceof Uint8Array) return name
  throw new OptionError(`a lock's name is a string or bytes, not ${inspect(name)}`)
}

/** @param {unknown} names */
function list(names) {
  const isList = typeof names === 'object' && names !== null && Symbol.iterator in names
  // The letters of a string would count as names.
  if (!isList || names instanceof Uint8Array) {
    throw new OptionError(`the names are ${inspect(names)}: give a list of names`)
  }
  return [.../** @type {Iterable<unknown>} */ (names)].map(named)
}

class Locker {
  /** @type {import('./native.js').Core} */
  #core

  /**
   * @param {string | Iterable<string>} nodes
   * @param {LockerOptions} [options]
   */
  constructor(nodes, options = {}) {
    check(options, SETTINGS)
    const urls = typeof nodes === 'string' ? nodes.split(',') : [...nodes]
    if (!urls.every((url) => typeof url === 'string')) {
      throw new OptionError('nodes are given by their URLs, as strings')
    }
    const made = native.open({ ...options, nodes: urls })
    if ('kind' in made) throw build(made)
    this.#core = made
  }

  /**
   * @param {Name} name
   * @param {AcquireOptions} [options]
   */
  async acquire(name, options = {}) {
    const { signal, ...asked } = options
    check(asked, ASKED)
    const core = this.#core
    const bytes = named(name)
    const { wait, ttl, label, renew, maxHold, shared } = asked
    const done = await run(
      (port) => core.acquire(port, bytes, wait, ttl, label, renew, maxHold, shared),
      signal,
    )
    return only(guards(done))
  }

  /**
   * @param {Name} name
   * @param {Omit<AcquireOptions, 'wait'>} [options]
   */
  tryAcquire(name, options = {}) {
    return this.acquire(name, { ...options, wait: 0 })
  }

  /**
   * @param {Iterable<Name>} names
   * @param {{ shared?: Iterable<Name>, signal?: AbortSignal }} [options]
   */
  async acquireMany(names, { shared = [], signal, ...rest } = {}) {
    check(rest, {})
    const [asked, read] = [list(names), list(shared)]
    return guards(await run((port) => this.#core.acquireMany(port, asked, read), signal))
  }

  /**
   * @template T
   * @param {Name} name
   * @param {AcquireOptions | ((guard: Held, lost: AbortSignal) => T | PromiseLike<T>)} first
   * @param {(guard: Held, lost: AbortSignal) => T | PromiseLike<T>} [second]
   * @returns {Promise<T>}
   */
  async using(name, first, second) {
    const [options, work] = typeof first === 'function' ? [{}, first] : [first, second]
    if (typeof work !== 'function') throw new OptionError('give the work as a function')
    const guard = await this.acquire(name, options)
    let result
    try {
      result = await work(guard, guard.lost)
    } catch (error) {
      const lost = await end(guard)
      // An error of the work itself is not replaced, but having been stopped is no such error.
      throw lost !== null && isStop(error, guard.lost) ? lost : error
    }
    const lost = await end(guard)
    if (lost !== null) throw lost
    return result
  }

  /** @param {Name} name */
  async info(name) {
    const bytes = named(name)
    return (await run((port) => this.#core.info(port, bytes))).states ?? []
  }

  async settle() {
    return (await run((port) => this.#core.settle(port))).votes ?? []
  }
}

/** @param {Done} done */
function guards(done) {
  return (done.leases ?? []).map((lease) => new Guard(lease))
}

/** @param {Held[]} guards */
function only([guard]) {
  if (guard === undefined) throw new LockError('an acquisition came to nothing')
  return guard
}

/**
 * Whether the work ended because the signal was aborted.
 *
 * @param {unknown} error
 * @param {AbortSignal} signal
 */
function isStop(error, signal) {
  if (!signal.aborted || !(error instanceof Error)) return false
  return error === signal.reason || error.name === 'AbortError' || error.cause === signal.reason
}

// Releases what is held when the program ends, without waiting for a node that hangs. When a worker
// thread ends, its guards are collected.
if (isMainThread) process.on('exit', () => native.finish())

module.exports = { Locker }
