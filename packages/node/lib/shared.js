'use strict'

// Lockers that several objects use. A program may make an object of the adapter for each request,
// and one with connections of its own would use up the descriptors.

const { Locker } = require('./locker.js')

/**
 * @typedef {InstanceType<typeof Locker>} Shared
 * @typedef {{ locker: Shared, users: number }} Use
 */

/** @type {Map<string, Use>} By the settings: those that somebody uses. */
const used = new Map()

/** The lockers of one user, each for another time for answers. */
class Lockers {
  /** @type {Map<string, Shared>} */
  #own = new Map()
  #hasEnded = false
  #urls

  /** @param {string[]} urls */
  constructor(urls) {
    this.#urls = urls
  }

  /** @param {number} timeout */
  get(timeout) {
    const key = JSON.stringify([timeout, ...this.#urls])
    const own = this.#own.get(key)
    if (own !== undefined) return own
    const locker = used.get(key)?.locker ?? new Locker(this.#urls, { ttl: 30_000, timeout })
    used.set(key, { locker, users: (used.get(key)?.users ?? 0) + 1 })
    this.#own.set(key, locker)
    return locker
  }

  /** The user asks for no more: closes those that nobody else uses. */
  end() {
    if (this.#hasEnded) return
    this.#hasEnded = true
    for (const [key, locker] of this.#own) {
      const users = (used.get(key)?.users ?? 1) - 1
      used.set(key, { locker, users })
      if (users > 0) continue
      used.delete(key)
      locker.close()
    }
  }
}

/** @type {FinalizationRegistry<Lockers>} */
const forgotten = new FinalizationRegistry((lockers) => lockers.end())

/**
 * The lockers of this user, until it ends them or is collected.
 *
 * @param {object} user
 * @param {string[]} urls
 */
function lockersOf(user, urls) {
  const lockers = new Lockers(urls)
  forgotten.register(user, lockers)
  return lockers
}

module.exports = { lockersOf }
