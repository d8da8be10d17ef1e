'use strict'

// The interface of node-redlock 5, on lockmod. Described in redlock.d.ts.

const { EventEmitter } = require('node:events')
const { inspect, types } = require('node:util')
const { server } = require('./lib/clients.js')
const { detached, flat, printable, shown, typed } = require('./lib/options.js')
const { lockersOf } = require('./lib/shared.js')
const { Locker, LockError, LostError, OptionError } = require('./index.js')

/**
 * @typedef {import('./index.js').Guard} Guard
 * @typedef {import('./redlock.js').Client} Client
 * @typedef {import('./redlock.js').ExecutionStats} ExecutionStats
 * @typedef {import('./redlock.js').Settings} Settings
 * @typedef {import('./redlock.js').RedlockAbortSignal} RedlockAbortSignal
 */

/** @type {Settings} */
const DEFAULTS = Object.freeze({
  driftFactor: 0.01,
  retryCount: 10,
  retryDelay: 200,
  retryJitter: 100,
  automaticExtensionThreshold: 500,
})

/**
 * How long to wait for a node's answer: the longest of these that fits into a lock's duration. A
 * few classes, so that locks of many durations share few connections.
 */
const PATIENCE = [500, 200, 50, 10]
// The durations that a lock may have: three times the shortest of these, and a day.
const [SHORTEST, LONGEST] = [30, 86_400_000]

/** The least value of each setting. */
const LEAST = Object.freeze({
  driftFactor: 0,
  retryCount: -1,
  retryDelay: 0,
  retryJitter: 0,
  automaticExtensionThreshold: 0,
})

/**
 * What the settings count, unless they are plain numbers.
 *
 * @type {Record<string, string>}
 */
const UNIT = Object.freeze({
  retryDelay: ' of milliseconds',
  retryJitter: ' of milliseconds',
  automaticExtensionThreshold: ' of milliseconds',
})

// A longer duration gives nodes no more time.
const SLOW = 'a slow network needs a longer ttl or timeout'
const PATIENT = 'for a slow network give a Locker with a longer timeout'

/** The longest time that a timer can wait for. */
const LONG = 2 ** 31 - 1

class ResourceLockedError extends Error {
  name = 'ResourceLockedError'
}

class ExecutionError extends Error {
  name = 'ExecutionError'

  /**
   * @param {string} message
   * @param {ReadonlyArray<Promise<ExecutionStats>>} attempts
   * @param {ErrorOptions} [options]
   */
  constructor(message, attempts, options) {
    super(message, options)
    this.attempts = attempts
  }
}

/**
 * Among the settings of an acquisition, asks for a lock that is renewed. `using` calls `acquire`,
 * which a subclass may have overridden, so it has to pass through that.
 */
const RENEWED = Symbol('renewed')

/** What the locks that replace each other share. */
class Held {
  isOver = false

  /**
   * @param {Guard[]} guards
   * @param {boolean} isRenewed
   */
  constructor(guards, isRenewed) {
    this.guards = guards
    this.isRenewed = isRenewed
  }
}

class Lock {
  /** @type {Held} */
  #held

  /**
   * @param {Redlock} redlock
   * @param {string[]} resources
   * @param {Held} held
   * @param {ReadonlyArray<Promise<ExecutionStats>>} attempts
   * @param {number} expiration
   */
  constructor(redlock, resources, held, attempts, expiration) {
    if (!(held instanceof Held)) {
      throw new OptionError('a Lock is not made with new: acquire of a Redlock returns one')
    }
    this.redlock = redlock
    this.resources = resources
    this.attempts = attempts
    this.expiration = expiration
    this.#held = held
  }

  /** @returns {string} */
  get value() {
    throw new LockError('a token is secret, for whoever knows it holds the lock: use fence')
  }

  get fence() {
    return Math.max(...Lock.#of(this, 'fence').#held.guards.map((guard) => guard.fence))
  }

  async release() {
    return await Lock.#of(this, 'release').redlock.release(this)
  }

  /** @param {number} duration */
  async extend(duration) {
    return await Lock.#of(this, 'extend').redlock.extend(this, duration)
  }

  /**
   * What `this` is of, unless the member was taken off its lock.
   *
   * @param {Lock} lock
   * @param {string} member
   */
  static #of(lock, member) {
    if (Lock.#is(lock)) return lock
    throw detached(Lock.prototype, member, 'lock')
  }

  /** @param {unknown} value */
  static #is(value) {
    return typeof value === 'object' && value !== null && #held in value
  }

  /**
   * @param {Lock} lock
   * @param {string} what
   */
  static held(lock, what) {
    if (Lock.#is(lock)) return lock.#held
    // Not its fields: a lock of node-redlock has its token among them.
    const kind = /** @type {any} */ (lock)?.constructor?.name ?? String(lock)
    const text = `The lock to ${what} is of the kind ${kind}: give a Lock of this package.`
    throw new ExecutionError(text, [])
  }
}

class Redlock extends EventEmitter {
  /** @type {Locker | undefined} */
  #locker
  #lockers
  #prefix = ''
  #hasQuit = false

  /**
   * @param {Iterable<Client> | Locker} clients
   * @param {Partial<Settings> | null} [settings]
   * @param {object | null} [scripts]
   */
  constructor(clients, settings = {}, scripts) {
    super()
    // As in node-redlock: an error of one node goes to listeners only, and is not thrown.
    this.on('error', () => {})
    if (scripts !== undefined && scripts !== null) {
      throw new OptionError('there are no scripts to replace: the module decides in the server')
    }
    /** @type {Settings} */
    this.settings = merge(DEFAULTS, settings)
    const list = clients instanceof Locker ? [] : listed(clients)
    this.clients = new Set(list)
    if (clients instanceof Locker) {
      this.#locker = clients
      this.#lockers = lockersOf(this, [])
      return
    }
    if (this.clients.size === 0) {
      throw new OptionError('Redlock must be instantiated with at least one redis client.')
    }
    if (list.length % 2 === 0) {
      throw new OptionError(
        `${list.length} clients survive no more failures than ${list.length - 1}: add or remove ` +
          'one, or give a Locker with allowEvenNodes: true',
      )
    }
    const servers = list.map((client, index) => server(client, index))
    this.#lockers = lockersOf(this, servers.map(({ url }) => url))
    this.#prefix = servers[0]?.prefix ?? ''
    if (servers.some(({ prefix }) => prefix !== this.#prefix)) {
      throw new OptionError('the clients have several values of keyPrefix: give all the same')
    }
    // Reports what is wrong with the list, and starts to connect.
    this.#patient(Infinity)
  }

  /**
   * What `this` is of, unless the method was taken off its object.
   *
   * @param {Redlock} redlock
   * @param {string} method
   */
  static #of(redlock, method) {
    if (Redlock.#is(redlock)) return redlock
    throw detached(Redlock.prototype, method, 'redlock')
  }

  /** @param {unknown} value */
  static #is(value) {
    return typeof value === 'object' && value !== null && #lockers in value
  }

  // Not the clients: their URLs may have passwords.
  [inspect.custom]() {
    if (!Redlock.#is(this)) return 'Redlock {}'
    const of = this.#locker === undefined ? `${this.clients.size} clients` : inspect(this.#locker)
    return `Redlock { ${of} }`
  }

  async quit() {
    Redlock.#of(this, 'quit')
    this.#hasQuit = true
    this.#lockers.end()
    await Promise.all([...this.clients].map((client) => quit(client)))
  }

  /**
   * @param {string[]} resources
   * @param {number} duration
   * @param {Partial<Settings> & { [RENEWED]?: true }} [settings]
   */
  async acquire(resources, duration, settings) {
    const redlock = Redlock.#of(this, 'acquire')
    const isRenewed = settings?.[RENEWED] === true
    return await redlock.#acquire(resources, duration, merge(this.settings, settings), isRenewed)
  }

  /**
   * @param {Lock} lock
   * @param {Partial<Settings>} [_settings] Not used: a release needs none.
   */
  async release(lock, _settings) {
    Redlock.#of(this, 'release')
    const held = Lock.held(lock, 'release')
    lock.expiration = 0
    if (held.isOver) throw new ExecutionError('The lock has been released before.', [])
    held.isOver = true
    const results = await Promise.allSettled(held.guards.map((guard) => guard.release()))
    for (const result of results) {
      if (result.status === 'fulfilled') continue
      // The package goes on with it. A caller that tries again hears that it is done.
      held.isOver = result.reason instanceof LostError
      throw this.#failed(result.reason, lock.resources)
    }
    return { attempts: [this.#stats()] }
  }

  /**
   * @param {Lock} existing
   * @param {number} duration
   * @param {Partial<Settings>} [settings]
   */
  async extend(existing, duration, settings) {
    Redlock.#of(this, 'extend')
    whole(duration)
    const held = Lock.held(existing, 'extend')
    if (existing.expiration < Date.now()) {
      throw new ExecutionError('Cannot extend an already-expired lock.', [])
    }
    try {
      await Promise.all(held.guards.map((guard) => guard.extend(duration)))
    } catch (error) {
      throw this.#failed(error, existing.resources)
    }
    existing.expiration = 0
    return this.#lock(existing.resources, held, duration, merge(this.settings, settings))
  }

  /**
   * @template T
   * @param {string[]} resources
   * @param {number} duration
   * @param {Partial<Settings> | ((signal: RedlockAbortSignal) => Promise<T>)} first
   * @param {(signal: RedlockAbortSignal) => Promise<T>} [second]
   * @returns {Promise<T>}
   */
  async using(resources, duration, first, second) {
    Redlock.#of(this, 'using')
    whole(duration)
    const routine = typeof first === 'function' ? first : second
    const settings = merge(this.settings, typeof first === 'function' ? undefined : first)
    if (typeof routine !== 'function') throw new Error('INVARIANT: routine is not a function.')
    if (types.isGeneratorFunction(routine)) {
      throw new Error('The routine is a generator, which runs after it has returned.')
    }
    if (settings.automaticExtensionThreshold > duration - 100) {
      throw new Error(
        'A lock `duration` must be at least 100ms greater than the ' +
          '`automaticExtensionThreshold` setting.',
      )
    }
    // The public methods, as in node-redlock: a subclass may have them take other names, say.
    const lock = await this.acquire(resources, duration, { ...settings, [RENEWED]: true })
    const held = Lock.held(lock, 'use')
    if (!held.isRenewed) {
      await lock.release()
      throw new ExecutionError('acquire() of this subclass has to pass its settings on.', [])
    }
    const controller = new AbortController()
    /** @type {RedlockAbortSignal} */
    const signal = controller.signal
    for (const { lost } of held.guards) {
      const stop = () => {
        signal.error ??= this.#failed(lost.reason, resources)
        controller.abort()
      }
      if (lost.aborted) stop()
      else lost.addEventListener('abort', stop, { once: true })
    }
    // As the timer of node-redlock does, it keeps the process alive.
    const alive = setInterval(() => {}, LONG)
    try {
      if (signal.error !== undefined) throw signal.error
      return await routine(signal)
    } finally {
      clearInterval(alive)
      await lock.release()
    }
  }

  /**
   * @param {string[]} resources
   * @param {number} duration
   * @param {Settings} settings
   * @param {boolean} renew
   */
  async #acquire(resources, duration, settings, renew) {
    whole(duration)
    if (this.#hasQuit) throw new ExecutionError('The lock cannot be acquired after quit().', [])
    check(resources)
    const { retryCount, retryDelay } = settings
    const isEndless = retryCount === -1 || retryCount === Infinity
    const wait = isEndless ? Infinity : Math.max(0, retryCount) * Math.max(0, retryDelay)
    const deadline = Date.now() + wait
    // All in one order, so that two callers cannot wait for each other.
    const names = [...new Set(resources)].sort().map((name) => this.#prefix + name)
    for (;;) {
      /** @type {Guard[]} */
      const guards = []
      try {
        for (const name of names) {
          const left = guards.length === 0 && wait === 0 ? 0 : Math.max(0, deadline - Date.now())
          const locker = this.#patient(duration)
          const guard = await locker.acquire(name, { ttl: duration, wait: left, renew })
          guards.push(guard)
          // As in node-redlock, a lock stays for its duration unless it is released.
          if (!renew) guard.keep()
        }
        // The time of the first locks ran on during the wait for the others.
        if (!renew) await Promise.all(guards.slice(0, -1).map((guard) => guard.extend()))
        return this.#lock(resources, new Held(guards, renew), duration, settings)
      } catch (error) {
        await Promise.allSettled(guards.map((guard) => guard.release()))
        const isOver = !(error instanceof LostError) || Date.now() >= deadline
        if (isOver) throw this.#failed(error, resources)
      }
    }
  }

  /**
   * @param {string[]} resources
   * @param {Held} held
   * @param {number} duration
   * @param {Settings} settings
   */
  #lock(resources, held, duration, settings) {
    const validity = Math.min(...held.guards.map((guard) => guard.validity))
    // The locker already subtracts 1 %.
    const more = Math.max(0, settings.driftFactor - DEFAULTS.driftFactor) * duration
    const expiration = Math.floor(Date.now() + validity - more)
    return new Lock(this, resources, held, [this.#stats()], expiration)
  }

  /** @param {number} duration */
  #patient(duration) {
    if (this.#locker !== undefined) return this.#locker
    // A duration that is too long is refused with the range that the shortest of these leaves.
    const timeout = PATIENCE.find((one) => 4 * one <= duration && duration <= LONGEST) ?? 10
    if (duration > 0 && duration < SHORTEST) {
      const range = `${SHORTEST} ms to ${LONGEST} ms`
      throw new OptionError(`duration ${duration} ms is too short: give ${range}`)
    }
    return this.#lockers.get(timeout)
  }

  /**
   * @param {import('./index.js').NodeVote[]} [votes]
   * @param {string[]} [resources]
   */
  #stats(votes = [], resources = []) {
    const clients = [...this.clients]
    const membershipSize = clients.length
    /** @type {Map<Client, Error>} */
    const votesAgainst = new Map()
    votes.forEach((vote, node) => {
      if (vote.vote === 'granted' || vote.vote === 'confirmed') return
      const said = vote.vote === 'not_held' ? 'no longer held' : vote.text
      const text = `${printable(resources.join(', '))}: ${said} (${vote.node})`
      const isLocked = vote.vote === 'held' || vote.vote === 'not_held'
      const error = isLocked ? new ResourceLockedError(text) : new Error(text)
      const client = clients[node] ?? vote.node
      // A URL as it was given may have a password.
      votesAgainst.set(typeof client === 'string' ? vote.node : client, error)
      this.emit('error', error)
    })
    const quorumSize = Math.floor(membershipSize / 2) + 1
    return Promise.resolve({ membershipSize, quorumSize, votesFor: new Set(), votesAgainst })
  }

  /**
   * The error that users of node-redlock expect for this cause.
   *
   * @param {unknown} error
   * @param {string[]} resources
   * @returns {Error}
   */
  #failed(error, resources) {
    if (!(error instanceof LockError)) {
      const isError = error instanceof Error || types.isNativeError(error)
      return isError ? error : new Error(String(error))
    }
    // Of a wrong option no node learns.
    const attempts = error instanceof OptionError ? [] : [this.#stats([...error.nodes], resources)]
    const isOption = error instanceof OptionError
    const text = isOption
      ? spelled(error.message)
      : `The operation was unable to achieve a quorum: ${error.message.replace(SLOW, PATIENT)}`
    return new ExecutionError(text, attempts, { cause: error })
  }
}

/**
 * The text about a wrong option, with the names that users of node-redlock know.
 *
 * @param {string} text
 */
function spelled(text) {
  return text.replace(/(?<![-.\w])(say so with maxTtl|(the )?ttl|timeout)\b/g, (name) => {
    if (name === 'timeout') return "the Locker's timeout"
    return name.endsWith('ttl') ? 'duration' : 'give a Locker with maxTtl'
  })
}

/** @param {unknown} resources */
function check(resources) {
  const isList = Array.isArray(resources) && resources.length > 0
  if (isList && resources.every((name) => typeof name === 'string' && name !== '')) return
  const given = printable(inspect(resources, { depth: 1, breakLength: Infinity }))
  const text = `The resources are ${given}: give an array of strings that are not empty.`
  throw new ExecutionError(text, [])
}

/** @param {number} duration */
function whole(duration) {
  // Infinity passes here as in node-redlock, and fails later.
  if (Math.floor(duration) !== duration) {
    const given = typeof duration === 'number' ? shown(duration) : typed(duration)
    throw new Error(`Duration must be an integer value in milliseconds: it is ${given}.`)
  }
}

/**
 * @param {Settings} settings
 * @param {Partial<Settings> | null} [changes]
 * @returns {Settings}
 */
function merge(settings, changes) {
  if (typeof (changes ?? {}) !== 'object') {
    throw new OptionError(`the settings are ${typed(changes)}: give an object`)
  }
  const all = Object.entries(flat(changes ?? {}, LEAST))
  const given = all.filter(([, value]) => value !== undefined)
  for (const [name, value] of given) {
    if (!Object.hasOwn(LEAST, name)) {
      const names = Object.keys(LEAST).join(', ')
      throw new OptionError(`there is no setting ${shown(name)}: there are ${names}`)
    }
    const least = LEAST[/** @type {keyof Settings} */ (name)]
    const isAllowed = typeof value === 'number' && value >= least
    if (!isAllowed || (name === 'driftFactor' && value >= 1)) {
      const below = name === 'driftFactor' ? ', less than 1' : ''
      const unit = UNIT[name] ?? ''
      const said = typeof value === 'number' ? shown(value) : typed(value)
      throw new OptionError(`${name} is ${said}: give a number${unit}, ${least} or more${below}`)
    }
  }
  return { ...settings, ...Object.fromEntries(given) }
}

/**
 * @param {Iterable<Client>} clients
 * @returns {Client[]}
 */
function listed(clients) {
  const isList = typeof clients === 'object' && clients !== null && Symbol.iterator in clients
  if (isList) return [...clients]
  // Not the value: it may have a password.
  const what = clients === undefined ? 'missing' : 'not a list'
  const isForeign = Object(clients).constructor?.name === 'Locker'
  const foreign = ' of this copy of the package (it is loaded twice, or anew)'
  const asked = `give a list of clients or URLs, or a Locker${isForeign ? foreign : ''}`
  throw new OptionError(`the clients are ${what}: ${asked}`)
}

/** @param {Client} client */
async function quit(client) {
  if (typeof client !== 'object' || !('quit' in client) || typeof client.quit !== 'function') return
  // A client of node-redis that is not connected, as it need not be here, rejects.
  if (!('isOpen' in client) || client.isOpen) await client.quit()
}

module.exports = {
  // For the code that compilers make of `import Redlock from`.
  __esModule: true,
  default: Redlock,
  ExecutionError,
  Lock,
  Redlock,
  ResourceLockedError,
}
